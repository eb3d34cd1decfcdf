// The tree as rows. Only the rows in view are in the page, so that 2,000 Nodes scroll smoothly.
import { make } from "../dialogs.js";
import { noteOf, noteTitle, shapeOf, stateOf } from "./marks.js";
import { firstLine } from "./tree.js";

const AROUND = 12;
const DEEPEST = 12;
const SHOWN = 160;

export class Rows {
  constructor(box, tree) {
    this.box = box;
    this.tree = tree;
    this.sizer = box.querySelector(".rows-all");
    this.list = [];
    this.drawn = new Map();
    box.addEventListener("scroll", () => this.#soon(), { passive: true });
    box.addEventListener("click", (event) => this.#click(event));
    new ResizeObserver(() => this.#soon()).observe(box);
    tree.addEventListener("change", (event) => this.#changed(event.detail));
  }

  get isShown() {
    return this.box.offsetParent !== null;
  }

  #changed(kind) {
    if (kind !== "growth") {
      this.list = [...this.tree.walk({ folds: true })].map(([node, depth]) => [node.id, depth]);
    }
    this.#soon(kind === "selected" || kind === "shape");
  }

  #soon(follows = false) {
    this.follows ||= follows;
    this.frame ??= requestAnimationFrame(() => {
      this.frame = null;
      this.draw();
    });
  }

  /** Draw the rows in view; after a selection the selected one is brought into view. */
  draw() {
    if (!this.isShown) return;
    const height = parseFloat(getComputedStyle(this.box).getPropertyValue("--row"));
    this.sizer.style.height = `${this.list.length * height}px`;
    const at = this.list.findIndex(([id]) => id === this.tree.selectedId);
    if (this.follows) this.#bring(at, height);
    this.follows = false;
    const first = Math.max(0, Math.floor(this.box.scrollTop / height) - AROUND);
    const last = Math.min(
      this.list.length,
      Math.ceil((this.box.scrollTop + this.box.clientHeight) / height) + AROUND,
    );
    const wanted = new Set();
    for (let place = first; place < last; place++) {
      const [id, depth] = this.list[place];
      wanted.add(id);
      this.#row(this.tree.nodes.get(id), depth, place * height);
    }
    for (const [id, row] of this.drawn) {
      if (!wanted.has(id)) {
        row.remove();
        this.drawn.delete(id);
      }
    }
    if (this.drawn.has(this.tree.selectedId)) {
      this.box.setAttribute("aria-activedescendant", `row-${this.tree.selectedId}`);
    } else this.box.removeAttribute("aria-activedescendant");
  }

  #bring(at, height) {
    const top = at * height;
    if (top < this.box.scrollTop) this.box.scrollTop = top - height;
    else if (top + height > this.box.scrollTop + this.box.clientHeight) {
      this.box.scrollTop = top + 2 * height - this.box.clientHeight;
    }
  }

  #row(node, depth, top) {
    let row = this.drawn.get(node.id);
    if (!row) {
      row = newRow(node);
      this.drawn.set(node.id, row);
      this.sizer.append(row);
    }
    const siblings = node.parent === null ? this.tree.roots : this.tree.childrenOf(node.parent);
    const hasChildren = this.tree.childrenOf(node.id).length > 0;
    const isFolded = this.tree.folded.has(node.id);
    const isSelected = node.id === this.tree.selectedId;
    row.style.transform = `translateY(${top}px)`;
    row.style.setProperty("--depth", Math.min(depth, DEEPEST));
    row.setAttribute("aria-level", depth + 1);
    row.setAttribute("aria-setsize", siblings.length);
    row.setAttribute("aria-posinset", siblings.findIndex((each) => each.id === node.id) + 1);
    row.setAttribute("aria-selected", isSelected);
    if (hasChildren) row.setAttribute("aria-expanded", !isFolded);
    else row.removeAttribute("aria-expanded");
    const [caret, mark, state, words, note] = row.children;
    caret.textContent = hasChildren ? (isFolded ? "▸" : "▾") : "";
    mark.dataset.shape = shapeOf(node);
    put(state, stateOf(node));
    put(words, wordsOf(node));
    put(note, noteOf(node));
    note.title = noteTitle(node);
    note.classList.toggle("bad", node.status === "failed");
  }

  #click(event) {
    const row = event.target.closest(".row");
    if (!row) return;
    const { id } = row.dataset;
    if (event.target.closest(".row-caret") && this.tree.childrenOf(id).length) {
      this.tree.fold(id, !this.tree.folded.has(id));
    } else this.tree.select(id);
  }
}

/** The first words of a row; an empty text says so. */
export function wordsOf(node) {
  return firstLine(node.text).slice(0, SHOWN) || "No text yet";
}

function put(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

function newRow(node) {
  return make(
    "div",
    { class: "row", role: "treeitem", id: `row-${node.id}`, "data-id": node.id },
    make("span", { class: "row-caret", "aria-hidden": "true" }),
    make("span", { class: "mark", "aria-hidden": "true" }),
    make("span", { class: "unseen" }),
    make("span", { class: "row-words one-line" }),
    make("span", { class: "row-note number" }),
  );
}
