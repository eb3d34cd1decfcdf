// The tree as this page knows it: Nodes by id, their order, what is folded and what is read.

/** First words of a Node, as one line. */
export function firstLine(text) {
  return text.replace(/\s+/g, " ").trim();
}

export const isGrowing = (node) => node.status === "queued" || node.status === "running";

export class Tree extends EventTarget {
  constructor() {
    super();
    this.nodes = new Map();
    this.folded = new Set();
    this.selectedId = null;
    this.children = new Map();
    this.roots = [];
  }

  /** Take the whole tree anew. The Node that is read stays, or its nearest living parent is read. */
  replace(nodes) {
    const before = this.selectedId === null ? [] : this.path(this.selectedId).map((node) => node.id);
    this.nodes = new Map(nodes.map((node) => [node.id, node]));
    this.folded = new Set([...this.folded].filter((id) => this.nodes.has(id)));
    this.#index();
    const living = before.reverse().find((id) => this.nodes.has(id));
    this.selectedId = living ?? this.roots[0]?.id ?? null;
    this.#tell("shape");
  }

  /** Take new values of some Nodes, whose places are as they were. */
  update(nodes) {
    const isNew = nodes.some((node) => !this.nodes.has(node.id));
    for (const node of nodes) this.nodes.set(node.id, node);
    if (isNew) this.#index();
    else this.#refresh(nodes);
    this.#tell(isNew ? "shape" : "growth");
  }

  #index() {
    this.children = new Map();
    this.roots = [];
    const inOrder = [...this.nodes.values()].sort((one, other) => one.number - other.number);
    for (const node of inOrder) {
      if (node.parent === null) this.roots.push(node);
      else if (this.children.has(node.parent)) this.children.get(node.parent).push(node);
      else this.children.set(node.parent, [node]);
    }
  }

  #refresh(nodes) {
    for (const node of nodes) {
      const siblings = node.parent === null ? this.roots : this.children.get(node.parent);
      siblings[siblings.findIndex((each) => each.id === node.id)] = node;
    }
  }

  get selected() {
    return this.nodes.get(this.selectedId) ?? null;
  }

  childrenOf(id) {
    return this.children.get(id) ?? [];
  }

  /** The Nodes from the root down to one. */
  path(id) {
    const path = [];
    for (let node = this.nodes.get(id); node; node = this.nodes.get(node.parent)) path.unshift(node);
    return path;
  }

  pathText(id) {
    return this.path(id).map((node) => node.text).join("");
  }

  /** Every Node depth first with its depth; what lies under a folded one is left out on demand. */
  *walk({ folds = false } = {}) {
    const waiting = this.roots.map((node) => [node, 0]).reverse();
    while (waiting.length) {
      const [node, depth] = waiting.pop();
      yield [node, depth];
      if (folds && this.folded.has(node.id)) continue;
      const children = this.childrenOf(node.id);
      for (let place = children.length - 1; place >= 0; place--) {
        waiting.push([children[place], depth + 1]);
      }
    }
  }

  /** A Node and all under it. */
  *under(id) {
    const waiting = [id];
    while (waiting.length) {
      const next = waiting.pop();
      yield this.nodes.get(next);
      waiting.push(...this.childrenOf(next).map((node) => node.id));
    }
  }

  /** Whether a Node or one under it grows. */
  growsUnder(id) {
    for (const node of this.under(id)) if (isGrowing(node)) return true;
    return false;
  }

  get isGrowing() {
    return [...this.nodes.values()].some(isGrowing);
  }

  select(id) {
    if (!this.nodes.has(id)) return;
    for (const node of this.path(id).slice(0, -1)) this.folded.delete(node.id);
    this.selectedId = id;
    this.#tell("selected");
  }

  fold(id, isFolded) {
    if (isFolded && this.childrenOf(id).length) this.folded.add(id);
    else this.folded.delete(id);
    const hidden = this.selectedId !== id && this.path(this.selectedId).some((node) => node.id === id);
    if (isFolded && hidden) this.selectedId = id;
    this.#tell("selected");
  }

  /** The Node that an arrow key leads to from the one that is read. */
  neighbour(key) {
    const rows = [...this.walk({ folds: true })].map(([node]) => node);
    const at = rows.findIndex((node) => node.id === this.selectedId);
    switch (key) {
      case "ArrowUp":
        return rows[at - 1];
      case "ArrowDown":
        return rows[at + 1];
      case "Home":
        return rows[0];
      case "End":
        return rows.at(-1);
      case "ArrowLeft":
        return this.nodes.get(this.selected?.parent);
      default:
        return this.childrenOf(this.selectedId)[0];
    }
  }

  #tell(kind) {
    this.dispatchEvent(new CustomEvent("change", { detail: kind }));
  }
}
