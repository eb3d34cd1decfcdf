// Menus: a button with `popovertarget` opens an element of class `menu`. Arrow keys move in it.
const GAP = 4;

/** Put an opened menu beside the button that opened it, inside the window. */
function place(menu, button) {
  const at = button.getBoundingClientRect();
  const own = menu.getBoundingClientRect();
  const below = at.bottom + GAP;
  const above = at.top - GAP - own.height;
  const top = below + own.height <= innerHeight || above < 0 ? below : above;
  // A menu opens towards the middle of the window.
  const left = at.left + at.width / 2 < innerWidth / 2 ? at.left : at.right - own.width;
  menu.style.top = `${Math.max(GAP, Math.min(top, innerHeight - own.height - GAP))}px`;
  menu.style.left = `${Math.max(GAP, Math.min(left, innerWidth - own.width - GAP))}px`;
}

const items = (menu) => [...menu.querySelectorAll("[role^=menuitem]:not([disabled])")];

/** The button that opened a menu; several may share one, as the rows of a table do. */
function openerOf(event) {
  const buttons = [...document.querySelectorAll(`[popovertarget="${event.target.id}"]`)];
  return event.source ?? buttons.find((button) => button === document.activeElement) ?? buttons[0];
}

function opened(event) {
  const menu = event.target;
  if (event.newState !== "open" || !menu.classList.contains("menu")) return;
  place(menu, openerOf(event));
  // Until now it could not be seen, so that it does not jump.
  menu.dataset.placed = "";
  items(menu)[0]?.focus();
}

/** The menu that a button has opened, while the focus is still on the button. */
function openedBy(button) {
  const menu = document.getElementById(button.getAttribute?.("popovertarget") ?? "");
  return menu?.matches(".menu:popover-open") ? menu : null;
}

function keys(event) {
  const menu = event.target.closest?.(".menu") ?? openedBy(event.target);
  if (!menu) return;
  const all = items(menu);
  const now = all.indexOf(document.activeElement);
  const to = { ArrowDown: now + 1, ArrowUp: now - 1, Home: 0, End: all.length - 1 }[event.key];
  if (to !== undefined) {
    event.preventDefault();
    all.at(to % all.length)?.focus();
  } else if (event.key === "Tab") menu.hidePopover();
}

export function startMenus() {
  document.addEventListener("beforetoggle", (event) => delete event.target.dataset.placed, true);
  document.addEventListener("toggle", opened, true);
  document.addEventListener("keydown", keys);
  document.addEventListener("click", (event) => {
    const item = event.target.closest?.(".menu [role^=menuitem]");
    if (item) item.closest(".menu").hidePopover();
  });
}
