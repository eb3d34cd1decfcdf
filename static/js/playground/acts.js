// What a person does with a Run that is there: the menus of a row, of a copy and of an export.
import { confirmed, copy, make, toast } from "../dialogs.js";
import { post } from "../request.js";
import { outputText, requestText, settingsText, wholeText } from "./copies.js";

const by = (id) => document.getElementById(id);

export class Acts {
  /** `play` is the page; `api` the API's address, for copies. */
  constructor(play, api) {
    this.play = play;
    this.api = api;
    this.run = null;
    this.exported = null;
    by("run-menu").addEventListener("toggle", () => this.#opened());
    this.#listen("run-menu", "runDoes", (does) => this.act(does, this.run));
    this.#listen("copy-menu", "copy", (what) => copy(what === "text" ? outputText(this.run) : wholeText(this.run)));
    this.#listen("export-menu", "format", (format) => this.#export(format));
    document.addEventListener("click", (event) => {
      const button = event.target.closest("[data-export]");
      if (button) this.exported = button.dataset.export;
    });
  }

  #listen(menu, name, does) {
    by(menu).addEventListener("click", (event) => {
      const item = event.target.closest("[role=menuitem]");
      if (item) does(item.dataset[name]);
    });
  }

  /** Say whose menu opens. */
  chooses(run) {
    this.run = run;
  }

  /** A Run without text has no output to copy. */
  #opened() {
    const hasText = Boolean(this.run?.text || this.run?.choices?.some((choice) => choice.text));
    by("run-menu").querySelector('[data-run-does="copy-output"]').hidden = !hasText;
  }

  async act(does, run) {
    const { play } = this;
    const whole = () => play.whole(run.number);
    const acts = {
      show: () => play.show([run.number]),
      stop: () => post(`/playground/runs/${run.number}/stop`),
      use: async () => play.use(await whole()),
      "copy-settings": async () => copy(settingsText(await whole()), "Settings copied"),
      "copy-prompt": async () => copy((await whole()).prompt, "Prompt copied"),
      "copy-output": async () => copy(outputText(await whole()), "Output copied"),
      "copy-request": async () => copy(requestText(await whole(), this.api), "Request copied"),
      delete: () => this.#delete(run),
      loom: async () => location.assign((await post(`/playground/runs/${run.number}/loom`)).path),
    };
    try {
      await acts[does]();
    } catch (fault) {
      toast(fault.message);
    }
  }

  async #delete(run) {
    const text = "Its text, tokens and Activations go, and cannot come back.";
    if (!(await confirmed(`Delete Run ${run.number}?`, text, "Delete run"))) return;
    await post(`/playground/runs/${run.number}/delete`);
    this.play.removed(run.number);
  }

  /** Download Runs: those in view, the chosen ones, or all that are kept. */
  #export(format) {
    const numbers = { view: () => this.play.numbersInView, chosen: () => [...this.play.table.chosen], all: () => null }[this.exported]();
    const query = new URLSearchParams({ format });
    if (numbers) query.set("runs", numbers.sort((a, b) => a - b).join(","));
    make("a", { href: `/playground/export?${query}`, download: true }).click();
  }
}
