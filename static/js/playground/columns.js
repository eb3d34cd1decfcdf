// The models of Compare: a line for each, with what it is set to, and buttons.
import { make } from "../dialogs.js";
import { logo } from "./panel.js";
import { bodyOf, duplicate, inShort } from "./settings.js";

export const MOST_MODELS = 6;

/** Draw the models; `faultsOf(at)` is the map of a model's faults. */
export function drawColumns(play, faultsOf) {
  const focused = document.activeElement?.id;
  const rows = play.columns.map((values, at) => row(play, values, at, faultsOf(at).size));
  document.getElementById("columns").replaceChildren(...rows);
  if (focused?.startsWith("column-")) document.getElementById(focused)?.focus();
}

function row(play, values, at, faults) {
  const model = play.model(values.model);
  const button = (text, does, properties) => make("button", { type: "button", class: "plain", text, id: `column-${does}-${at}`, ...properties });
  const actions = [
    button("Settings", "settings", { "aria-label": `Settings of model ${at + 1}`, "aria-pressed": String(at === play.at), onclick: () => play.choose(at) }),
    button("Duplicate", "duplicate", { "aria-label": `Duplicate model ${at + 1}`, disabled: play.columns.length >= MOST_MODELS, onclick: () => play.add(duplicate(values)) }),
    button("Remove", "remove", { "aria-label": `Remove model ${at + 1}`, disabled: play.columns.length < 2, onclick: () => play.remove(at) }),
  ];
  return make(
    "li",
    { "aria-current": at === play.at ? "true" : null },
    make("div", { class: "model", title: values.model }, ...(model ? [logo(model), model.label] : [values.model])),
    make("div", { class: "number small quiet", text: inShort(bodyOf(values)).join(" · ") }),
    faults ? make("div", { class: "fault", text: faults === 1 ? "One setting is out of range." : `${faults} settings are out of range.` }) : null,
    make("div", { class: "actions" }, ...actions),
  );
}
