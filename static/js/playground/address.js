// The address of the Playground: each model's settings, the view, and the heatmap.
// Never the prompt, a Run or a vector.
import { DEFAULTS, fresh } from "./settings.js";

const MOST = 6;
const LONGEST = 2000;

/** Read an address; what it has wrong or does not have is as it is at first. */
export function readAddress(search, startModel) {
  const query = new URLSearchParams(search);
  const columns = query.getAll("m").slice(0, MOST).map((text) => readColumn(text, startModel));
  const isCompare = query.get("view") === "compare";
  if (!columns.length) columns.push(fresh(startModel));
  return {
    isCompare,
    heatmap: query.get("heatmap") !== "off",
    columns: isCompare ? columns : columns.slice(0, 1),
  };
}

function readColumn(text, startModel) {
  const query = new URLSearchParams(text.slice(0, LONGEST));
  const values = fresh(query.get("model") || startModel);
  for (const [name, value] of Object.entries(DEFAULTS)) {
    const given = query.get(name);
    if (given === null) continue;
    if (typeof value !== "boolean") values[name] = given;
    else if (given === "on" || given === "off") values[name] = given === "on";
  }
  return values;
}

/** Write a state as an address; what is as at first is left out. */
export function writeAddress({ isCompare, heatmap, columns }) {
  const query = new URLSearchParams();
  for (const values of columns) {
    const part = new URLSearchParams({ model: values.model });
    for (const [name, value] of Object.entries(DEFAULTS)) {
      if (values[name] === value) continue;
      part.set(name, typeof value === "boolean" ? (values[name] ? "on" : "off") : values[name]);
    }
    query.append("m", part.toString());
  }
  if (isCompare) query.set("view", "compare");
  if (!heatmap) query.set("heatmap", "off");
  return `?${query}`;
}
