// The settings beside the desk close and open; on a phone they are a sheet over the page.
import { remember } from "../memory.js";

const by = (id) => document.getElementById(id);
const phone = matchMedia("(max-width: 760px)");

function toggle() {
  const play = by("play");
  if (phone.matches) {
    // The sheet is closed at first, and this is not remembered.
    play.dataset.sheet = play.dataset.sheet === "open" ? "closed" : "open";
    by("settings-toggle").setAttribute("aria-expanded", String(play.dataset.sheet === "open"));
    by(play.dataset.sheet === "open" ? "settings-close" : "settings-toggle").focus();
    return;
  }
  const closed = play.dataset.settings !== "closed";
  play.dataset.settings = closed ? "closed" : "open";
  by("settings-toggle").setAttribute("aria-expanded", String(!closed));
  remember("settings", closed ? "closed" : "open");
}

export function startSheet() {
  for (const id of ["settings-toggle", "settings-close"]) by(id).addEventListener("click", toggle);
  by("settings").addEventListener("keydown", (event) => {
    const isOver = event.key === "Escape" && phone.matches && by("play").dataset.sheet === "open";
    if (isOver && !document.querySelector("[popover]:popover-open, dialog[open]")) toggle();
  });
}
