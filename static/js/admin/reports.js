// Reports of the admin: charts that are drawn from their tables, and numbers that come again.
import uPlot from "../../vendor/uPlot.esm.js";

const MINUTE = 60_000;
const numbers = document.getElementById("numbers");
const stale = document.getElementById("stale");
const dark = matchMedia("(prefers-color-scheme: dark)");
const STEPS = [...Array(15).keys()].flatMap((power) => [1, 2, 5].map((step) => step * 10 ** power));
let charts = [];

const colour = (place, name) => {
  const probe = document.createElement("span");
  probe.style.color = `var(--${name})`;
  place.append(probe);
  const found = getComputedStyle(probe).color;
  probe.remove();
  return found;
};

/** Read a table: the words of its first column, and the numbers of the columns that are drawn. */
function read(table, columns) {
  const rows = [...table.tBodies[0].rows];
  return {
    names: rows.map((row) => row.cells[0].textContent),
    labels: columns.map((at) => table.tHead.rows[0].cells[at].textContent),
    texts: columns.map((at) => rows.map((row) => row.cells[at].textContent)),
    values: columns.map((at) => rows.map((row) => Number(row.cells[at].dataset.value))),
  };
}

/** A day without its year, for the axis. */
function brief(name) {
  if (!/^\d{4}-\d\d-\d\d$/.test(name)) return name;
  const day = new Date(`${name}T00:00Z`);
  return day.toLocaleDateString("en-GB", { day: "numeric", month: "short", timeZone: "UTC" });
}

/** Say which colour is what, where there is more than one. */
function legend(place, labels, colours) {
  const list = document.createElement("ul");
  list.className = "report-legend";
  labels.forEach((label, n) => {
    const item = document.createElement("li");
    const mark = document.createElement("span");
    mark.style.background = colours[n % 4];
    item.append(mark, label);
    list.append(item);
  });
  place.append(list);
}

function draw(place) {
  place.replaceChildren();
  const table = document.getElementById(place.dataset.table);
  const told = place.nextElementSibling;
  const found = read(table, place.dataset.columns.split(",").map(Number));
  const colours = ["accent", "bad", "warn", "second"].map((name) => colour(place, name));
  const axis = { stroke: colour(place, "second"), ticks: { show: false }, font: "11px ui-sans-serif, system-ui, sans-serif" };
  const short = new Intl.NumberFormat("en", { notation: "compact" });
  const at = found.names.map((_, index) => index);
  const tell = (index) => {
    if (index === null || index === undefined) return;
    told.textContent = `${found.names[index]}: ${found.labels.map((label, n) => `${label} ${found.texts[n][index]}`).join(", ")}`;
  };
  // What is counted in ones has no line between two of them.
  const whole = found.values.flat().every(Number.isInteger) ? STEPS : undefined;
  const chart = new uPlot(
    {
      width: place.clientWidth,
      height: 200,
      legend: { show: false },
      scales: { x: { time: false, range: () => [-0.5, at.length - 0.5] }, y: { range: (u, low, high) => [0, high || 1] } },
      axes: [
        { ...axis, grid: { show: false }, size: 28, space: 64, incrs: [1, 2, 7, 14, 28, 56], values: (u, ticks) => ticks.map((tick) => brief(found.names[tick] ?? "")) },
        { ...axis, grid: { stroke: colour(place, "line"), width: 1 }, size: 56, incrs: whole, values: (u, ticks) => ticks.map((tick) => short.format(tick)) },
      ],
      series: [
        {},
        ...found.labels.map((label, n) =>
          n === 0
            ? { label, fill: colours[0], width: 0, paths: uPlot.paths.bars({ size: [0.7, 48] }), points: { show: false } }
            : { label, stroke: colours[n % 4], width: 2, dash: n === 1 ? [] : [4, 3], points: { show: false } },
        ),
      ],
      cursor: { y: false, drag: { x: false, y: false }, points: { show: false } },
      hooks: { setCursor: [(u) => tell(u.cursor.idx)] },
    },
    [at, ...found.values],
    place,
  );
  if (found.values.flat().every((value) => value === 0)) told.textContent = "Every number drawn is 0.";
  if (found.labels.length > 1) legend(place, found.labels, colours);
  place.onkeydown = (event) => {
    const last = at.length - 1;
    const now = chart.cursor.idx;
    const to = { ArrowRight: Math.min(last, (now ?? -1) + 1), ArrowLeft: Math.max(0, (now ?? last + 1) - 1), Home: 0, End: last }[event.key];
    if (to === undefined) return;
    event.preventDefault();
    chart.setCursor({ left: chart.valToPos(to, "x"), top: 0 });
  };
  return { place, chart };
}

function drawAll() {
  for (const { chart } of charts) chart.destroy();
  charts = [...document.querySelectorAll(".report-chart")].map(draw);
}

async function refresh() {
  try {
    const answer = await fetch(numbers.dataset.address, { redirect: "error" });
    if (!answer.ok) throw new Error(answer.statusText);
    const html = await answer.text();
    // Who types a reason must not lose it.
    if (numbers.contains(document.activeElement) && document.activeElement.matches("input")) return;
    const unfolded = [...numbers.querySelectorAll("details[open]")].map((each) => each.id);
    numbers.innerHTML = html;
    for (const id of unfolded) document.getElementById(id)?.setAttribute("open", "");
    document.getElementById("read").textContent = document.getElementById("facts").value;
    stale.hidden = true;
    drawAll();
  } catch {
    stale.hidden = false;
  }
}

if (numbers) {
  drawAll();
  document.getElementById("refresh").addEventListener("click", refresh);
  setInterval(refresh, MINUTE);
  new ResizeObserver(() => {
    for (const { place, chart } of charts) chart.setSize({ width: place.clientWidth, height: 200 });
  }).observe(numbers);
  dark.addEventListener("change", drawAll);
  new MutationObserver(drawAll).observe(document.documentElement, { attributeFilter: ["class"] });
}
