// The settings' form: shows the settings of one model and says when a person changes them.
import { make } from "../dialogs.js";
import { markFault } from "../ranges.js";
import { saveVector } from "./saved.js";
import { DEFAULTS } from "./settings.js";
import { wordsOfBody } from "./vectors.js";

const CONTROL_IDS = { stop: "stop-texts" };
const idOf = (name) => CONTROL_IDS[name] ?? name;
const FAULTS = [...Object.keys(DEFAULTS), "model", "vectors"];

export class Panel {
  /** `models` as the server tells of them; `changed(name)` after each change by a person. */
  constructor(models, changed) {
    this.models = models;
    this.changed = changed;
    this.form = document.getElementById("form");
    this.slider = document.getElementById("temperature-slider");
    this.button = document.getElementById("model-button");
    this.values = null;
    this.form.addEventListener("input", (event) => this.#typed(event.target));
    this.form.addEventListener("submit", (event) => event.preventDefault());
    document.getElementById("model-list").append(...models.map((model) => this.#choice(model)));
  }

  #choice(model) {
    const choose = () => {
      this.values.model = model.id;
      this.#showModel();
      this.changed("model");
    };
    return make(
      "button",
      { type: "button", role: "menuitem", title: model.id, "data-model": model.id, onclick: choose },
      logo(model),
      model.label,
      make("span", { class: "warmth small quiet" }),
    );
  }

  #typed(control) {
    if (control === this.slider) {
      this.#control("temperature").value = control.value;
      this.values.temperature = control.value;
      this.changed("temperature");
      return;
    }
    const name = control.name;
    if (!(name in DEFAULTS)) return;
    this.values[name] = control.type === "checkbox" ? control.checked : control.value;
    if (name === "temperature") this.#slide();
    this.changed(name);
  }

  #control(name) {
    return document.getElementById(idOf(name));
  }

  #slide() {
    const number = Number(this.values.temperature);
    if (Number.isFinite(number)) this.slider.value = String(Math.min(2, Math.max(0, number)));
  }

  #showModel() {
    const model = this.models.find((each) => each.id === this.values.model);
    this.button.title = this.values.model;
    this.button.replaceChildren(...(model ? [logo(model), model.label] : [this.values.model]));
    if (model) this.button.append(make("span", { class: "warmth small quiet" }));
    this.warmth();
  }

  /** Write beside each model whether it is warm. */
  warmth() {
    for (const model of this.models) {
      const shown = [this.form.querySelector(`[data-model="${model.id}"] .warmth`)];
      if (this.values?.model === model.id) shown.push(this.button.querySelector(".warmth"));
      for (const place of shown) if (place) place.textContent = model.warm ? "Warm" : (model.stage ?? "Cold");
    }
  }

  /** Show these settings; what is typed from now on changes them. */
  show(values) {
    this.values = values;
    for (const name of Object.keys(DEFAULTS)) {
      const control = this.#control(name);
      if (control.type === "checkbox") control.checked = values[name];
      else control.value = values[name];
    }
    this.#slide();
    this.#showModel();
    this.showVectors();
  }

  showVectors() {
    const list = document.getElementById("vectors");
    list.replaceChildren(
      ...this.values.vectors.map((vector, place) => {
        const remove = () => {
          this.values.vectors.splice(place, 1);
          this.showVectors();
          this.changed("vectors");
        };
        const save = async () => {
          vector.isSaved = await saveVector(vector, this.values.model);
          this.showVectors();
          document.getElementById("add-vector").focus();
        };
        return make(
          "li",
          {},
          make("span", { class: "one-line", text: vector.name, title: vector.name }),
          make("span", { class: "number small quiet", text: wordsOfBody(vector.body) }),
          make(
            "span",
            { class: "actions" },
            vector.isSaved ? null : make("button", { type: "button", class: "plain", text: "Save", "aria-label": `Save ${vector.name}`, onclick: save }),
            make("button", { type: "button", class: "plain", text: "Remove", "aria-label": `Remove ${vector.name}`, onclick: remove }),
          ),
        );
      }),
    );
  }

  /** Mark the controls at fault: a map from name to words. */
  mark(faults) {
    for (const name of FAULTS) {
      const control = name === "model" ? this.button : this.#control(name);
      if (name === "vectors") {
        const note = document.getElementById("vectors-fault");
        note.textContent = faults.get(name) ?? "";
        note.hidden = !faults.has(name);
      } else if (name === "model") {
        const note = document.getElementById("model-fault");
        note.textContent = faults.get(name) ?? "";
        note.hidden = !faults.has(name);
      } else markFault(control, faults.get(name) ?? null);
    }
    const hidden = document.getElementById("more");
    if ([...hidden.querySelectorAll("[aria-invalid]")].length) hidden.open = true;
  }
}

/** The logo of a model's maker. */
export const logo = (model) => make("img", { src: model.logo, alt: "", width: 14, height: 14 });
