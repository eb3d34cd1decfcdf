// The dialog that adds a Steering vector.
import { layersOf } from "./settings.js";
import { makeVector, normOf, readFile, readNumbers, readPositions, Unreadable } from "./vectors.js";

const by = (id) => document.getElementById(id);
const dialog = by("vector-dialog");
const form = dialog.querySelector("form");
let rows = null;
let adds = null;
let width = 0;

const tell = (text) => {
  by("vector-read").textContent = text;
};

function fault(text) {
  by("vector-fault").textContent = text ?? "";
  by("vector-fault").hidden = !text;
}

function has(read) {
  rows = read;
  fault(read[0].length === width ? null : `A vector of this model has ${width.toLocaleString("en-US")} numbers; these have ${read[0].length.toLocaleString("en-US")}.`);
  tell(`${read.length} × ${read[0].length.toLocaleString("en-US")} numbers, norm of the first row ${normOf(read).toPrecision(6)}`);
}

/** Say what cannot be read; with `forgets` there are no numbers any more. */
function unreadable(error, forgets) {
  if (!(error instanceof Unreadable)) throw error;
  if (forgets) {
    rows = null;
    tell("");
  }
  fault(error.message);
}

by("vector-file").addEventListener("change", async (event) => {
  const [file] = event.target.files;
  if (!file) return;
  by("vector-numbers").value = "";
  try {
    has(await readFile(file));
    if (!by("vector-name").value) by("vector-name").value = file.name.replace(/\.[a-z]+$/, "");
  } catch (error) {
    unreadable(error, true);
  }
});

by("vector-numbers").addEventListener("input", (event) => {
  by("vector-file").value = "";
  if (!event.target.value.trim()) return;
  try {
    has(readNumbers(event.target.value));
  } catch (error) {
    unreadable(error, true);
  }
});

form.addEventListener("submit", (event) => {
  event.preventDefault();
  let vector;
  try {
    if (!rows) throw new Unreadable("Choose a file or paste numbers first.");
    vector = makeVector({
      name: by("vector-name").value,
      rows,
      layers: layersOf(by("vector-layers").value),
      scale: by("vector-scale").value.trim() ? Number(by("vector-scale").value) : NaN,
      normMatch: by("vector-norm").checked,
      positions: readPositions(by("vector-positions").value),
    });
  } catch (error) {
    unreadable(error, false);
    return;
  }
  dialog.close();
  adds(vector);
});

/** Ask for a vector for this model; `add` gets it. */
export function startVectorDialog(model, add) {
  form.reset();
  rows = null;
  adds = add;
  width = model?.width ?? 0;
  tell("");
  fault(null);
  by("vector-width").textContent = width.toLocaleString("en-US");
  dialog.showModal();
}
