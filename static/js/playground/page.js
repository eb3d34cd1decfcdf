// The Playground: prompt, settings of one model or of up to six, Runs and what they said.
import { confirmed, copy, make, toast } from "../dialogs.js";
import { remember } from "../memory.js";
import { post, read } from "../request.js";
import { startWords } from "../starting.js";
import { legend } from "../tokens.js";
import { readAddress, writeAddress } from "./address.js";
import { outputText, requestText, settingsText, vectorsOf, wholeText } from "./copies.js";
import { Output } from "./output.js";
import { logo, Panel } from "./panel.js";
import { bodyOf, CONTROLS, differences, duplicate, faultsOf, fresh, heldBy, inShort, valuesOf } from "./settings.js";
import { startVectorDialog } from "./steer.js";
import { Table } from "./table.js";

const MOST_MODELS = 6;
const STATUS_MS = 2000;
const COUNT_MS = 400;
const by = (id) => document.getElementById(id);
const written = (number) => number.toLocaleString("en-US");
const phone = matchMedia("(max-width: 760px)");
const given = JSON.parse(by("playground-state").textContent);

class Playground {
  constructor() {
    this.models = given.models;
    Object.assign(this, readAddress(location.search, this.#startModel()));
    this.at = 0;
    this.refusals = this.columns.map(() => new Map());
    this.counts = new Map();
    this.outputs = [];
    this.menuRun = null;
    this.panel = new Panel(this.models, (name) => this.#changed(name));
    this.table = new Table(this, given.runs);
    this.prompt = by("prompt");
    // What was typed before this script ran stays.
    this.prompt.value ||= localStorage.getItem("playground.draft") ?? "";
    by("legend").replaceWith(legend());
    this.#listen();
    this.panel.show(this.values);
    this.#refresh();
    this.#grow();
    // The newest Run stands above the table, and one that runs is followed again.
    const newest = given.runs[0];
    if (newest) this.show([newest.number]);
    this.#watchModels();
  }

  /** A warm model when there is one, else the default. */
  #startModel() {
    const warm = this.models.filter((model) => model.warm);
    return (warm.find((model) => model.default) ?? warm[0] ?? this.models.find((model) => model.default)).id;
  }

  get values() {
    return this.columns[this.at];
  }

  get isBusy() {
    return this.outputs.some((output) => !output.run.refusal && output.isLive) || this.isStarting === true;
  }

  model(id) {
    return this.models.find((model) => model.id === id) ?? null;
  }

  #listen() {
    by("single").addEventListener("click", () => this.#view(false));
    by("compare").addEventListener("click", () => this.#view(true));
    by("run").addEventListener("click", () => this.start());
    by("stop").addEventListener("click", () => this.stop());
    by("reset").addEventListener("click", () => this.#reset());
    by("add-model").addEventListener("click", () => this.#add(fresh(this.#startModel())));
    by("add-vector").addEventListener("click", () => startVectorDialog(this.model(this.values.model), (vector) => this.#addVector(vector)));
    by("heatmap").checked = this.heatmap;
    by("heatmap").addEventListener("change", (event) => {
      this.heatmap = event.target.checked;
      this.#refresh();
      for (const output of this.outputs) output.draw();
    });
    for (const id of ["settings-toggle", "settings-close"]) by(id).addEventListener("click", () => this.#toggleSettings());
    by("compare-runs").addEventListener("click", () => this.show([...this.table.chosen].sort((a, b) => a - b)));
    by("run-menu").addEventListener("toggle", () => this.#openedMenu());
    by("run-menu").addEventListener("click", (event) => {
      const item = event.target.closest("[data-run-does]");
      if (item) this.act(item.dataset.runDoes, this.menuRun);
    });
    by("copy-menu").addEventListener("click", (event) => {
      const item = event.target.closest("[data-copy]");
      if (item) copy(item.dataset.copy === "text" ? outputText(this.menuRun) : wholeText(this.menuRun));
    });
    by("export-menu").addEventListener("click", (event) => {
      const item = event.target.closest("[data-format]");
      if (item) this.#export(item.dataset.format);
    });
    document.addEventListener("click", (event) => {
      const button = event.target.closest("[data-export]");
      if (button) this.exportScope = button.dataset.export;
    });
    this.prompt.addEventListener("input", () => this.#typed());
    this.prompt.addEventListener("keydown", (event) => {
      if (event.key === "Tab" && !event.shiftKey && this.prompt.value === "") {
        event.preventDefault();
        this.prompt.value = this.prompt.placeholder;
        this.#typed();
      }
    });
    by("settings").addEventListener("keydown", (event) => {
      const isOver = event.key === "Escape" && phone.matches && by("play").dataset.sheet === "open";
      if (isOver && !document.querySelector("[popover]:popover-open, dialog[open]")) this.#toggleSettings();
    });
    document.addEventListener("keydown", (event) => {
      if (event.key === "Enter" && (event.ctrlKey || event.metaKey) && !document.querySelector("dialog[open]")) {
        event.preventDefault();
        if (!by("run").disabled) this.start();
      }
    });
  }

  #typed() {
    localStorage.setItem("playground.draft", this.prompt.value);
    by("prompt-fault").hidden = true;
    for (const refusals of this.refusals) refusals.delete("prompt");
    this.#grow();
    this.#refresh();
  }

  #grow() {
    this.prompt.style.height = "auto";
    this.prompt.style.height = `${this.prompt.scrollHeight + 2}px`;
  }

  #changed(name) {
    this.refusals[this.at].delete(name);
    if (name === "model") this.refusals[this.at].clear();
    this.#refresh();
  }

  #addVector(vector) {
    this.values.vectors.push(vector);
    this.panel.showVectors();
    this.#changed("vectors");
  }

  #reset() {
    this.columns[this.at] = fresh(this.#startModel());
    this.refusals[this.at].clear();
    this.panel.show(this.values);
    this.#refresh();
  }

  #toggleSettings() {
    const play = by("play");
    if (phone.matches) {
      // On a phone the settings are a sheet over the page, and closed at first.
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

  // Single and Compare.

  #view(isCompare) {
    if (isCompare === this.isCompare) return;
    this.isCompare = isCompare;
    if (isCompare && this.columns.length < 2) {
      // Compare starts with the model that was there and a copy of it.
      this.columns = [this.values, duplicate(this.values)];
      this.refusals = this.columns.map(() => new Map());
    } else if (!isCompare) {
      this.columns = [this.values];
      this.refusals = [this.refusals[this.at]];
    }
    this.#choose(0);
  }

  #choose(at) {
    this.at = at;
    this.panel.show(this.values);
    this.#refresh();
  }

  #add(values) {
    if (this.columns.length >= MOST_MODELS) return;
    this.columns.push(values);
    this.refusals.push(new Map());
    this.#choose(this.columns.length - 1);
  }

  #remove(at) {
    this.columns.splice(at, 1);
    this.refusals.splice(at, 1);
    this.#choose(Math.min(this.at, this.columns.length - 1));
  }

  #drawColumns() {
    by("models-part").hidden = !this.isCompare;
    by("single").setAttribute("aria-pressed", String(!this.isCompare));
    by("compare").setAttribute("aria-pressed", String(this.isCompare));
    by("add-model").disabled = this.columns.length >= MOST_MODELS;
    if (!this.isCompare) return;
    const focused = document.activeElement?.id;
    by("columns").replaceChildren(...this.columns.map((values, at) => this.#columnRow(values, at)));
    if (focused?.startsWith("column-")) by(focused)?.focus();
  }

  #columnRow(values, at) {
    const model = this.model(values.model);
    const faults = this.#faults(at).size;
    const button = (text, does, label) =>
      make("button", { type: "button", class: "plain", text, id: `column-${does}-${at}`, "aria-label": `${text} of model ${at + 1}`, ...label });
    const change = button("Settings", "settings", { "aria-pressed": String(at === this.at), onclick: () => this.#choose(at) });
    const double = button("Duplicate", "duplicate", { "aria-label": `Duplicate model ${at + 1}`, disabled: this.columns.length >= MOST_MODELS, onclick: () => this.#add(duplicate(values)) });
    const remove = button("Remove", "remove", { "aria-label": `Remove model ${at + 1}`, disabled: this.columns.length < 2, onclick: () => this.#remove(at) });
    return make(
      "li",
      { "aria-current": at === this.at ? "true" : null },
      make("div", { class: "model", title: values.model }, ...(model ? [logo(model), model.label] : [values.model])),
      make("div", { class: "number small quiet", text: inShort(bodyOf(values)).join(" · ") }),
      faults ? make("div", { class: "fault", text: faults === 1 ? "One setting is out of range." : `${faults} settings are out of range.` }) : null,
      make("div", { class: "actions" }, change, double, remove),
    );
  }

  // What the settings say together: faults, tokens, the address.

  #countKey(values) {
    return JSON.stringify([values.model, values.add_special_tokens, this.prompt.value]);
  }

  #promptTokens(values) {
    return this.prompt.value === "" ? 0 : (this.counts.get(this.#countKey(values)) ?? null);
  }

  #faults(at) {
    const values = this.columns[at];
    const faults = faultsOf(values, this.model(values.model), this.#promptTokens(values));
    for (const [name, words] of this.refusals[at]) if (name !== "prompt" && !faults.has(name)) faults.set(name, words);
    return faults;
  }

  #refresh() {
    this.panel.mark(this.#faults(this.at));
    this.#drawColumns();
    this.#buttons();
    this.#holds();
    this.#address();
    for (const output of this.outputs) output.showDifference();
    clearTimeout(this.counting);
    this.counting = setTimeout(() => this.#count(), COUNT_MS);
  }

  #buttons() {
    const run = by("run");
    const isOut = this.columns.some((_, at) => [...this.#faults(at).keys()].some((name) => !this.refusals[at].has(name)));
    run.disabled = this.isStarting === true || isOut || this.prompt.value === "";
    run.firstElementChild.textContent = this.isCompare ? "Run all" : "Run";
    const live = this.outputs.filter((output) => !output.run.refusal && output.isLive);
    by("stop").disabled = !live.length;
    by("stop").textContent = this.isCompare || live.length > 1 ? "Stop all" : "Stop";
    for (const button of document.querySelectorAll("[data-restore]")) button.disabled = this.isBusy;
  }

  #holds() {
    const held = this.columns.map((values) => heldBy(values, this.#promptTokens(values)));
    const whole = held.includes(null) || this.prompt.value === "" ? null : held.reduce((a, b) => a + b, 0);
    by("holds").textContent = whole === null ? "" : `holds ${written(whole)} tokens of ${written(given.left)}`;
  }

  #address() {
    const address = writeAddress(this);
    history.replaceState(null, "", address);
    localStorage.setItem("playground.address", address);
    document.dispatchEvent(new CustomEvent("playground:address"));
  }

  async #count() {
    const wanted = this.columns.filter((values) => this.prompt.value !== "" && this.#promptTokens(values) === null && this.model(values.model));
    for (const values of new Map(wanted.map((each) => [this.#countKey(each), each])).values()) {
      const key = this.#countKey(values);
      try {
        const { tokens } = await post("/playground/tokens", { json: { model: values.model, prompt: this.prompt.value, add_special_tokens: values.add_special_tokens } });
        if (this.counts.size > 100) this.counts.clear();
        this.counts.set(key, tokens);
      } catch {
        return;
      }
      if (key === this.#countKey(this.values)) this.panel.mark(this.#faults(this.at));
      this.#buttons();
      this.#holds();
    }
  }

  // Runs.

  async start() {
    const prompt = this.prompt.value;
    this.isStarting = true;
    this.#buttons();
    try {
      const { results } = await post("/playground/runs", { json: { runs: this.columns.map((values) => bodyOf(values, prompt)) } });
      this.#started(results);
    } catch (fault) {
      by("prompt-fault").textContent = fault.message;
      by("prompt-fault").hidden = false;
    } finally {
      this.isStarting = false;
      this.#buttons();
    }
  }

  /** Show what started, and in its own place why something did not. */
  #started(results) {
    const runs = results.map((result, at) => result.run ?? { refusal: result.error, column: { ...this.columns[at] } });
    for (const [at, result] of results.entries()) {
      this.refusals[at].clear();
      const { error } = result;
      if (error?.param) this.refusals[at].set(CONTROLS[error.param] ?? error.param, error.message);
    }
    this.table.put(...runs.filter((run) => !run.refusal));
    this.#display(runs);
    this.#refresh();
  }

  /** Go on from another token in a new Run. */
  async branch(run, choice, place, token) {
    try {
      const { run: made } = await post(`/playground/runs/${run.number}/branch`, { json: { choice, place, token } });
      this.table.put(made);
      this.#display([made]);
    } catch (fault) {
      toast(fault.message);
    }
  }

  async stop() {
    const live = this.outputs.filter((output) => !output.run.refusal && output.isLive);
    await Promise.all(live.map((output) => this.act("stop", output.run)));
  }

  /** Show these Runs side by side. */
  async show(numbers) {
    const runs = await Promise.all(numbers.map((number) => this.table.find(number) ?? this.whole(number)));
    this.#display(runs);
  }

  isShown(number) {
    return this.outputs.some((output) => output.run.number === number);
  }

  #display(runs) {
    for (const output of this.outputs) output.close();
    this.outputs = [];
    this.outputs = runs.map((run) => new Output(this, { ...run }));
    by("outputs").replaceChildren(...this.outputs.map((output) => output.box));
    by("outputs").dataset.count = String(Math.min(3, runs.length));
    by("output-head").hidden = !runs.length;
    by("export").hidden = runs.every((run) => run.refusal);
    this.table.draw();
    this.#buttons();
  }

  whole(number) {
    return read(`/playground/runs/${number}`);
  }

  /** A Run in view was read as a whole. */
  loaded(output) {
    const { run } = output;
    if (!this.outputs.includes(output)) return;
    this.table.put({ ...run, choices: undefined });
    this.#buttons();
    if (run.left !== undefined) {
      given.left = run.left;
      this.#holds();
    }
    // How many tokens match is known once all of them are here.
    const first = this.outputs[0];
    if (output === first) for (const other of this.outputs.slice(1)) if (other.run.choices) other.draw();
  }

  differences(run) {
    return differences(bodyOf(this.values), run.request).concat(this.values.model === run.model ? [] : [`model ${this.model(this.values.model)?.label ?? this.values.model}`]);
  }

  /** The other Runs in view, the first of them first. */
  othersOf(run) {
    return this.outputs.map((output) => output.run).filter((other) => !other.refusal && other.number !== run.number);
  }

  /** How many first tokens match the first Run's in view. */
  matching(run, choice) {
    const first = this.outputs[0]?.run;
    if (!first || first.number === run.number || first.prompt !== run.prompt) return "";
    const [theirs, mine] = [first.choices?.[0]?.tokens, choice.tokens];
    if (!theirs?.length || !mine?.length) return "";
    let same = 0;
    while (same < mine.length && same < theirs.length && mine[same].text === theirs[same].text) same++;
    return `the first ${same} tokens match Run ${first.number}`;
  }

  chooses(run) {
    this.menuRun = this.outputs.find((output) => output.run.number === run.number)?.run ?? run;
  }

  #openedMenu() {
    const hasText = Boolean(this.menuRun?.text || this.menuRun?.choices?.some((choice) => choice.text));
    by("run-menu").querySelector('[data-run-does="copy-output"]').hidden = !hasText;
  }

  async act(does, run) {
    const acts = {
      show: () => this.show([run.number]),
      stop: () => post(`/playground/runs/${run.number}/stop`),
      use: async () => this.#use(await this.whole(run.number)),
      "copy-settings": async () => copy(settingsText(await this.whole(run.number)), "Settings copied"),
      "copy-prompt": async () => copy((await this.whole(run.number)).prompt, "Prompt copied"),
      "copy-output": async () => copy(outputText(await this.whole(run.number)), "Output copied"),
      "copy-request": async () => copy(requestText(await this.whole(run.number), given.api), "Request copied"),
      delete: () => this.#delete(run),
      loom: async () => location.assign((await post(`/playground/runs/${run.number}/loom`)).path),
    };
    try {
      await acts[does]();
    } catch (fault) {
      toast(fault.message);
    }
  }

  #use(run) {
    this.columns[this.at] = valuesOf({ ...run.request, model: run.model }, vectorsOf(run));
    this.refusals[this.at].clear();
    this.prompt.value = run.prompt;
    this.panel.show(this.values);
    this.#typed();
  }

  async #delete(run) {
    const text = "Its text, tokens and Activations go, and cannot come back.";
    if (!(await confirmed(`Delete Run ${run.number}?`, text, "Delete run"))) return;
    await post(`/playground/runs/${run.number}/delete`);
    const rest = this.outputs.filter((output) => output.run.number !== run.number).map((output) => output.run);
    this.table.remove(run.number);
    if (rest.length !== this.outputs.length) this.#display(rest);
  }

  /** Put a comparison back as it was, and start nothing. */
  async restore(comparison) {
    const rows = this.table.rows.filter((row) => row.comparison === comparison).sort((a, b) => a.number - b.number);
    const runs = await Promise.all(rows.map((row) => this.whole(row.number)));
    this.isCompare = true;
    this.columns = runs.map((run) => valuesOf({ ...run.request, model: run.model }, vectorsOf(run)));
    this.refusals = this.columns.map(() => new Map());
    this.prompt.value = runs[0].prompt;
    this.at = 0;
    this.panel.show(this.values);
    this.#typed();
    this.#display(runs);
  }

  #export(format) {
    const numbers = {
      view: () => this.outputs.filter((output) => !output.run.refusal).map((output) => output.run.number),
      chosen: () => [...this.table.chosen],
      all: () => [],
    }[this.exportScope]();
    const query = new URLSearchParams({ format });
    if (this.exportScope !== "all") query.set("runs", numbers.sort((a, b) => a - b).join(","));
    make("a", { href: `/playground/export?${query}`, download: true }).click();
  }

  // Models: warm or not, and how far a start is.

  waitingFor(run) {
    const model = this.model(run.model);
    const start = model && startWords(model);
    return start ?? (run.status === "waiting" ? "Waiting for its turn" : "Reading the prompt");
  }

  async #watchModels() {
    const isWaiting = this.outputs.some((output) => !output.run.refusal && output.isLive && !output.texts.size);
    if (isWaiting || this.models.some((model) => model.stage)) {
      try {
        const { models } = await read("/playground/models");
        for (const news of models) Object.assign(this.model(news.id) ?? {}, news);
        this.panel.warmth();
        for (const output of this.outputs) if (!output.run.refusal) output.wait.textContent = this.waitingFor(output.run);
      } catch {
        // The next look comes anyway; the Runs themselves say when the line is broken.
      }
    }
    setTimeout(() => this.#watchModels(), STATUS_MS);
  }
}

new Playground();
