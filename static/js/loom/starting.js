// One line that says how far the start of a model is, while Nodes wait for it.
import { read } from "../request.js";
import { startWords } from "../starting.js";
import { isGrowing } from "./tree.js";

const LOOK_MS = 2000;

/** Watch a tree, and say in `line` what its waiting Nodes wait for. */
export function watchStart(line, tree) {
  let timer = null;

  const waiting = () => {
    const nodes = [...tree.nodes.values()];
    return nodes.filter((node) => isGrowing(node) && !node.text && node.model);
  };

  async function look() {
    timer = null;
    const models = new Set(waiting().map((node) => node.model));
    let words = null;
    if (models.size) {
      try {
        const told = (await read("/playground/models")).models;
        words = told.filter((model) => models.has(model.id)).map(startWords).find(Boolean) ?? null;
      } catch {
        // The next look comes anyway.
      }
    }
    line.hidden = words === null;
    if (line.textContent !== (words ?? "")) line.textContent = words ?? "";
    again();
  }

  function again() {
    if (waiting().length || !line.hidden) timer ??= setTimeout(look, LOOK_MS);
  }

  tree.addEventListener("change", again);
  again();
}
