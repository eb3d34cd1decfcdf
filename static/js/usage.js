// Usage: the chart, the day chooser, and numbers that come again every minute.
import uPlot from "../vendor/uPlot.esm.js";
import { startRefresh } from "./refresh.js";

const DAY = 86_400;
const numbers = document.getElementById("numbers");
const refresh = startRefresh(numbers, document.getElementById("stale"));
document.getElementById("refresh").addEventListener("click", refresh);

numbers.addEventListener("htmx:afterSwap", () => {
  document.querySelector("#updated time").textContent = document.getElementById("facts").dataset.read;
  draw();
});

// The day chooser and the two lists.
const filters = document.getElementById("filters");
const [from, to] = ["from", "to"].map((id) => document.getElementById(id));
const apply = document.getElementById("apply");
const fault = document.getElementById("days-fault");

function checkDays() {
  const days = (Date.parse(to.value) - Date.parse(from.value)) / (DAY * 1000) + 1;
  let says = "";
  if (!from.value || !to.value) says = "Choose a first and a last day.";
  else if (days < 1) says = "The last day is before the first.";
  else if (days > Number(apply.dataset.most)) says = `A range has at most ${apply.dataset.most} days.`;
  fault.textContent = says;
  fault.hidden = !says;
  apply.disabled = Boolean(says);
}

from.addEventListener("input", checkDays);
to.addEventListener("input", checkDays);
for (const id of ["key", "model"]) {
  document.getElementById(id).addEventListener("change", () => filters.requestSubmit());
}
filters.addEventListener("submit", (event) => {
  event.preventDefault();
  const query = new URLSearchParams();
  for (const [name, value] of new FormData(filters)) if (value) query.set(name, value);
  location.assign(`/usage?${query}`);
});

// The chart: output tokens stand on input tokens. Its numbers are those of the table below it.
const place = document.getElementById("chart");
const pointed = document.getElementById("pointed");
const whole = new Intl.NumberFormat("en");
let chart = null;
let data = [[], [], []];

function readDays() {
  const first = Date.parse(place.dataset.first) / 1000;
  const last = Date.parse(place.dataset.last) / 1000;
  const known = new Map();
  for (const row of document.querySelectorAll("#days-table tbody tr")) {
    known.set(Date.parse(row.dataset.day) / 1000, [Number(row.dataset.input), Number(row.dataset.output)]);
  }
  const days = [];
  for (let day = first; day <= last; day += DAY) days.push(day);
  const input = days.map((day) => known.get(day)?.[0] ?? 0);
  const total = days.map((day, i) => input[i] + (known.get(day)?.[1] ?? 0));
  return [days, total, input];
}

const colour = (name) => {
  const probe = document.createElement("span");
  probe.style.color = `var(--${name})`;
  place.append(probe);
  const found = getComputedStyle(probe).color;
  probe.remove();
  return found;
};

function options() {
  const axis = {
    stroke: colour("second"),
    grid: { stroke: colour("line"), width: 1 },
    ticks: { show: false },
    font: "11px ui-sans-serif, system-ui, sans-serif",
  };
  const bars = uPlot.paths.bars({ size: [0.7, 48] });
  const short = new Intl.NumberFormat("en", { notation: "compact" });
  return {
    width: place.clientWidth,
    height: 200,
    tzDate: (seconds) => uPlot.tzDate(new Date(seconds * 1000), "Etc/UTC"),
    // Its own bounds for one day alone would be years apart.
    scales: { x: { range: () => [data[0][0] - DAY / 2, data[0].at(-1) + DAY / 2] }, y: { range: (u, min, max) => [0, max || 1] } },
    axes: [
      { ...axis, grid: { show: false }, size: 28, values: [[DAY, "{D} {MMM}", null, null, null, null, null, null, 1]], incrs: [1, 2, 7, 14, 28, 56].map((n) => n * DAY) },
      { ...axis, size: 56, values: (u, ticks) => ticks.map((tick) => short.format(tick)) },
    ],
    series: [
      {},
      { label: "Output tokens", fill: colour("accent"), width: 0, paths: bars, points: { show: false } },
      { label: "Input tokens", fill: colour("line-strong"), width: 0, paths: bars, points: { show: false } },
    ],
    cursor: { y: false, drag: { x: false, y: false }, points: { show: false } },
    hooks: { setCursor: [(u) => tell(u.cursor.idx)] },
  };
}

function tell(index) {
  if (index === null || index === undefined) return;
  const [days, total, input] = data;
  const day = new Date(days[index] * 1000).toISOString().slice(0, 10);
  pointed.textContent = `${day}: ${whole.format(input[index])} input tokens, ${whole.format(total[index] - input[index])} output tokens`;
}

function draw() {
  data = readDays();
  if (chart) chart.setData(data);
  else chart = new uPlot(options(), data, place);
}

function redraw() {
  chart?.destroy();
  chart = null;
  draw();
}

place.addEventListener("keydown", (event) => {
  const last = data[0].length - 1;
  const now = chart.cursor.idx;
  const to = {
    ArrowRight: Math.min(last, (now ?? -1) + 1),
    ArrowLeft: Math.max(0, (now ?? last + 1) - 1),
    Home: 0,
    End: last,
  }[event.key];
  if (to === undefined) return;
  event.preventDefault();
  chart.setCursor({ left: chart.valToPos(data[0][to], "x"), top: 0 });
});

draw();
new ResizeObserver(() => chart?.setSize({ width: place.clientWidth, height: 200 })).observe(place);
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
