// How many tokens the prompt has for each model: asked of the server once, and kept.
import { post } from "../request.js";

const KEPT = 100;

export class Counts {
  constructor() {
    this.kept = new Map();
  }

  #key(values, prompt) {
    return JSON.stringify([values.model, values.add_special_tokens, prompt]);
  }

  /** The tokens of a prompt under these settings; null while they are not known. */
  of(values, prompt) {
    return prompt === "" ? 0 : (this.kept.get(this.#key(values, prompt)) ?? null);
  }

  /** Ask for what is not known of these settings; `counted()` after each answer. */
  async ask(columns, prompt, counted) {
    const wanted = new Map();
    for (const values of columns) if (this.of(values, prompt) === null) wanted.set(this.#key(values, prompt), values);
    for (const [key, { model, add_special_tokens }] of wanted) {
      let tokens;
      try {
        ({ tokens } = await post("/playground/tokens", { json: { model, prompt, add_special_tokens } }));
      } catch {
        // The Hold beside the button stays empty; the Run itself is checked by the server.
        return;
      }
      if (this.kept.size > KEPT) this.kept.clear();
      this.kept.set(key, tokens);
      counted();
    }
  }
}
