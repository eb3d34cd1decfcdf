// Saved Steering vectors: the list in the dialog, where one is chosen, renamed, downloaded or
// deleted, and the saving of one from the panel.
import { confirmed, make, toast } from "../dialogs.js";
import { post, read } from "../request.js";
import { misfit, wordsOf } from "./vectors.js";

const DIGITS = 12;
const MIB = 2 ** 20;
const by = (id) => document.getElementById(id);

export class SavedVectors {
  /** `labelOf(id)` names a model; `chosen(saved)` when a person chooses one. */
  constructor(labelOf, chosen) {
    Object.assign(this, { labelOf, chosen });
    this.all = [];
  }

  /** Read the list anew and show which of them fit a model. */
  async show(model) {
    this.model = model;
    this.#fault(null);
    try {
      const { vectors, room } = await read("/playground/vectors");
      this.all = vectors;
      by("saved-room").textContent = `${room.vectors} of ${room.most_vectors} saved, ${(room.size / MIB).toFixed(2)} of ${room.most_size / MIB} MiB`;
    } catch (fault) {
      this.#fault(`The saved vectors could not be read. ${fault.message}`);
    }
    this.#draw();
  }

  /** Choose none. */
  clear() {
    for (const box of by("saved-list").querySelectorAll("input")) box.checked = false;
  }

  #fault(text) {
    by("saved-fault").textContent = text ?? "";
    by("saved-fault").hidden = !text;
  }

  #draw() {
    by("saved-part").hidden = !this.all.length && by("saved-fault").hidden;
    by("saved-list").replaceChildren(...this.all.map((saved) => this.#row(saved)));
  }

  #row(saved) {
    const why = misfit(saved, this.model);
    const [box, about] = [`saved-${saved.id}`, `about-${saved.id}`];
    const act = (text, does) =>
      make("button", { type: "button", class: "plain", text, id: `${text.toLowerCase()}-${saved.id}`, "aria-label": `${text} ${saved.name}`, onclick: does });
    const facts = [wordsOf({ ...saved, normMatch: saved.norm_match }), `${saved.layers.length} × ${saved.width.toLocaleString("en-US")} numbers`];
    return make(
      "li",
      {},
      make("input", { type: "radio", name: "saved", id: box, disabled: why !== null, "aria-describedby": about, onchange: () => this.chosen(saved) }),
      make("label", { for: box, text: saved.name }),
      make("div", { class: "actions" }, act("Rename", () => this.#rename(saved)), this.#download(saved), act("Delete", () => this.#delete(saved))),
      make(
        "div",
        { class: "about small quiet", id: about },
        make("p", { class: "number", text: facts.join(" · ") }),
        make(
          "p",
          {},
          `Saved for ${this.labelOf(saved.model)}, ${saved.origin}, `,
          make("span", { class: "number", title: `SHA-256 of the float32 numbers: ${saved.digest}`, text: `sha256 ${saved.digest.slice(0, DIGITS)}` }),
        ),
        why ? make("p", { class: "misfit", text: why }) : null,
      ),
    );
  }

  #download(saved) {
    const address = `/playground/vectors/${saved.id}/file`;
    return make("a", { class: "button plain", href: address, download: true, text: "Download", "aria-label": `Download ${saved.name}` });
  }

  async #rename(saved) {
    const isDone = await named("Rename this vector", "Rename", saved.name, (name) => post(`/playground/vectors/${saved.id}/rename`, { json: { name } }));
    if (!isDone) return;
    await this.show(this.model);
    by(`rename-${saved.id}`)?.focus();
  }

  async #delete(saved) {
    const text = "Its numbers go, and cannot come back. Runs that were steered with it keep what they sent.";
    if (!(await confirmed(`Delete ${saved.name}?`, text, "Delete vector"))) return;
    try {
      await post(`/playground/vectors/${saved.id}/delete`);
    } catch (fault) {
      this.#fault(fault.message);
      return;
    }
    await this.show(this.model);
    by("vector-file").focus();
  }
}

/** Ask for a name and save a vector of the panel for a model; resolves to whether it was saved. */
export async function saveVector(vector, model) {
  const { origin, body } = vector;
  const isSaved = await named("Save this vector", "Save", vector.name, async (name) => {
    await post("/playground/vectors/save", { json: { name, model, vector: body, origin: origin.kind, origin_name: origin.name ?? "" } });
    vector.name = name.trim();
  });
  if (isSaved) toast(`${vector.name} is saved`);
  return isSaved;
}

/** Ask for a name; `does(name)` may refuse it, which is said beside it. Resolves to whether it did. */
function named(title, verb, name, does) {
  const dialog = by("name-dialog");
  const box = by("vector-new-name");
  const fault = dialog.querySelector(".fault");
  by("name-title").textContent = title;
  dialog.querySelector(".primary").textContent = verb;
  box.value = name;
  fault.hidden = true;
  const over = new AbortController();
  dialog.showModal();
  box.select();
  return new Promise((resolve) => {
    let isDone = false;
    const submitted = async (event) => {
      event.preventDefault();
      try {
        await does(box.value);
      } catch (error) {
        fault.textContent = error.message;
        fault.hidden = false;
        return;
      }
      isDone = true;
      dialog.close();
    };
    dialog.querySelector("form").addEventListener("submit", submitted, { signal: over.signal });
    dialog.addEventListener("close", () => {
      over.abort();
      resolve(isDone);
    }, { signal: over.signal });
  });
}
