// The map above the tree: each Branch as wide as its share of what its siblings drew, the path that
// is read darkest. It repeats what the tree says, so it is a picture alone.

const COLUMNS = 12;
const WIDEST = 20;
const THINNEST = 1;

/** How likely a Node's text was beside its siblings: shares of each parent add up to its own. */
export function shares(tree) {
  const share = new Map();
  for (const [node] of tree.walk()) {
    const siblings = node.parent === null ? tree.roots : tree.childrenOf(node.parent);
    const weight = (each) => Math.exp(each.mean ?? meanOf(siblings));
    const all = siblings.reduce((sum, each) => sum + weight(each), 0);
    share.set(node.id, ((share.get(node.parent) ?? 1) * weight(node)) / all);
  }
  return share;
}

/** A text that was written has no probability: it counts as much as its siblings do on average. */
function meanOf(siblings) {
  const known = siblings.filter((each) => each.mean !== null);
  return known.length ? known.reduce((sum, each) => sum + each.mean, 0) / known.length : 0;
}

export class Picture {
  constructor(canvas, tree) {
    this.canvas = canvas;
    this.tree = tree;
    tree.addEventListener("change", () => this.#soon());
    new ResizeObserver(() => this.#soon()).observe(canvas);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.#soon());
  }

  #soon() {
    this.frame ??= requestAnimationFrame(() => {
      this.frame = null;
      this.draw();
    });
  }

  draw() {
    const { clientWidth: width, clientHeight: height } = this.canvas;
    if (!width || !height) return;
    const dots = devicePixelRatio || 1;
    this.canvas.width = width * dots;
    this.canvas.height = height * dots;
    const pen = this.canvas.getContext("2d");
    pen.scale(dots, dots);
    pen.strokeStyle = getComputedStyle(this.canvas).color;
    pen.lineCap = "butt";
    this.#bands(pen, width, height);
  }

  #bands(pen, width, height) {
    const share = shares(this.tree);
    const onPath = new Set(this.tree.path(this.tree.selectedId).map((node) => node.id));
    const deepest = Math.max(2, ...[...this.tree.walk()].map(([, depth]) => depth));
    const step = width / Math.min(deepest, COLUMNS);
    const place = new Map();
    const next = new Map();
    for (const [node, depth] of this.tree.walk()) {
      const from = place.get(node.parent);
      const begin = next.get(node.parent) ?? (from ? from.top : 0);
      const own = share.get(node.id) * height;
      next.set(node.parent, begin + own);
      const here = { x: depth * step, top: begin, y: begin + own / 2 };
      place.set(node.id, here);
      if (!from || depth > COLUMNS) continue;
      pen.globalAlpha = onPath.has(node.id) ? 0.8 : 0.3;
      pen.lineWidth = Math.max(THINNEST, Math.min(WIDEST, own * 0.6));
      pen.beginPath();
      pen.moveTo(from.x, from.y);
      pen.bezierCurveTo((from.x + here.x) / 2, from.y, (from.x + here.x) / 2, here.y, here.x, here.y);
      pen.stroke();
    }
  }
}
