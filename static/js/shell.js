// What surrounds every page: navigation, menus, dialogs by name, the notice, the state of the line.
import { copy } from "./dialogs.js";
import { belongTo, forgetUser, remember } from "./memory.js";
import { startMenus } from "./menus.js";
import { note } from "./errors.js";
import { toSignIn } from "./request.js";

const root = document.documentElement;
const phone = matchMedia("(max-width: 760px)");
const toggle = document.getElementById("nav-toggle");
const nav = document.getElementById("nav");

const isOpen = () => (phone.matches ? root.dataset.sheet === "open" : root.dataset.nav !== "closed");

function openNav(open) {
  if (phone.matches) {
    if (open) root.dataset.sheet = "open";
    else delete root.dataset.sheet;
    if (open) nav.querySelector("[aria-current], a")?.focus();
    else if (nav.contains(document.activeElement)) toggle.focus();
  } else {
    root.dataset.nav = open ? "open" : "closed";
    remember("nav", open ? "open" : "closed");
  }
  showNav();
}

function showNav() {
  toggle.setAttribute("aria-expanded", String(isOpen()));
}

toggle.addEventListener("click", () => openNav(!isOpen()));
phone.addEventListener("change", showNav);
showNav();

document.addEventListener("keydown", (event) => {
  const isB = event.key.toLowerCase() === "b" && (event.ctrlKey || event.metaKey);
  if (isB && !event.shiftKey && !event.altKey) {
    event.preventDefault();
    openNav(!isOpen());
  } else if (event.key === "Escape" && phone.matches && isOpen()) openNav(false);
});
document.addEventListener("click", (event) => {
  const isOutside = !nav.contains(event.target) && !toggle.contains(event.target);
  if (phone.matches && isOpen() && isOutside && !event.target.closest(".menu")) openNav(false);
});

// The Playground opens as this browser left it.
const playground = nav.querySelector('[data-place="/playground"]');
function lastAddress() {
  const last = localStorage.getItem("playground.address");
  if (last?.startsWith("?")) playground.href = `/playground${last}`;
}

belongTo(document.body.dataset.user);
lastAddress();
addEventListener("storage", lastAddress);
document.addEventListener("playground:address", lastAddress);
document.addEventListener("submit", (event) => {
  if (event.target.matches("[data-forgets]")) forgetUser();
});

document.addEventListener("click", (event) => {
  const opener = event.target.closest?.("[data-opens]");
  if (opener) document.getElementById(opener.dataset.opens)?.showModal();
  if (event.target.closest?.("[data-closes]")) event.target.closest("dialog").close();
  const copier = event.target.closest?.("[data-copies]");
  if (copier) copy(document.getElementById(copier.dataset.copies).textContent);
});

document.getElementById("notice-close")?.addEventListener("click", () => {
  remember("notice", "closed", null);
  document.getElementById("notice").remove();
});

const offline = document.getElementById("offline");
const line = () => {
  offline.hidden = navigator.onLine;
};
addEventListener("online", line);
addEventListener("offline", line);
line();

// Reads that htmx makes by itself: the sign-in after an ended session, and errors for feedback.
document.addEventListener("htmx:beforeSwap", (event) => {
  const { xhr } = event.detail;
  const door = xhr.getResponseHeader("X-Sign-In");
  if (xhr.status === 401 && door) toSignIn(door);
});
document.addEventListener("htmx:responseError", (event) => {
  const { xhr, pathInfo } = event.detail;
  note(`GET ${pathInfo.requestPath}: ${xhr.status}`, xhr.getResponseHeader("X-Request-Id"));
});

startMenus();
