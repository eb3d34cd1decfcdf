// The table of Runs: rows, groups of one `Run all`, boxes, and a row's menu.
import { make } from "../dialogs.js";
import { withoutAddress } from "../refusals.js";
import { logo } from "./panel.js";
import { inShort } from "./settings.js";

const written = (number) => number.toLocaleString("en-US");

export class Table {
  /** `play` is the page; `rows` are Runs, the newest first. */
  constructor(play, rows) {
    this.play = play;
    this.rows = rows;
    this.chosen = new Set();
    this.body = document.querySelector("#runs tbody");
    this.body.addEventListener("change", (event) => this.#ticked(event.target));
    this.body.addEventListener("click", (event) => this.#pressed(event));
    this.draw();
  }

  find(number) {
    return this.rows.find((row) => row.number === number);
  }

  /** Put in what is new or changed. */
  put(...runs) {
    for (const run of runs) {
      const place = this.rows.findIndex((row) => row.number === run.number);
      if (place < 0) this.rows.unshift(run);
      else this.rows[place] = run;
    }
    this.rows.sort((a, b) => b.number - a.number);
    this.draw();
  }

  remove(number) {
    this.rows = this.rows.filter((row) => row.number !== number);
    this.chosen.delete(number);
    this.draw();
    this.#counted();
  }

  #ticked(box) {
    const number = Number(box.value);
    if (box.checked) this.chosen.add(number);
    else this.chosen.delete(number);
    this.#counted();
  }

  #counted() {
    const count = this.chosen.size;
    const compare = document.getElementById("compare-runs");
    compare.textContent = count > 1 ? `Compare ${count} runs` : "Compare runs";
    compare.disabled = count < 2;
    document.getElementById("export-chosen").disabled = count < 1;
  }

  #pressed(event) {
    const restore = event.target.closest("[data-restore]");
    if (restore) {
      this.play.restore(restore.dataset.restore);
      return;
    }
    if (event.target.closest("button, input, a, label")) return;
    const row = event.target.closest("tr[data-run]");
    if (row && getSelection().isCollapsed) this.play.show([Number(row.dataset.run)]);
  }

  draw() {
    const focused = document.activeElement?.id;
    const parts = [];
    let group = null;
    for (const run of this.rows) {
      const others = run.comparison ? this.rows.filter((row) => row.comparison === run.comparison) : [];
      if (run.comparison !== group && others.length > 1) parts.push(this.#groupRow(run.comparison, others));
      group = run.comparison;
      parts.push(this.#row(run, others.length > 1));
    }
    this.body.replaceChildren(...parts);
    if (focused) document.getElementById(focused)?.focus();
    const isEmpty = !this.rows.length;
    document.getElementById("no-runs").hidden = !isEmpty;
    document.getElementById("runs-scroll").hidden = isEmpty;
    document.getElementById("runs-acts").hidden = isEmpty;
  }

  #groupRow(comparison, runs) {
    const numbers = runs.map((run) => run.number).sort((a, b) => a - b);
    const last = numbers.pop();
    const restore = make("button", { type: "button", class: "plain", text: "Restore", id: `restore-${comparison}`, "data-restore": comparison, disabled: this.play.isBusy });
    return make(
      "tr",
      { class: "group" },
      make("td", { colspan: 8, class: "small quiet", text: `Comparison of runs ${numbers.join(", ")} and ${last}` }),
      make("td", { class: "row-menu" }, restore),
    );
  }

  #row(run, isGrouped) {
    const { number } = run;
    const box = make("input", { type: "checkbox", value: number, "aria-label": `Choose Run ${number}`, id: `choose-${number}` });
    box.checked = this.chosen.has(number);
    const model = this.play.model(run.model);
    const menu = make("button", { type: "button", class: "icon", popovertarget: "run-menu", "aria-haspopup": "menu", "aria-label": `Menu of Run ${number}`, id: `menu-${number}`, text: "⋯", onclick: () => this.play.chooses(run) });
    const show = make("button", { type: "button", class: "plain row-number number", id: `show-${number}`, text: String(number), "aria-label": `Show Run ${number}`, onclick: () => this.play.show([number]) });
    const settings = inShort(run.request).join(" · ");
    return make(
      "tr",
      { "data-run": number, class: isGrouped ? "grouped" : null, "aria-current": this.play.isShown(number) ? "true" : null },
      make("td", {}, box),
      make("td", { class: "number" }, show),
      make("td", { class: run.status === "failed" ? "bad" : null, text: run.status_label }),
      make("td", {}, make("span", { class: "model", title: run.model }, ...(model ? [logo(model), model.label] : [run.model]))),
      make("td", { class: "number small quiet one-line run-settings", text: settings, title: settings }),
      make("td", { class: "run-text one-line", text: run.error ? withoutAddress(run.error) : run.text }),
      make("td", { class: "number", text: run.usage ? `${written(run.usage.prompt_tokens)} + ${written(run.usage.completion_tokens)}` : "–" }),
      make("td", { class: "number quiet", text: run.time }),
      make("td", { class: "row-menu" }, menu),
    );
  }
}
