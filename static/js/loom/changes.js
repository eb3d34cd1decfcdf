// Changes of the tree: what each needs, why it has to wait, and its dialog.
import { confirmed, toast } from "../dialogs.js";
import { post } from "../request.js";
import { isGrowing } from "./tree.js";

const codePoints = (text) => Array.from(text).length;

export class Changes {
  /** `took` gets the Loom's new state, and the id of the Node to read, if another one. */
  constructor({ path, tree, took, refused }) {
    Object.assign(this, { path, tree, took, refused });
    this.dialogs = Object.fromEntries(
      ["edit", "sibling", "root"].map((name) => [name, document.getElementById(`${name}-dialog`)]),
    );
    this.#startEdit();
    this.#startWriting("sibling", (text) => this.#post("sibling", { text }, (state) => newest(state)));
    this.#startWriting("root", (text) => this.#write(`${this.path}/root`, { text }, newest));
  }

  /** Why the Node that is read cannot be changed so now; null when it can. */
  obstacle(change) {
    const node = this.tree.selected;
    const { tree } = this;
    if (!node) return "No Node is read.";
    const isRoot = node.parent === null;
    switch (change) {
      case "branch":
        if (node.status === "failed") return "A failed Node takes no Branch.";
        return isGrowing(node) ? "This Node still grows." : null;
      case "edit":
      case "split":
        if (node.status === "failed") return "A failed Node can only be deleted.";
        return tree.growsUnder(node.id) ? "A Node grows here or under it: wait, or stop it." : null;
      case "sibling":
        if (isRoot) return "The root has no siblings.";
        return tree.growsUnder(node.parent) ? "A Node grows beside this one: wait, or stop it." : null;
      case "root":
        if (!isRoot) return "Only the root can be written anew.";
        return tree.isGrowing ? "A Node of this Loom grows: wait, or stop it." : null;
      default:
        if (isRoot) return "The root stays: write a new one, or delete the Loom.";
        return tree.growsUnder(node.id) ? "A Node grows here or under it: wait, or stop it." : null;
    }
  }

  /** Open the dialog of a change, or ask before it. */
  async open(change) {
    if (this.obstacle(change)) return;
    const node = this.tree.selected;
    if (change === "edit" || change === "split") this.#openEdit(node);
    else if (change === "delete") await this.#delete(node);
    else {
      const dialog = this.dialogs[change];
      dialog.querySelector("textarea").value = "";
      say(dialog, null);
      dialog.showModal();
    }
  }

  async undo(what) {
    await this.#write(`${this.path}/${what}`, {}, null);
  }

  /** Write a sibling that begins as the Node does, up to a token, and has another token there. */
  async goOn(node, token, entry) {
    const before = Array.from(node.text).slice(0, token.begin).join("");
    return this.#post("sibling", { text: before + entry.text }, newest);
  }

  async #delete(node) {
    const below = [...this.tree.under(node.id)].length - 1;
    const what = below
      ? `This Node and the ${below.toLocaleString("en-US")} under it leave the tree. Undo brings them back.`
      : "This Node leaves the tree. Undo brings it back.";
    const isSure = await confirmed("Delete this Node?", what, "Delete Node");
    if (isSure) await this.#write(`${this.path}/nodes/${node.id}/delete`, {}, () => node.parent);
  }

  #startEdit() {
    const dialog = this.dialogs.edit;
    const box = dialog.querySelector("textarea");
    const place = () => {
      this.isPlaced ||= document.activeElement === box;
    };
    for (const name of ["keyup", "pointerup", "input", "select"]) box.addEventListener(name, place);
    dialog.querySelector("form").addEventListener("submit", async (event) => {
      event.preventDefault();
      if (event.submitter?.value === "split") await this.#splitAtCursor(dialog, box);
      else await this.#save(dialog, "edit", { text: box.value }, null);
    });
  }

  #openEdit(node) {
    const box = this.dialogs.edit.querySelector("textarea");
    box.value = node.text;
    say(this.dialogs.edit, null);
    this.dialogs.edit.showModal();
    box.focus();
    box.setSelectionRange(0, 0);
    // Only what happens from now on places the cursor.
    setTimeout(() => {
      this.isPlaced = false;
    });
  }

  async #splitAtCursor(dialog, box) {
    const offset = codePoints(box.value.slice(0, box.selectionStart));
    if (!this.isPlaced || offset === 0 || offset === codePoints(box.value)) {
      say(dialog, "Move the cursor to where the text should be cut.");
      box.focus();
      return;
    }
    const node = this.tree.selected;
    const text = box.value === node.text ? {} : { text: box.value };
    await this.#save(dialog, "split", { offset, ...text }, null);
  }

  #startWriting(name, writes) {
    const dialog = this.dialogs[name];
    dialog.querySelector("form").addEventListener("submit", async (event) => {
      event.preventDefault();
      try {
        await writes(dialog.querySelector("textarea").value);
        dialog.close();
      } catch (fault) {
        say(dialog, fault.message);
      }
    });
  }

  async #save(dialog, change, body, reads) {
    try {
      await this.#post(change, body, reads);
      dialog.close();
    } catch (fault) {
      say(dialog, fault.message);
    }
  }

  /** Post a change of the Node that is read; its fault goes to the caller. */
  async #post(change, body, reads) {
    const state = await post(`${this.path}/nodes/${this.tree.selectedId}/${change}`, { json: body });
    this.took(state, reads?.(state) ?? null);
  }

  /** Post a change of the Loom; its fault is said. */
  async #write(path, body, reads) {
    try {
      const state = await post(path, { json: body });
      this.took(state, reads?.(state) ?? null);
    } catch (fault) {
      toast(fault.message);
      this.refused(fault);
    }
  }
}

/** The Node that was made last. */
function newest(state) {
  return state.nodes.reduce((one, other) => (other.number > one.number ? other : one)).id;
}

function say(dialog, fault) {
  const note = dialog.querySelector(".fault");
  note.textContent = fault ?? "";
  note.hidden = !fault;
}
