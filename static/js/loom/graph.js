// The tree as a graph: a column for each depth, a line from a parent to each child. Scrolling pans.
// Only what is in view is in the page.
import { make } from "../dialogs.js";
import { shapeOf, stateOf } from "./marks.js";
import { wordsOf } from "./rows.js";
import { firstLine } from "./tree.js";

const COLUMN = 208;
const LINE = 34;
const EDGE = 16;
const TURN = 28;
const LEAST = 0.1;
const READABLE = 0.6;
const MOST = 2;
const SVG = "http://www.w3.org/2000/svg";

/** Where each Node stands, in columns and lines: a leaf has a line, a parent the middle of its own. */
export function layOut(tree) {
  const places = new Map();
  let line = 0;
  const order = [...tree.walk()];
  for (const [node, depth] of order) {
    const isLeaf = tree.childrenOf(node.id).length === 0;
    places.set(node.id, { node, x: depth, y: isLeaf ? line++ : null });
  }
  for (const [node] of order.reverse()) {
    const place = places.get(node.id);
    if (place.y !== null) continue;
    const children = tree.childrenOf(node.id);
    const [first, last] = [places.get(children[0].id), places.get(children.at(-1).id)];
    place.y = (first.y + last.y) / 2;
  }
  const width = Math.max(0, ...[...places.values()].map(({ x }) => x + 1));
  return { places, width, height: line };
}

export class Graph {
  constructor(box, tree, buttons) {
    this.box = box;
    this.tree = tree;
    this.zoom = 1;
    this.drawn = new Map();
    this.sizer = box.querySelector(".graph-all");
    this.lines = document.createElementNS(SVG, "svg");
    this.lines.setAttribute("class", "graph-lines");
    this.lines.setAttribute("aria-hidden", "true");
    this.sizer.append(this.lines);
    box.addEventListener("scroll", () => this.#soon(), { passive: true });
    box.addEventListener("click", (event) => {
      const dot = event.target.closest(".graph-node");
      if (dot) tree.select(dot.dataset.id);
    });
    new ResizeObserver(() => this.#soon()).observe(box);
    tree.addEventListener("change", (event) => {
      if (event.detail === "shape") this.layout = null;
      this.#soon(event.detail !== "growth");
    });
    buttons.in.addEventListener("click", () => this.#zoomTo(this.zoom * 1.25));
    buttons.out.addEventListener("click", () => this.#zoomTo(this.zoom / 1.25));
    buttons.fit.addEventListener("click", () => this.fit());
  }

  get isShown() {
    return this.box.offsetParent !== null;
  }

  #soon(follows = false) {
    this.follows ||= follows;
    this.frame ??= requestAnimationFrame(() => {
      this.frame = null;
      this.draw();
    });
  }

  /** Zoom, with what is in the middle of the view kept there. */
  #zoomTo(zoom) {
    const { box } = this;
    const [x, y] = [box.clientWidth / 2, box.clientHeight / 2];
    const wanted = Math.min(MOST, Math.max(LEAST, zoom));
    const ratio = wanted / this.zoom;
    const moved = (from, middle) => (from + middle - EDGE) * ratio + EDGE - middle;
    const [left, top] = [moved(box.scrollLeft, x), moved(box.scrollTop, y)];
    this.zoom = wanted;
    this.draw();
    box.scrollTo(left, top);
    this.draw();
  }

  /** The zoom at which the whole graph is in view. */
  get #whole() {
    const { width, height } = (this.layout ??= layOut(this.tree));
    const across = (this.box.clientWidth - 2 * EDGE) / (width * COLUMN);
    const down = (this.box.clientHeight - 2 * EDGE) / (height * LINE);
    return Math.min(1, across, down);
  }

  /** Bring the whole graph into view, as far as it can be read then. */
  fit() {
    this.#zoomTo(this.#whole);
  }

  draw() {
    if (!this.isShown) return;
    this.layout ??= layOut(this.tree);
    if (!this.isOpened) {
      // At first all of a small graph shows; of a large one, the Node that is read.
      this.isOpened = true;
      if (this.#whole >= READABLE) this.zoom = this.#whole;
    }
    const { places, width, height } = this.layout;
    this.sizer.style.width = `${width * COLUMN * this.zoom + 2 * EDGE}px`;
    this.sizer.style.height = `${height * LINE * this.zoom + 2 * EDGE}px`;
    if (this.follows) this.#bring(places.get(this.tree.selectedId));
    this.follows = false;
    this.box.dataset.size = this.zoom < 0.5 ? "dots" : "words";
    this.#lines(places);
    this.#nodes(places);
  }

  #at({ x, y }) {
    return [EDGE + x * COLUMN * this.zoom, EDGE + (y + 0.5) * LINE * this.zoom];
  }

  /** The window in the graph's own pixels, a column and some lines wider than what is seen. */
  #view() {
    const { scrollLeft, scrollTop, clientWidth, clientHeight } = this.box;
    const more = COLUMN * this.zoom;
    return {
      left: scrollLeft - more,
      top: scrollTop - more,
      right: scrollLeft + clientWidth + more,
      bottom: scrollTop + clientHeight + more,
    };
  }

  #bring(place) {
    if (!place) return;
    const [x, y] = this.#at(place);
    const { scrollLeft, scrollTop, clientWidth, clientHeight } = this.box;
    const own = COLUMN * this.zoom;
    if (x < scrollLeft || x + own > scrollLeft + clientWidth) this.box.scrollLeft = x - clientWidth / 3;
    if (y < scrollTop + LINE || y + LINE > scrollTop + clientHeight) {
      this.box.scrollTop = y - clientHeight / 2;
    }
  }

  #lines(places) {
    const view = this.#view();
    const onPath = new Set(this.tree.path(this.tree.selectedId).map((node) => node.id));
    const [plain, read] = [[], []];
    for (const place of places.values()) {
      const parent = places.get(place.node.parent);
      if (!parent) continue;
      const [fromX, fromY] = this.#at(parent);
      const [toX, toY] = this.#at(place);
      const isSeen =
        Math.max(fromY, toY) >= view.top &&
        Math.min(fromY, toY) <= view.bottom &&
        toX >= view.left &&
        fromX <= view.right;
      if (!isSeen) continue;
      // The line runs behind the parent's words, and turns in the space before the next column.
      const turn = toX - TURN * this.zoom;
      const middle = (turn + toX) / 2;
      const line = `M${fromX} ${fromY}H${turn}C${middle} ${fromY} ${middle} ${toY} ${toX} ${toY}`;
      (onPath.has(place.node.id) ? read : plain).push(line);
    }
    this.lines.replaceChildren(path("graph-line", plain), path("graph-line read", read));
  }

  #nodes(places) {
    const view = this.#view();
    const wanted = new Set();
    for (const place of places.values()) {
      const [x, y] = this.#at(place);
      if (x < view.left || x > view.right || y < view.top || y > view.bottom) continue;
      wanted.add(place.node.id);
      this.#node(place.node.id, x, y);
    }
    for (const [id, dot] of this.drawn) {
      if (!wanted.has(id)) {
        dot.remove();
        this.drawn.delete(id);
      }
    }
    const { selectedId } = this.tree;
    if (this.drawn.has(selectedId)) {
      this.box.setAttribute("aria-activedescendant", `graph-${selectedId}`);
    } else this.box.removeAttribute("aria-activedescendant");
  }

  #node(id, x, y) {
    const node = this.tree.nodes.get(id);
    let dot = this.drawn.get(id);
    if (!dot) {
      dot = make(
        "div",
        { class: "graph-node", role: "treeitem", id: `graph-${id}`, "data-id": id },
        make("span", { class: "mark", "aria-hidden": "true" }),
        make("span", { class: "unseen" }),
        make("span", { class: "graph-words one-line" }),
      );
      this.drawn.set(id, dot);
      this.sizer.append(dot);
    }
    dot.style.transform = `translate(${x}px, ${y}px)`;
    dot.style.setProperty("--zoom", this.zoom);
    dot.setAttribute("aria-selected", id === this.tree.selectedId);
    const [mark, state, words] = dot.children;
    mark.dataset.shape = shapeOf(node);
    state.textContent = stateOf(node);
    words.textContent = wordsOf(node);
    dot.title = firstLine(node.text);
  }
}

function path(name, lines) {
  const element = document.createElementNS(SVG, "path");
  element.setAttribute("class", name);
  element.setAttribute("d", lines.join(""));
  return element;
}
