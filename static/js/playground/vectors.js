// Steering vectors: read from a file or from pasted numbers, made into what a Run sends, and in
// words. Pure but for the reading of files.
import { layersText } from "./settings.js";

/** Why a file or a text is no vector. */
export class Unreadable extends Error {}

const fail = (why) => {
  throw new Unreadable(why);
};

/** Rows of numbers, `[layers][width]`, from what a JSON text or pasted numbers say. */
export function readNumbers(text) {
  const trimmed = text.trim();
  if (!trimmed) fail("There are no numbers.");
  let value;
  if (trimmed.startsWith("[")) {
    try {
      value = JSON.parse(trimmed);
    } catch {
      fail("The text is not valid JSON.");
    }
  } else {
    value = trimmed.split(/[\s,;]+/).filter(Boolean).map(Number);
  }
  return rowsOf(value);
}

function rowsOf(value) {
  const rows = Array.isArray(value?.[0]) ? value : [value];
  const width = rows[0]?.length;
  for (const row of rows) {
    if (!Array.isArray(row) || row.length !== width) fail("The rows have different lengths.");
    if (!row.every((number) => typeof number === "number" && Number.isFinite(number))) {
      fail("Not every entry is a finite number.");
    }
  }
  if (!width) fail("There are no numbers.");
  return rows;
}

/** Read a file of one vector, or of one for each Layer: `{rows, about}`, as `fromSafetensors` does. */
export async function readFile(file) {
  const bytes = await file.arrayBuffer();
  if (file.name.endsWith(".npy")) return { rows: fromNpy(bytes), about: null };
  if (file.name.endsWith(".safetensors")) return fromSafetensors(bytes);
  if (file.name.endsWith(".json")) return { rows: readNumbers(new TextDecoder().decode(bytes)), about: null };
  return fail("Choose a .npy, .safetensors or .json file.");
}

const READERS = {
  "<f4": [4, (view, at) => view.getFloat32(at, true)],
  "<f8": [8, (view, at) => view.getFloat64(at, true)],
  "<f2": [2, (view, at) => half(view.getUint16(at, true))],
  F32: [4, (view, at) => view.getFloat32(at, true)],
  F64: [8, (view, at) => view.getFloat64(at, true)],
  F16: [2, (view, at) => half(view.getUint16(at, true))],
  BF16: [2, (view, at) => bfloat(view.getUint16(at, true))],
};

function half(bits) {
  const sign = bits & 0x8000 ? -1 : 1;
  const [exponent, fraction] = [(bits >> 10) & 0x1f, bits & 0x3ff];
  if (exponent === 0) return sign * fraction * 2 ** -24;
  if (exponent === 31) return fraction ? NaN : sign * Infinity;
  return sign * (1 + fraction / 1024) * 2 ** (exponent - 15);
}

const scratch = new DataView(new ArrayBuffer(4));
function bfloat(bits) {
  scratch.setUint32(0, bits << 16);
  return scratch.getFloat32(0);
}

function fromNpy(bytes) {
  const view = new DataView(bytes);
  const magic = bytes.byteLength > 12 && view.getUint32(0) === 0x934e554d && view.getUint16(4) === 0x5059;
  if (!magic) fail("The file is no NumPy array.");
  const isLong = view.getUint8(6) > 1;
  const length = isLong ? view.getUint32(8, true) : view.getUint16(8, true);
  const begin = (isLong ? 12 : 10) + length;
  const header = new TextDecoder().decode(bytes.slice(isLong ? 12 : 10, begin));
  const dtype = /'descr':\s*'([^']+)'/.exec(header)?.[1];
  const shape = (/'shape':\s*\(([^)]*)\)/.exec(header)?.[1] ?? "").split(",").filter((part) => part.trim()).map(Number);
  if (/'fortran_order':\s*True/.test(header)) fail("The array is in Fortran order: save it in C order.");
  return shaped(view, begin, dtype, shape);
}

/**
 * Read a safetensors file of one tensor: `{rows, about}`. `about` is what the App writes into the
 * file of a saved vector (name, Layers, scale, positions), and null in files of other programs.
 */
export function fromSafetensors(bytes) {
  const view = new DataView(bytes);
  const length = bytes.byteLength > 8 ? Number(view.getBigUint64(0, true)) : Infinity;
  if (length > bytes.byteLength - 8) fail("The file is no safetensors file.");
  let header;
  try {
    header = JSON.parse(new TextDecoder().decode(bytes.slice(8, 8 + length)));
  } catch {
    fail("The file is no safetensors file.");
  }
  const tensors = Object.entries(header).filter(([name]) => name !== "__metadata__");
  if (tensors.length !== 1) fail(`The file has ${tensors.length} tensors: it must have one.`);
  const { dtype, shape, data_offsets: offsets } = tensors[0][1];
  return { rows: shaped(view, 8 + length + offsets[0], dtype, shape), about: aboutOf(header.__metadata__) };
}

function aboutOf(metadata) {
  try {
    const [layers, scale, normMatch, spans] = ["layer_indices", "scale", "norm_match", "position_spans"].map((name) => JSON.parse(metadata[name]));
    return { name: metadata.name, layers, scale, normMatch, spans };
  } catch {
    return null;
  }
}

function shaped(view, begin, dtype, shape) {
  const [size, take] = READERS[dtype] ?? fail(`Numbers of type ${dtype} are not read: save float32.`);
  if (shape.length < 1 || shape.length > 2) fail(`The array has ${shape.length} dimensions: it must have 1 or 2.`);
  const [count, width] = shape.length === 1 ? [1, shape[0]] : shape;
  if (view.byteLength - begin < count * width * size) fail("The file ends too early.");
  const rows = [];
  for (let row = 0; row < count; row++) {
    const numbers = [];
    for (let i = 0; i < width; i++) numbers.push(take(view, begin + (row * width + i) * size));
    rows.push(numbers);
  }
  return rowsOf(rows);
}

/** A number as float32, with no more digits than tell it apart from others. */
const float32 = (number) => Number(Math.fround(number).toPrecision(9));

/** Positions as typed: null for all, or `{indices, spans}`. */
export function readPositions(text) {
  const parts = text.trim().split(/[\s,]+/).filter(Boolean);
  if (!parts.length) return null;
  const found = { indices: [], spans: [] };
  for (const part of parts) {
    const match = /^(\d{1,7})(?:-(\d{1,7}))?$/.exec(part);
    if (!match) fail("Positions: numbers from 0 such as 3, 5, or spans such as 0-4.");
    const [first, last] = [Number(match[1]), Number(match[2] ?? match[1])];
    if (last < first) fail(`Positions: the span ${part} ends before it begins.`);
    if (match[2] === undefined) found.indices.push(first);
    else found.spans.push([first, last + 1]);
  }
  return found;
}

/** Raise `Unreadable` unless rows are as wide as a model is. */
export function checkWidth(rows, width) {
  const written = (number) => number.toLocaleString("en-US");
  if (rows[0].length !== width) fail(`A vector of this model has ${written(width)} numbers; these have ${written(rows[0].length)}.`);
}

/**
 * Make what a Run sends of a vector, with what the list shows; row `i` is for `layers[i]`.
 * Raises `Unreadable`.
 */
export function makeVector({ name, rows, layers, scale, normMatch, positions }) {
  if (!Array.isArray(layers) || !layers.length) fail("Layers: say which, such as 15.");
  if (rows.length !== layers.length && rows.length !== 1) {
    fail(`There are ${rows.length} rows for ${layers.length} Layers: give one row, or one for each Layer.`);
  }
  if (!Number.isFinite(scale)) fail("Scale: not a number.");
  const chosen = layers.map((_, place) => rows[rows.length === 1 ? 0 : place].map(float32));
  const body = { activations: chosen, layer_indices: layers, scale };
  if (normMatch) body.norm_match = true;
  const where = positions === null ? null : spansOf(positions);
  if (where) body.position_spans = where;
  return { name: name.trim() || "vector", width: chosen[0].length, body };
}

/** All positions as spans `[first, end)`, in their order. */
const spansOf = ({ indices, spans }) =>
  [...indices.map((index) => [index, index + 1]), ...spans].sort((a, b) => a[0] - b[0]);

/** Spans as they are typed: `0-4, 7`. */
export const spansText = (spans) =>
  (spans ?? []).map(([first, end]) => (end === first + 1 ? `${first}` : `${first}-${end - 1}`)).join(", ");

/** The length of a vector's first row. */
export const normOf = (rows) => Math.hypot(...rows[0].slice(0, 65_536));

const layerWords = (layers) => `${layers.length > 1 ? "Layers" : "Layer"} ${layersText(layers)}`;

/** What a vector does, in words: `Layer 15 × 4 · positions 0-4 · norm matched`. */
export function wordsOf({ layers, scale, normMatch, spans }) {
  const words = [`${layerWords(layers)} × ${scale}`];
  if (spans) words.push(`positions ${spansText(spans)}`);
  if (normMatch) words.push("norm matched");
  return words.join(" · ");
}

/** The same of what a Run sends. */
export const wordsOfBody = (body) =>
  wordsOf({ layers: body.layer_indices, scale: body.scale ?? 1, normMatch: body.norm_match, spans: body.position_spans });

/** Why a saved vector cannot steer a model; null when it can. */
export function misfit(saved, model) {
  const written = (number) => number.toLocaleString("en-US");
  if (!model) return "The chosen model is not served.";
  if (saved.width !== model.width) {
    return `It has ${written(saved.width)} numbers for each Layer, and ${model.label} needs ${written(model.width)}.`;
  }
  const beyond = saved.layers.filter((layer) => layer >= model.layers);
  if (beyond.length) return `It is for ${layerWords(beyond)}, and ${model.label} has Layers 0 to ${model.layers - 1}.`;
  return null;
}
