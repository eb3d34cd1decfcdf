// The start of a Loom: from a prompt, or from a file.
import { post } from "../request.js";
import { startList } from "./looms.js";

const byId = (id) => document.getElementById(id);
const prompt = byId("prompt");

prompt.addEventListener("keydown", (event) => {
  if (event.key !== "Tab" || event.shiftKey || prompt.value) return;
  event.preventDefault();
  prompt.value = prompt.placeholder;
});

function say(name, message) {
  const fault = byId(`${name}-fault`);
  fault.textContent = message ?? "";
  fault.hidden = !message;
}

function start(name, form, body) {
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    const button = form.querySelector("button");
    button.disabled = true;
    say(name, null);
    try {
      const { id } = await body();
      location.assign(`/loom/${id}`);
    } catch (fault) {
      say(name, fault.message);
      button.disabled = false;
    }
  });
}

start("prompt", byId("start-form"), () => post("/loom/make", { json: { prompt: prompt.value } }));
start("file", byId("import-form"), async () => {
  const [file] = byId("file").files;
  if (!file) throw new Error("Choose a file first.");
  const form = new FormData();
  form.append("file", file);
  return post("/loom/import", { form });
});
startList(byId("loom-columns"), null);
