// One Run on the page: its facts, its text as it grows and then as tokens, and what was read.
import { make } from "../dialogs.js";
import { refusalParts } from "../refusals.js";
import { drawTokens, likeliest, marked } from "../tokens.js";
import { logo } from "./panel.js";
import { follow } from "./follow.js";
import { showNorms } from "./norms.js";
import { differences, inShort } from "./settings.js";

const written = (number) => number.toLocaleString("en-US");
const LIVE = new Set(["waiting", "running"]);

export class Output {
  /**
   * `play` is the page: it reads Runs, knows the models, and does what the buttons ask for.
   * `run` is a Run as the table has it, or `{refusal, column}` for one that could not start.
   */
  constructor(play, run) {
    this.play = play;
    this.run = run;
    this.texts = new Map();
    this.box = make("article", { class: "run" });
    this.draw();
    if (run.refusal) return;
    if (this.isLive) this.#follow();
    else this.load();
  }

  get isLive() {
    return LIVE.has(this.run.status);
  }

  close() {
    this.unfollow?.();
    this.box.remove();
  }

  #follow() {
    const { number } = this.run;
    this.unfollow = follow(number, {
      grew: (news) => this.#grew(news),
      began: () => {
        this.texts.clear();
        this.body.replaceChildren();
      },
      ended: () => this.load(),
      lost: (isLost) => {
        this.line.hidden = !isLost;
      },
    });
  }

  #grew(news) {
    this.run.status = news.state === "queued" ? "waiting" : "running";
    if (news.choices.length) this.wait.hidden = true;
    else this.wait.textContent = this.play.waitingFor(this.run);
    for (const { index, text } of news.choices) {
      this.texts.set(index, (this.texts.get(index) ?? "") + text);
      const place = this.#place(index);
      place.replaceChildren(...marked(this.texts.get(index)));
    }
  }

  /** The element that a choice's text grows in. */
  #place(index) {
    let place = this.body.querySelector(`[data-choice="${index}"] .own`);
    if (!place) {
      this.body.append(this.#choice(index, ""));
      place = this.body.querySelector(`[data-choice="${index}"] .own`);
    }
    return place;
  }

  /** Read the whole Run and show it. */
  async load() {
    try {
      this.run = await this.play.whole(this.run.number);
    } catch (fault) {
      this.fault.textContent = fault.message;
      this.fault.hidden = false;
      return;
    }
    this.draw();
    if (this.isLive) this.#follow();
    this.play.loaded(this);
  }

  draw() {
    const { run } = this;
    this.line = make("p", { class: "small warn", role: "status", text: "The line to the server is broken. The Run goes on; this page follows it again by itself.", hidden: true });
    this.fault = make("p", { class: "fault", role: "alert", hidden: true });
    this.body = make("div", { class: "choices" });
    this.wait = make("p", { class: "waiting small", role: "status", hidden: true });
    if (run.refusal) {
      this.#refused();
      return;
    }
    this.wait.hidden = !this.isLive || this.texts.size > 0;
    this.wait.textContent = this.play.waitingFor(run);
    this.box.replaceChildren(this.#head(), this.wait, this.line, this.fault, this.body);
    if (run.choices) this.#choices();
    else for (const [index, text] of this.texts) this.#place(index).replaceChildren(...marked(text));
    if (run.error) this.#failed(run.error);
  }

  #refused() {
    const { refusal, column } = this.run;
    const model = this.play.model(column.model);
    const title = make("h2", {}, ...(model ? [logo(model), model.label] : [column.model]));
    this.box.replaceChildren(make("header", { class: "run-head" }, title), this.fault);
    this.#failed(refusal);
  }

  /** Say why something cannot be, and where more tokens can be asked for. */
  refuse(error) {
    this.fault.hidden = false;
    this.fault.replaceChildren(...refusalParts(error));
  }

  #failed(error) {
    this.refuse(error);
    if (!this.run.refusal && !this.run.usage) this.fault.append(" Nothing was charged.");
  }

  #head() {
    const { run, play } = this;
    const model = play.model(run.model);
    const title = make("h2", {}, make("span", { class: "number", text: `Run ${run.number}` }), make("span", { class: "model", title: run.model }, ...(model ? [logo(model), model.label] : [run.model])));
    const said = this.facts().flatMap((fact, at) => [at ? " · " : "", make("span", { text: fact })]);
    const facts = make("p", { class: "facts number small quiet" }, ...said);
    const act = (text, does, extra = {}) => make("button", { type: "button", class: "plain", text, onclick: () => play.act(does, run), ...extra });
    const use = act("Use these settings", "use");
    this.differ = make("span", { class: "small quiet differ" });
    const actions = make("div", { class: "actions" });
    if (this.isLive) actions.append(act("Stop", "stop"));
    if (run.choices?.some((choice) => choice.text)) {
      const copy = make("button", { type: "button", class: "plain", text: "Copy", "aria-haspopup": "menu", popovertarget: "copy-menu", id: `copy-${run.number}`, onclick: () => play.chooses(run) });
      actions.append(copy);
    }
    actions.append(use);
    if (run.choices && !this.isLive) actions.append(act("Open in Loom", "loom"));
    actions.append(this.differ);
    this.showDifference();
    return make("header", { class: "run-head" }, title, facts, actions);
  }

  /** How the settings on the screen differ from this Run's. */
  showDifference() {
    if (!this.differ || this.run.refusal) return;
    const words = this.play.differences(this.run);
    this.differ.textContent = words.length ? `on screen: ${words.join(", ")}` : "";
  }

  facts() {
    const { run } = this;
    const facts = [];
    if (run.usage) facts.push(`${written(run.usage.prompt_tokens)} input tokens`, `${written(run.usage.completion_tokens)} output tokens`);
    if (run.seconds !== null && run.seconds !== undefined) facts.push(`${run.seconds.toFixed(2)} s`);
    const others = this.play.othersOf(run);
    const words = others.length ? differences(run.request, others[0].request) : inShort(run.request);
    if (others.length && others[0].model !== run.model) words.push(`unlike Run ${others[0].number}: the model`);
    facts.push(...words);
    if (run.status_label !== "Completed") facts.push(run.status_label);
    return facts;
  }

  #choice(index, prompt) {
    const many = this.run.request.n > 1;
    const text = make("p", { class: "manuscript" }, make("span", { class: "quiet above", text: prompt }), make("span", { class: "own" }));
    return make(
      "section",
      { class: "choice", "data-choice": index },
      many ? make("h3", { class: "label", text: `Choice ${index + 1}` }) : null,
      text,
      make("div", { class: "likely-place" }),
      make("p", { class: "ending small quiet" }),
    );
  }

  #choices() {
    const { run, play } = this;
    for (const choice of run.choices) {
      const part = this.#choice(choice.index, "");
      this.body.append(part);
      const own = part.querySelector(".own");
      if (choice.tokens?.length) this.#tokens(part, own, choice);
      else own.replaceChildren(...marked(choice.text));
      part.querySelector(".ending").textContent = endOf(choice, run);
      const same = play.matching(run, choice);
      if (same) part.querySelector(".ending").append(` · ${same}`);
    }
    if (run.activations) {
      const box = make("section", { class: "norms-box", "aria-label": "Activations" });
      this.body.append(box);
      showNorms(box, run);
    } else if (run.request.output_residual_stream && !this.isLive && run.status === "completed") {
      this.body.append(make("p", { class: "small quiet", text: "The Activations of this Run are gone: they are kept for 7 days." }));
    }
  }

  #tokens(part, own, choice) {
    const place = part.querySelector(".likely-place");
    let open = null;
    const show = drawTokens(own, choice.text, choice.tokens, {
      heat: this.play.heatmap,
      opens: (at) => {
        open = at === open ? null : at;
        show(open);
        place.replaceChildren();
        if (open === null) return;
        const takes = this.run.can_branch ? (entry) => this.play.branch(this.run, choice.index, open, entry.id) : null;
        // Only a token whose id is known can be sent as it is.
        const can = (entry) => entry.id !== null;
        place.append(likeliest(choice.tokens[open], { takes, can, takesLabel: "Go on in a new Run with" }));
      },
    });
    place.addEventListener("keydown", (event) => {
      if (event.key !== "Escape") return;
      own.querySelectorAll(".token")[open]?.focus();
      open = null;
      show(null);
      place.replaceChildren();
    });
  }
}

/** How a choice ended, in words. */
function endOf(choice, run) {
  if (choice.finish_reason === "length") return "Ended by its length.";
  if (choice.finish_reason === "stop" && typeof choice.stop_reason === "string") return `Ended by the stop text ${JSON.stringify(choice.stop_reason)}.`;
  if (choice.finish_reason === "stop") return "Ended by the model itself.";
  return run.status === "stopped" ? "Stopped." : "";
}
