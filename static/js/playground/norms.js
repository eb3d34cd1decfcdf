// What was read of the residual stream: the norm of each Layer at each token, as a grid to look at,
// as a table, and as files (A-246, U-10).
import { download, make } from "../dialogs.js";
import { read } from "../request.js";
import { named } from "../tokens.js";

const MOST_ROWS = 24;
const CELL = 12;
const written = (number) => number.toLocaleString("en-US");
const exact = (number) => number.toPrecision(6);

/** Show the Activations of a Run in a box. */
export async function showNorms(box, run) {
  box.append(make("p", { class: "waiting small", text: "Reading the norms" }));
  let norms;
  try {
    norms = await read(`/playground/runs/${run.number}/norms`);
  } catch (fault) {
    box.replaceChildren(make("p", { class: "fault", text: fault.message }));
    return;
  }
  const says = make("p", { class: "number small quiet norm-says", "aria-live": "polite", text: "\u00a0" });
  box.replaceChildren(
    make("div", { class: "norms-head" }, make("h3", { class: "label", text: "Residual norm · Layer × token" }), files(run, norms)),
    grid(norms, says),
    says,
    make("p", { class: "small quiet", text: `Shade: each Layer from its smallest to its largest norm, the first token left out. The numbers are kept until ${norms.expires}.` }),
    table(norms),
  );
}

function files(run, norms) {
  return make(
    "div",
    { class: "actions" },
    make("button", { type: "button", class: "plain", text: "Norms as CSV", onclick: () => saveNorms(run, norms) }),
    make("a", { class: "button plain", href: `/playground/runs/${run.number}/activations.npy`, download: true, text: "Numbers as .npy" }),
  );
}

function saveNorms(run, norms) {
  const quoted = (text) => `"${text.replaceAll('"', '""')}"`;
  const lines = [["layer", ...norms.tokens.map((token, place) => quoted(`${place} ${named(token)}`))].join(",")];
  for (const [row, layer] of norms.layers.entries()) lines.push([layer, ...norms.norms[row]].join(","));
  download(`run-${run.number}-norms.csv`, `${lines.join("\n")}\n`, "text/csv;charset=utf-8");
}

/** How dark a norm is within its Layer, from 0 to 1; the first token is off the scale. */
function shades(row) {
  const others = row.length > 1 ? row.slice(1) : row;
  const least = Math.min(...others);
  const most = Math.max(...others);
  const span = Math.log(most / least) || 1;
  return row.map((norm) => Math.min(1, Math.max(0, Math.log(norm / least) / span)));
}

function grid(norms, says) {
  const every = Math.max(1, Math.ceil(norms.layers.length / MOST_ROWS));
  const rows = norms.layers.map((layer, row) => ({ layer, row })).filter(({ row }) => (norms.layers.length - 1 - row) % every === 0).reverse();
  const canvas = make("canvas", { class: "norms", tabindex: 0, role: "group", "aria-roledescription": "grid", "aria-label": "Residual norm of each Layer at each token. Arrow keys move." });
  let at = { x: 0, y: 0 };
  const draw = () => paint(canvas, norms, rows, at);
  const tell = () => {
    const { layer, row } = rows[at.y];
    says.textContent = `Layer ${layer}, token ${at.x} ${named(norms.tokens[at.x])}: ${exact(norms.norms[row][at.x])}`;
    draw();
  };
  const move = (event) => {
    const area = canvas.getBoundingClientRect();
    const x = Math.floor(((event.clientX - area.left - LABEL) / (area.width - LABEL)) * norms.tokens.length);
    const y = Math.floor((event.clientY - area.top) / CELL);
    if (x < 0 || x >= norms.tokens.length || y < 0 || y >= rows.length) return;
    at = { x, y };
    tell();
  };
  canvas.addEventListener("pointermove", move);
  canvas.addEventListener("click", move);
  canvas.addEventListener("focus", tell);
  canvas.addEventListener("keydown", (event) => {
    const step = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] }[event.key];
    if (!step) return;
    event.preventDefault();
    at = {
      x: Math.min(norms.tokens.length - 1, Math.max(0, at.x + step[0])),
      y: Math.min(rows.length - 1, Math.max(0, at.y + step[1])),
    };
    tell();
  });
  canvas.height = rows.length * CELL;
  new ResizeObserver(draw).observe(canvas);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
  return canvas;
}

const LABEL = 36;

function paint(canvas, norms, rows, at) {
  const scale = devicePixelRatio || 1;
  const width = canvas.clientWidth;
  if (!width) return;
  canvas.width = width * scale;
  canvas.height = rows.length * CELL * scale;
  canvas.style.height = `${rows.length * CELL}px`;
  const pen = canvas.getContext("2d");
  const styles = getComputedStyle(canvas);
  pen.scale(scale, scale);
  pen.font = `9px ${styles.fontFamily}`;
  pen.textBaseline = "middle";
  const cell = (width - LABEL) / norms.tokens.length;
  const gap = cell > 4 ? 1 : 0;
  for (const [y, { layer, row }] of rows.entries()) {
    pen.globalAlpha = 1;
    pen.fillStyle = styles.color;
    pen.fillText(`L${layer}`, 0, y * CELL + CELL / 2);
    pen.fillStyle = styles.accentColor;
    for (const [x, shade] of shades(norms.norms[row]).entries()) {
      pen.globalAlpha = 0.1 + 0.9 * shade;
      pen.fillRect(LABEL + x * cell, y * CELL, Math.max(1, cell - gap), CELL - 1);
    }
  }
  if (document.activeElement === canvas) {
    pen.globalAlpha = 1;
    pen.strokeStyle = styles.color;
    pen.strokeRect(LABEL + at.x * cell, at.y * CELL, Math.max(2, cell - gap), CELL - 1);
  }
}

function table(norms) {
  const head = ["Layer", "Input tokens", "Output tokens", "Hidden size", "Norm of the first token", "Median norm", "Largest norm of the others"];
  const rows = norms.layers.map((layer, row) => {
    const others = norms.norms[row].slice(1).sort((a, b) => a - b);
    const cells = [layer, written(norms.input_tokens), written(norms.output_tokens), written(norms.hidden), exact(norms.norms[row][0])];
    cells.push(others.length ? exact(others[others.length >> 1]) : "–", others.length ? exact(others.at(-1)) : "–");
    return make("tr", {}, ...cells.map((text) => make("td", { class: "number", text: String(text) })));
  });
  return make(
    "details",
    {},
    make("summary", { text: "View as table" }),
    make(
      "div",
      { class: "scrolls", tabindex: 0 },
      make("table", {}, make("thead", {}, make("tr", {}, ...head.map((text) => make("th", { scope: "col", class: "number", text })))), make("tbody", {}, ...rows)),
    ),
  );
}
