// The settings of one model: as typed, as a request's body, in words. Pure.
import { faultOf, RANGES } from "../ranges.js";

/** What stands in the form at first; texts, because a wrong number must stay as it was typed. */
export const DEFAULTS = {
  max_tokens: "64",
  temperature: "1",
  top_p: "1",
  top_k: "0",
  min_p: "0",
  presence_penalty: "0",
  frequency_penalty: "0",
  repetition_penalty: "1",
  seed: "",
  n: "1",
  logprobs: "5",
  priority: "0",
  stop: "",
  read: "",
  echo: false,
  add_special_tokens: true,
};

/** The API's own defaults: a body leaves out what is equal to them. */
const API = {
  temperature: 1,
  top_p: 1,
  top_k: 0,
  min_p: 0,
  presence_penalty: 0,
  frequency_penalty: 0,
  repetition_penalty: 1,
  n: 1,
  priority: 0,
  echo: false,
  add_special_tokens: true,
};

/** Fields of a body to the names of their controls. */
export const CONTROLS = {
  output_residual_stream: "read",
  apply_steering_vectors: "vectors",
};

const WORDS = {
  max_tokens: "max tokens",
  temperature: "T",
  top_p: "top p",
  top_k: "top k",
  min_p: "min p",
  presence_penalty: "presence",
  frequency_penalty: "frequency",
  repetition_penalty: "repetition",
  seed: "seed",
  n: "choices",
  logprobs: "logprobs",
  priority: "priority",
};

const MAX_CHOICES_TOKENS = 32_000;
const GREEDY_BELOW = 0.00001;
const STOPS = 4;
const VECTORS = 8;
const written = (number) => number.toLocaleString("en-US");

/** Settings as they are at first, for a model. */
export const fresh = (model) => ({ ...DEFAULTS, model, vectors: [] });

/** A copy that can be changed by itself. */
export const duplicate = (values) => ({ ...values, vectors: [...values.vectors] });

const shown = (text) => text.replaceAll("\\", "\\\\").replaceAll("\n", "\\n").replaceAll("\t", "\\t");
const unshown = (line) =>
  line.replace(/\\([\\nt])/g, (_, letter) => ({ "\\": "\\", n: "\n", t: "\t" })[letter]);
const stopsOf = (text) => text.split("\n").filter((line) => line !== "").map(unshown);

/**
 * Layers as typed, in that order and each once: null for none, true for all, a list, or undefined
 * for what is no list. Of a vector, row `i` goes to the `i`-th Layer that was typed.
 */
export function layersOf(text) {
  const trimmed = text.trim().toLowerCase();
  if (trimmed === "" || trimmed === "none") return null;
  if (trimmed === "all") return true;
  const layers = new Set();
  for (const part of trimmed.split(/[\s,]+/).filter(Boolean)) {
    const found = /^(\d{1,4})(?:-(\d{1,4}))?$/.exec(part);
    if (!found) return undefined;
    const [first, last] = [Number(found[1]), Number(found[2] ?? found[1])];
    if (last < first) return undefined;
    for (let layer = first; layer <= last; layer++) layers.add(layer);
  }
  return [...layers];
}

/** Layers in words, shortly: `0, 5, 10-12`. */
export function layersText(layers) {
  if (layers === true) return "all";
  const parts = [];
  for (let i = 0; i < layers.length; i++) {
    const from = layers[i];
    while (layers[i + 1] === layers[i] + 1) i++;
    parts.push(from === layers[i] ? `${from}` : `${from}-${layers[i]}`);
  }
  return parts.join(", ");
}

/** The body of a request: model, prompt, `max_tokens`, and what differs from the API's defaults. */
export function bodyOf(values, prompt) {
  const body = { model: values.model };
  if (prompt !== undefined) body.prompt = prompt;
  body.max_tokens = Number(values.max_tokens);
  for (const name of Object.keys(API)) {
    const value = typeof API[name] === "boolean" ? values[name] : Number(values[name]);
    if (value !== API[name]) body[name] = value;
  }
  if (values.seed.trim()) body.seed = Number(values.seed);
  if (Number(values.logprobs) > 0) body.logprobs = Number(values.logprobs);
  const stops = stopsOf(values.stop);
  if (stops.length) body.stop = stops;
  const layers = layersOf(values.read);
  if (layers) body.output_residual_stream = layers === true ? true : layers.sort((a, b) => a - b);
  if (values.vectors.length) body.apply_steering_vectors = values.vectors.map((each) => each.body);
  return body;
}

/** The settings that a kept request was made with; its values are kept as they are. */
export function valuesOf(body, vectors = []) {
  const values = { ...fresh(body.model), vectors, logprobs: "0" };
  for (const name of Object.keys(DEFAULTS)) {
    const value = body[name];
    if (value === undefined || value === null || name === "stop") continue;
    values[name] = typeof DEFAULTS[name] === "boolean" ? value : String(value);
  }
  const stops = typeof body.stop === "string" ? [body.stop] : (body.stop ?? []);
  values.stop = stops.map(shown).join("\n");
  if (body.output_residual_stream) values.read = layersText(body.output_residual_stream);
  return values;
}

/** What is wrong with the settings: a map from control to words. */
export function faultsOf(values, model, promptTokens) {
  const faults = new Map();
  const mark = (name, fault) => fault && !faults.has(name) && faults.set(name, fault);
  if (!model) mark("model", "This model is not served.");
  for (const [name, range] of Object.entries(RANGES)) {
    mark(name, faultOf(String(values[name]), range, name === "seed"));
  }
  const [n, most, temperature] = ["n", "max_tokens", "temperature"].map((name) => Number(values[name]));
  if (most < 1 && !values.echo) mark("max_tokens", "Max tokens: at least 1, or 0 with Echo.");
  if (n * most > MAX_CHOICES_TOKENS) {
    mark("max_tokens", `Choices times Max tokens: at most ${written(MAX_CHOICES_TOKENS)}.`);
  }
  if (n > 1 && temperature < GREEDY_BELOW) {
    mark("n", "Choices: 1 at this temperature, because all of them would be the same.");
  }
  const layers = layersOf(values.read);
  if (n > 1 && layers) mark("n", "Choices: 1 with Read Layers.");
  if (n > 1 && values.vectors.length) mark("n", "Choices: 1 with Steer.");
  if (layers === undefined) mark("read", "Read Layers: all, or Layers such as 0, 5, 10-12.");
  if (stopsOf(values.stop).length > STOPS) mark("stop", `Stop texts: at most ${STOPS}.`);
  if (values.vectors.length > VECTORS) mark("vectors", `Steer: at most ${VECTORS} vectors.`);
  if (model) modelFaults(values, model, promptTokens, layers, most, mark);
  return faults;
}

function modelFaults(values, model, promptTokens, layers, most, mark) {
  if (Array.isArray(layers) && layers.some((layer) => layer >= model.layers)) {
    mark("read", `Read Layers: ${model.label} has Layers 0 to ${model.layers - 1}.`);
  }
  for (const vector of values.vectors) {
    if (vector.width !== model.width) {
      mark("vectors", `Steer: ${vector.name} has ${written(vector.width)} numbers, and ${model.label} needs ${written(model.width)}.`);
    }
    if (vector.body.layer_indices.some((layer) => layer >= model.layers)) {
      mark("vectors", `Steer: ${model.label} has Layers 0 to ${model.layers - 1}.`);
    }
  }
  if (promptTokens !== null && promptTokens + Math.max(1, most) > model.context) {
    mark("max_tokens", `Prompt and Max tokens do not fit: the context of ${model.label} is ${written(model.context)} tokens, and the prompt has ${written(promptTokens)}.`);
  }
  if (layers && promptTokens !== null) {
    const count = layers === true ? model.layers : layers.length;
    const numbers = count * (promptTokens + Math.max(1, most)) * model.width;
    if (numbers > model.capture) {
      mark("read", `Read Layers: at most ${written(model.capture)} numbers in one read; this is ${written(numbers)}.`);
    }
  }
}

/** Tokens that a Run holds; null while a number is missing. */
export function heldBy(values, promptTokens) {
  const held = promptTokens + Number(values.n) * Math.max(1, Number(values.max_tokens));
  return promptTokens === null || !Number.isInteger(held) ? null : held;
}

/** The settings of a request in a few words: temperature, and what differs from the defaults. */
export function inShort(body) {
  const words = [`T ${body.temperature ?? 1}`];
  for (const name of Object.keys(WORDS)) {
    if (["temperature", "max_tokens", "logprobs"].includes(name)) continue;
    if (body[name] !== undefined && body[name] !== null && body[name] !== API[name]) {
      words.push(`${WORDS[name]} ${body[name]}`);
    }
  }
  if (body.stop?.length) words.push(`stop ${[body.stop].flat().map((text) => JSON.stringify(text)).join(" ")}`);
  if (body.echo) words.push("echo");
  if (body.add_special_tokens === false) words.push("no special tokens");
  if (body.output_residual_stream) words.push(`reads ${layersText(body.output_residual_stream)}`);
  for (const vector of body.apply_steering_vectors ?? []) {
    words.push(`steer ${layersText(vector.layer_indices)} × ${vector.scale ?? 1}`);
  }
  return words;
}

const NAMES = [...Object.keys(API), "max_tokens", "seed", "logprobs", "stop", "output_residual_stream"];
const valueOf = (body, name) => body[name] ?? API[name] ?? null;

/** What a body has otherwise than another, in words: `T 0.7, max tokens 16`. */
export function differences(body, other) {
  const words = [];
  for (const name of NAMES) {
    const [mine, theirs] = [valueOf(body, name), valueOf(other, name)];
    if (JSON.stringify(mine) === JSON.stringify(theirs)) continue;
    if (name === "stop") words.push(mine ? `stop ${JSON.stringify(mine)}` : "no stop texts");
    else if (name === "output_residual_stream") words.push(mine ? `reads ${layersText(mine)}` : "no reads");
    else if (typeof mine === "boolean") words.push(`${mine ? "" : "no "}${name === "echo" ? "echo" : "special tokens"}`);
    else words.push(mine === null ? `no ${WORDS[name]}` : `${WORDS[name]} ${mine}`);
  }
  const vectors = (each) => JSON.stringify(each.apply_steering_vectors ?? null);
  if (vectors(body) !== vectors(other)) {
    words.push(body.apply_steering_vectors ? "other steering" : "no steering");
  }
  return words;
}
