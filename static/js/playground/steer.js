// The dialog that adds a Steering vector: a saved one, one from a file, or pasted numbers.
import { open } from "../request.js";
import { SavedVectors } from "./saved.js";
import { layersOf, layersText } from "./settings.js";
import { checkWidth, fromSafetensors, makeVector, normOf, readFile, readNumbers, readPositions, spansText, Unreadable } from "./vectors.js";

const by = (id) => document.getElementById(id);
const dialog = by("vector-dialog");
const form = dialog.querySelector("form");
const NOTHING = { rows: null, origin: null, saved: null };
let source = NOTHING;
let asked = 0;
let adds = null;
let model = null;
let labelOf = (id) => id;
const savedVectors = new SavedVectors((id) => labelOf(id), chosen);

const tell = (text) => {
  by("vector-read").textContent = text;
};

function fault(text) {
  by("vector-fault").textContent = text ?? "";
  by("vector-fault").hidden = !text;
}

function has(read) {
  const { rows } = read;
  source = { ...NOTHING, ...read };
  fault(null);
  tell(`${rows.length} × ${rows[0].length.toLocaleString("en-US")} numbers, norm of the first row ${normOf(rows).toPrecision(6)}`);
  checkWidth(rows, model?.width ?? 0);
}

/** Forget the numbers; what is still being read does not count any more. */
function reset() {
  asked++;
  source = NOTHING;
  tell("");
  fault(null);
}

/** Read numbers in a way that may take a moment; what is asked for later wins. */
async function reads(way) {
  reset();
  const mine = asked;
  try {
    const read = await way();
    if (mine !== asked) return null;
    has(read);
    return read;
  } catch (error) {
    if (mine === asked) fault(error.message);
    return null;
  }
}

/** Put the settings that belong to a vector into the fields. */
function fill({ name, layers, scale, normMatch, spans }) {
  by("vector-name").value = name;
  by("vector-layers").value = layersText(layers);
  by("vector-scale").value = String(scale);
  by("vector-norm").checked = normMatch;
  by("vector-positions").value = spansText(spans);
}

async function chosen(saved) {
  by("vector-file").value = "";
  by("vector-numbers").value = "";
  fill({ ...saved, normMatch: saved.norm_match });
  await reads(async () => {
    const answer = await open(`/playground/vectors/${saved.id}/file`);
    const { rows } = fromSafetensors(await answer.arrayBuffer());
    return { rows, saved, origin: { kind: "saved", name: saved.name } };
  });
}

by("vector-file").addEventListener("change", async (event) => {
  const [file] = event.target.files;
  if (!file) return;
  by("vector-numbers").value = "";
  savedVectors.clear();
  const read = await reads(async () => ({ ...(await readFile(file)), origin: { kind: "file", name: file.name } }));
  if (read?.about) fill(read.about);
  else if (read && !by("vector-name").value) by("vector-name").value = file.name.replace(/\.[a-z]+$/, "");
});

by("vector-numbers").addEventListener("input", (event) => {
  by("vector-file").value = "";
  savedVectors.clear();
  if (event.target.value.trim() === "") reset();
  else reads(() => ({ rows: readNumbers(event.target.value), origin: { kind: "pasted" } }));
});

form.addEventListener("submit", (event) => {
  event.preventDefault();
  let vector;
  try {
    if (!source.rows) throw new Unreadable("Choose a saved vector or a file, or paste numbers first.");
    checkWidth(source.rows, model?.width ?? 0);
    vector = makeVector({
      name: by("vector-name").value,
      rows: source.rows,
      layers: layersOf(by("vector-layers").value),
      scale: by("vector-scale").value.trim() ? Number(by("vector-scale").value) : NaN,
      normMatch: by("vector-norm").checked,
      positions: readPositions(by("vector-positions").value),
    });
  } catch (error) {
    if (!(error instanceof Unreadable)) throw error;
    fault(error.message);
    return;
  }
  dialog.close();
  adds({ ...vector, origin: source.origin, isSaved: isAsSaved(vector, source.saved) });
});

/** Whether a vector is a saved one with nothing changed. */
function isAsSaved({ name, body }, saved) {
  if (!saved) return false;
  const mine = [name, body.layer_indices, body.scale, Boolean(body.norm_match), body.position_spans ?? null];
  return JSON.stringify(mine) === JSON.stringify([saved.name, saved.layers, saved.scale, saved.norm_match, saved.spans]);
}

/** Ask for a vector for one of the models; `add` gets it. */
export function startVectorDialog(models, chosenModel, add) {
  form.reset();
  reset();
  adds = add;
  model = chosenModel;
  labelOf = (id) => models.find((each) => each.id === id)?.label ?? id;
  by("vector-width").textContent = (model?.width ?? 0).toLocaleString("en-US");
  savedVectors.show(model);
  dialog.showModal();
}
