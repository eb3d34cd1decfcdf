// API Keys: dialogs, the menu of a key, and numbers that come again every minute.
import { confirmed, copy, toast } from "./dialogs.js";
import { startRefresh } from "./refresh.js";
import { post } from "./request.js";

const keys = document.getElementById("keys");
const refresh = startRefresh(keys, document.getElementById("stale"));
const form = (name) => document.getElementById(`${name}-form`);

function showFault(which, message) {
  const input = form(which).elements.namedItem("name");
  const fault = document.getElementById(`${which}-fault`);
  fault.textContent = message ?? "";
  fault.hidden = !message;
  if (message) {
    input.setAttribute("aria-invalid", "true");
    input.focus();
  } else input.removeAttribute("aria-invalid");
}

function opened(which, name = "") {
  showFault(which, null);
  const input = form(which).elements.namedItem("name");
  input.value = name;
  document.getElementById(which).showModal();
  input.select();
}

// A new key: its secret is on the page from here until `Done`, and nowhere else.
const shown = document.getElementById("copy-key");
const secret = document.getElementById("secret");
let isCopied = true;

const warn = (event) => event.preventDefault();

function showSecret(value) {
  secret.textContent = value;
  isCopied = false;
  addEventListener("beforeunload", warn);
  shown.showModal();
}

async function forgetSecret() {
  if (!isCopied) {
    const text = "The key is not copied yet, and it is not shown again.";
    if (!(await confirmed("Close without the key?", text, "Close without the key", "Back"))) return;
  }
  removeEventListener("beforeunload", warn);
  isCopied = true;
  secret.textContent = "";
  shown.close();
}

function copied() {
  isCopied = true;
  removeEventListener("beforeunload", warn);
}

document.getElementById("copy-secret").addEventListener("click", async () => {
  await copy(secret.textContent, "Key copied");
  copied();
});
secret.addEventListener("copy", copied);
document.getElementById("done").addEventListener("click", forgetSecret);
shown.addEventListener("cancel", (event) => {
  event.preventDefault();
  forgetSecret();
});

form("new-key").addEventListener("submit", async (event) => {
  event.preventDefault();
  const name = event.target.elements.namedItem("name").value;
  try {
    const made = await post("/api-keys/new", { json: { name } });
    document.getElementById("new-key").close();
    showSecret(made.secret);
    refresh();
  } catch (fault) {
    showFault("new-key", fault.message);
  }
});

let renamed = null;
form("rename-key").addEventListener("submit", async (event) => {
  event.preventDefault();
  const name = event.target.elements.namedItem("name").value;
  try {
    await post(`/api-keys/${renamed}/rename`, { json: { name } });
    document.getElementById("rename-key").close();
    refresh();
  } catch (fault) {
    showFault("rename-key", fault.message);
  }
});

async function change(id, does) {
  try {
    await post(`/api-keys/${id}/${does}`);
  } catch (fault) {
    toast(fault.message);
  }
  refresh();
}

async function choose(menu, does) {
  const { key, name } = menu.dataset;
  if (does === "rename") {
    renamed = key;
    opened("rename-key", name);
  } else if (does === "revoke") {
    const text = `Programs that use “${name}” are refused from now on, and the key cannot come back.`;
    if (await confirmed("Revoke this key?", text, "Revoke key")) change(key, "revoke");
  } else change(key, does);
}

document.addEventListener("click", (event) => {
  if (event.target.closest("[data-new-key]")) opened("new-key");
  const item = event.target.closest("[data-does]");
  if (item) choose(item.closest(".menu"), item.dataset.does);
});
