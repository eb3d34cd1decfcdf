// The column `Your Looms`: it folds away, and each row has a menu that works without opening it.
import { confirmed, toast } from "../dialogs.js";
import { remember } from "../memory.js";
import { post } from "../request.js";

/** Start the column; `here` is the id of the Loom on the page, or null. */
export function startList(column, here) {
  const toggle = document.getElementById("looms-toggle");
  const phone = matchMedia("(max-width: 760px)");
  const show = () => {
    const isOpen = phone.matches
      ? column.dataset.sheet === "open"
      : column.dataset.looms !== "closed";
    toggle.setAttribute("aria-expanded", String(isOpen));
  };
  toggle.addEventListener("click", () => {
    if (phone.matches) column.dataset.sheet = column.dataset.sheet === "open" ? "closed" : "open";
    else {
      column.dataset.looms = column.dataset.looms === "closed" ? "open" : "closed";
      remember("looms", column.dataset.looms);
    }
    show();
  });
  phone.addEventListener("change", show);
  show();
  document.addEventListener("click", (event) => {
    const item = event.target.closest?.("[data-loom-does]");
    if (item) act(item.dataset.loomDoes, item.dataset.loom, item.dataset.title, here);
  });
  startRename(here);
}

/** Show another title in the row of a Loom, as its first Branch gives one. */
export function nameRow(id, title) {
  for (const row of document.querySelectorAll(`[data-loom-row="${id}"]`)) {
    row.title = title || "Untitled Loom";
    row.querySelector("[data-loom-name]").textContent = title || "Untitled Loom";
  }
  for (const item of document.querySelectorAll(`[data-loom="${id}"][data-title]`)) {
    item.dataset.title = title;
  }
}

async function act(what, id, title, here) {
  if (what === "rename") {
    openRename(id, title);
    return;
  }
  if (what === "delete") {
    const isSure = await confirmed(
      "Delete this Loom?",
      `${title || "This Loom"} goes with its prompt and all its Nodes. This cannot be undone.`,
      "Delete Loom",
    );
    if (!isSure) return;
  }
  try {
    await post(`/loom/${id}/${what}`, { json: {} });
    if (what === "delete" && id === here) location.assign("/loom");
    else location.reload();
  } catch (fault) {
    toast(fault.message);
  }
}

const dialog = document.getElementById("rename-dialog");

function openRename(id, title) {
  dialog.dataset.loom = id;
  dialog.querySelector("input").value = title;
  dialog.querySelector(".fault").hidden = true;
  dialog.showModal();
  dialog.querySelector("input").select();
}

function startRename() {
  dialog.querySelector("form").addEventListener("submit", async (event) => {
    event.preventDefault();
    const fault = dialog.querySelector(".fault");
    try {
      const title = dialog.querySelector("input").value;
      await post(`/loom/${dialog.dataset.loom}/rename`, { json: { title } });
      location.reload();
    } catch (refused) {
      fault.textContent = refused.message;
      fault.hidden = false;
    }
  });
}
