// The settings of the next Branch: what runs, how it samples, what it returns.
import { faultOf, markFault, RANGES } from "../ranges.js";

const OWN = {
  ...RANGES,
  n: { label: "Branches", whole: true, least: 1, most: 8 },
  max_tokens: { label: "Max tokens", whole: true, least: 0, most: 1000 },
};
const OPTIONAL = new Set(["seed"]);
const DEFAULTS = {
  n: 3,
  max_tokens: 48,
  temperature: 1,
  top_p: 1,
  top_k: 0,
  min_p: 0,
  presence_penalty: 0,
  frequency_penalty: 0,
  repetition_penalty: 1,
  seed: "",
  logprobs: 5,
};
const STOPS = 4;

export class Settings {
  constructor(form) {
    this.form = form;
    this.refusals = new Map();
    form.addEventListener("input", (event) => {
      this.refusals.delete(event.target.name);
      this.check();
    });
  }

  #control(name) {
    return this.form.elements.namedItem(name);
  }

  /** Put in what the Loom's last Branch asked for, with the seed left blank. */
  fill(last) {
    const values = { ...DEFAULTS, ...last, seed: "" };
    if (!values.logprobs) values.logprobs = DEFAULTS.logprobs;
    for (const name of Object.keys(DEFAULTS)) this.#control(name).value = values[name];
    const stops = typeof last?.stop === "string" ? [last.stop] : (last?.stop ?? []);
    this.#control("stop").value = stops.map(shown).join("\n");
    const model = this.#control("model");
    if ([...model.options].some((option) => option.value === last?.model)) model.value = last.model;
    this.check();
  }

  get model() {
    return this.#control("model").value;
  }

  /** Tokens that one Branch holds, with a prompt of so many tokens; null while a number is wrong. */
  held(promptTokens) {
    const [n, most] = ["n", "max_tokens"].map((name) => Number(this.#control(name).value));
    return Number.isInteger(n * most) ? n * (promptTokens + Math.max(1, most)) : null;
  }

  /** Mark what is out of its range; returns whether all is right. */
  check() {
    let isRight = true;
    for (const name of Object.keys(DEFAULTS)) {
      const control = this.#control(name);
      const fault =
        faultOf(control.value, OWN[name], OPTIONAL.has(name)) ?? this.refusals.get(name) ?? null;
      markFault(control, fault);
      isRight &&= fault === null;
    }
    const stop = this.#control("stop");
    const fault =
      this.#stops().length > STOPS ? `Stop texts: at most ${STOPS}.` : (this.refusals.get("stop") ?? null);
    markFault(stop, fault);
    markFault(this.#control("model"), this.refusals.get("model") ?? null);
    return isRight && fault === null;
  }

  /** Mark the setting that a refusal names, until it is changed. */
  refuse(param, message) {
    if (!this.#control(param)) return false;
    this.refusals.set(param, message);
    this.check();
    this.#control(param).focus();
    return true;
  }

  #stops() {
    const lines = this.#control("stop").value.split("\n");
    return lines.filter((line) => line !== "").map(typed);
  }

  /** The body of a Branch. */
  body() {
    const body = { model: this.model };
    for (const name of Object.keys(DEFAULTS)) {
      const text = this.#control(name).value.trim();
      if (text !== "") body[name] = Number(text);
    }
    const stops = this.#stops();
    if (stops.length) body.stop = stops;
    return body;
  }
}

/** Stop texts stand one a line, with `\n` and `\t` for what a line cannot hold. */
const shown = (text) =>
  text.replaceAll("\\", "\\\\").replaceAll("\n", "\\n").replaceAll("\t", "\\t");

function typed(line) {
  return line.replace(/\\(.)/g, (whole, letter) => ({ n: "\n", t: "\t", "\\": "\\" })[letter] ?? whole);
}
