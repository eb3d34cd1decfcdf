// The Loom page: one Loom's tree, the text of the path that is read, and what grows next.
import { copy, download, toast } from "../dialogs.js";
import { remember } from "../memory.js";
import { refusalParts } from "../refusals.js";
import { post, read } from "../request.js";
import { Changes } from "./changes.js";
import { Graph } from "./graph.js";
import { startKeys } from "./keys.js";
import { follow } from "./live.js";
import { nameRow, startList } from "./looms.js";
import { Picture } from "./map.js";
import { Rows } from "./rows.js";
import { Settings } from "./settings.js";
import { watchStart } from "./starting.js";
import { Text } from "./text.js";
import { Tree } from "./tree.js";

const LOOK_MS = 800;
const byId = (id) => document.getElementById(id);
const page = byId("loom");
const path = `/loom/${page.dataset.loom}`;
const tree = new Tree();
const settings = new Settings(byId("branch-form"));
const buttons = Object.fromEntries(
  [...document.querySelectorAll("[data-does]")].map((button) => [button.dataset.does, button]),
);

const text = new Text(
  Object.fromEntries(
    ["above", "own", "empty", "fault", "facts", "origin", "legend", "likeliest"].map((name) => [
      name,
      byId(`text-${name}`),
    ]),
  ),
  tree,
  {
    path,
    model: () => settings.model,
    takes: (node, token) =>
      changes.obstacle("sibling")
        ? null
        : (entry) => changes.goOn(node, token, entry).catch((fault) => toast(fault.message)),
  },
);
const changes = new Changes({ path, tree, took, refused: () => {} });
const rows = new Rows(byId("rows"), tree);
const graph = new Graph(byId("graph"), tree, {
  in: byId("zoom-in"),
  out: byId("zoom-out"),
  fit: byId("zoom-fit"),
});
new Picture(byId("map"), tree);
const live = follow(path, Number(page.dataset.revision), {
  grew: (nodes) => tree.update(nodes),
  changed: again,
  gone: () => location.assign("/loom"),
  lost: (isLost) => {
    byId("line-lost").hidden = !isLost;
  },
});

/** Take a Loom's state, and read another Node where one is named. */
function took(state, reads = null) {
  live.knows(state.revision);
  tree.replace(state.nodes);
  buttons.undo.disabled = !state.can_undo;
  buttons.redo.disabled = !state.can_redo;
  byId("loom-title").textContent = state.title || "Untitled Loom";
  byId("loom-title").title = state.title;
  byId("loom-title").dataset.title = state.title;
  nameRow(state.id, state.title);
  if (reads) tree.select(reads);
}

let reading = null;

/** Read the Loom anew: another tab or program changed it. */
async function again() {
  reading ??= read(`${path}/state`)
    .then((state) => took(state))
    .catch((fault) => toast(fault.message))
    .finally(() => {
      reading = null;
    });
  await reading;
}

async function branch() {
  const node = tree.selected;
  if (buttons.branch.disabled || changes.obstacle("branch") || !settings.check()) return;
  buttons.branch.disabled = true;
  try {
    const state = await post(`${path}/nodes/${node.id}/branch`, { json: settings.body() });
    tree.fold(node.id, false);
    took(state);
    byId("branch-fault").hidden = true;
  } catch (fault) {
    const isMarked = fault.param && settings.refuse(fault.param, fault.message);
    byId("branch-fault").hidden = isMarked;
    byId("branch-fault").replaceChildren(...refusalParts(fault));
  } finally {
    refresh();
  }
}

async function stop() {
  try {
    took(await post(`${path}/stop`, { json: {} }));
  } catch (fault) {
    toast(fault.message);
  }
}

const actions = {
  branch,
  stop,
  edit: () => changes.open("edit"),
  split: () => changes.open("split"),
  sibling: () => changes.open("sibling"),
  root: () => changes.open("root"),
  delete: () => changes.open("delete"),
  undo: () => changes.undo("undo"),
  redo: () => changes.undo("redo"),
  keys: () => byId("keys-dialog").showModal(),
  copy: () => copy(tree.pathText(tree.selectedId)),
  path: () => download("loom-path.txt", tree.pathText(tree.selectedId)),
};

/** Press a button by its key or its click; one that is off does nothing. */
function press(name) {
  if (!buttons[name]?.disabled) actions[name]();
}

for (const [name, button] of Object.entries(buttons)) {
  button.addEventListener("click", (event) => {
    event.preventDefault();
    press(name);
  });
}

/** What can be done with the Node that is read, and why not. */
function refresh() {
  const reasons = new Set();
  for (const name of ["edit", "split", "sibling", "root", "delete"]) {
    const obstacle = changes.obstacle(name);
    buttons[name].disabled = obstacle !== null;
    if (obstacle && /wait|failed/i.test(obstacle)) reasons.add(obstacle);
  }
  const isRoot = tree.selected?.parent === null;
  buttons.root.hidden = !isRoot;
  buttons.sibling.hidden = isRoot;
  byId("why-not").textContent = [...reasons].join(" ");
  buttons.branch.disabled = changes.obstacle("branch") !== null || !settings.check();
  buttons.branch.title = changes.obstacle("branch") ?? "";
  buttons.stop.disabled = !tree.isGrowing;
  holds();
}

/** How many tokens the next Branch holds, beside its button. */
function holds() {
  const held = text.promptTokens === null ? null : settings.held(text.promptTokens);
  byId("holds").textContent = held === null ? "" : `holds ${held.toLocaleString("en-US")} tokens`;
}

let look = null;

/** Keep what is read and folded, so that the next visit opens so. */
function keepLook() {
  clearTimeout(look);
  look = setTimeout(() => {
    const json = { selected: tree.selectedId, folded: [...tree.folded] };
    post(`${path}/look`, { json }).catch(() => {});
  }, LOOK_MS);
}

tree.addEventListener("change", (event) => {
  refresh();
  if (event.detail === "selected") keepLook();
});
document.addEventListener("loom:measured", holds);
byId("branch-form").addEventListener("input", () => {
  refresh();
  text.draw();
});
byId("branch-form").addEventListener("submit", (event) => {
  event.preventDefault();
  press("branch");
});

const phone = matchMedia("(max-width: 760px)");

/** On a phone the settings are a sheet from below. */
function fold() {
  const sheet = byId("loom-settings");
  if (phone.matches) sheet.setAttribute("popover", "auto");
  else sheet.removeAttribute("popover");
}

phone.addEventListener("change", fold);
fold();

for (const name of ["tree", "graph"]) {
  byId(`show-${name}`).addEventListener("click", () => {
    page.dataset.view = name;
    remember("loom-view", name);
    for (const each of ["tree", "graph"]) {
      byId(`show-${each}`).setAttribute("aria-pressed", String(each === name));
    }
    rows.draw();
    graph.draw();
  });
}

const first = JSON.parse(byId("loom-state").textContent);
tree.folded = new Set(first.folded);
settings.fill(first.last);
took(first, first.selected);
watchStart(byId("start-line"), tree);
startKeys(tree, press);
startList(byId("loom-columns"), page.dataset.loom);
