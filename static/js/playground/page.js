// The Playground: prompt, settings of one model or of up to six, Runs and what they said.
import { refusalParts } from "../refusals.js";
import { post, read } from "../request.js";
import { legend } from "../tokens.js";
import { Acts } from "./acts.js";
import { readAddress, writeAddress } from "./address.js";
import { drawColumns, MOST_MODELS } from "./columns.js";
import { matching } from "./comparing.js";
import { vectorsOf } from "./copies.js";
import { Counts } from "./counts.js";
import { startModel, waitingFor, watchModels } from "./models.js";
import { Output } from "./output.js";
import { Panel } from "./panel.js";
import { bodyOf, CONTROLS, differences, duplicate, faultsOf, fresh, heldBy, valuesOf } from "./settings.js";
import { startSheet } from "./sheet.js";
import { startVectorDialog } from "./steer.js";
import { Table } from "./table.js";

const COUNT_MS = 400;
const by = (id) => document.getElementById(id);
const written = (number) => number.toLocaleString("en-US");
const given = JSON.parse(by("playground-state").textContent);

class Playground {
  constructor() {
    this.models = given.models;
    Object.assign(this, readAddress(location.search, startModel(this.models)));
    this.at = 0;
    this.refusals = this.columns.map(() => new Map());
    this.counts = new Counts();
    this.outputs = [];
    this.acts = new Acts(this, given.api);
    this.panel = new Panel(this.models, (name) => this.#changed(name));
    this.table = new Table(this, given.runs);
    this.prompt = by("prompt");
    // What was typed before this script ran stays.
    this.prompt.value ||= localStorage.getItem("playground.draft") ?? "";
    by("legend").replaceWith(legend());
    this.#listen();
    startSheet();
    this.panel.show(this.values);
    this.#refresh();
    this.#grow();
    // The newest Run stands above the table, and one that runs is followed again.
    const newest = given.runs[0];
    if (newest) this.show([newest.number]);
    watchModels(
      this.models,
      () => this.live.some((output) => !output.texts.size),
      () => this.#warmth(),
    );
  }

  get values() {
    return this.columns[this.at];
  }

  get isBusy() {
    return this.live.length > 0 || this.isStarting === true;
  }

  /** What is in view and still waits or grows. */
  get live() {
    return this.outputs.filter((output) => !output.run.refusal && output.isLive);
  }

  get numbersInView() {
    return this.outputs.filter((output) => !output.run.refusal).map((output) => output.run.number);
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
    by("add-model").addEventListener("click", () => this.add(fresh(startModel(this.models))));
    by("add-vector").addEventListener("click", () => startVectorDialog(this.models, this.model(this.values.model), (vector) => this.#addVector(vector)));
    by("heatmap").checked = this.heatmap;
    by("heatmap").addEventListener("change", (event) => {
      this.heatmap = event.target.checked;
      this.#refresh();
      for (const output of this.outputs) output.draw();
    });
    by("compare-runs").addEventListener("click", () => this.show([...this.table.chosen].sort((a, b) => a - b)));
    this.prompt.addEventListener("input", () => this.#typed());
    this.prompt.addEventListener("keydown", (event) => {
      if (event.key === "Tab" && !event.shiftKey && this.prompt.value === "") {
        event.preventDefault();
        this.prompt.value = this.prompt.placeholder;
        this.#typed();
      }
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
    this.columns[this.at] = fresh(startModel(this.models));
    this.refusals[this.at].clear();
    this.panel.show(this.values);
    this.#refresh();
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
    this.choose(0);
  }

  choose(at) {
    this.at = at;
    this.panel.show(this.values);
    this.#refresh();
  }

  add(values) {
    if (this.columns.length >= MOST_MODELS) return;
    this.columns.push(values);
    this.refusals.push(new Map());
    this.choose(this.columns.length - 1);
  }

  remove(at) {
    this.columns.splice(at, 1);
    this.refusals.splice(at, 1);
    this.choose(Math.min(this.at, this.columns.length - 1));
  }

  #drawColumns() {
    by("models-part").hidden = !this.isCompare;
    by("single").setAttribute("aria-pressed", String(!this.isCompare));
    by("compare").setAttribute("aria-pressed", String(this.isCompare));
    by("add-model").disabled = this.columns.length >= MOST_MODELS;
    if (this.isCompare) drawColumns(this, (at) => this.#faults(at));
  }

  // What the settings say together: faults, tokens, the address.

  #promptTokens(values) {
    return this.counts.of(values, this.prompt.value);
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

  /** The words of the first fault that keeps `Run` from running; a refusal of the server does not. */
  #hindrance() {
    for (const at of this.columns.keys()) {
      for (const [name, words] of this.#faults(at)) if (!this.refusals[at].has(name)) return words;
    }
    return null;
  }

  #buttons() {
    const run = by("run");
    run.disabled = this.isStarting === true || this.#hindrance() !== null || this.prompt.value === "";
    run.firstElementChild.textContent = this.isCompare ? "Run all" : "Run";
    const { live } = this;
    by("stop").disabled = !live.length;
    by("stop").textContent = this.isCompare || live.length > 1 ? "Stop all" : "Stop";
    for (const button of document.querySelectorAll("[data-restore]")) button.disabled = this.isBusy;
  }

  /** What the Runs hold, or why there can be none: on a phone the settings that say so are closed. */
  #holds() {
    const hindrance = this.#hindrance();
    by("holds").classList.toggle("fault", hindrance !== null);
    if (hindrance !== null) {
      by("holds").textContent = hindrance;
      return;
    }
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
    const served = this.columns.filter((values) => this.model(values.model));
    await this.counts.ask(served, this.prompt.value, () => {
      this.panel.mark(this.#faults(this.at));
      this.#buttons();
      this.#holds();
    });
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
      by("prompt-fault").replaceChildren(...refusalParts(fault));
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
      this.outputs.find((output) => output.run.number === run.number)?.refuse(fault);
    }
  }

  async stop() {
    await Promise.all(this.live.map((output) => this.act("stop", output.run)));
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

  matching(run, choice) {
    return matching(this.outputs[0]?.run, run, choice);
  }

  /** Say whose menu opens: what is in view is whole, a row of the table is not. */
  chooses(run) {
    this.acts.chooses(this.outputs.find((output) => output.run.number === run.number)?.run ?? run);
  }

  act(does, run) {
    return this.acts.act(does, run);
  }

  /** Put the settings and the prompt of a Run into the form. */
  use(run) {
    this.columns[this.at] = valuesOf({ ...run.request, model: run.model }, vectorsOf(run));
    this.refusals[this.at].clear();
    this.prompt.value = run.prompt;
    this.panel.show(this.values);
    this.#typed();
  }

  /** A Run was deleted: it leaves the table and the view. */
  removed(number) {
    const rest = this.outputs.filter((output) => output.run.number !== number).map((output) => output.run);
    this.table.remove(number);
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

  waitingFor(run) {
    return waitingFor(run, this.model(run.model));
  }

  #warmth() {
    this.panel.warmth();
    for (const output of this.outputs) if (!output.run.refusal) output.wait.textContent = this.waitingFor(output.run);
  }
}

new Playground();
