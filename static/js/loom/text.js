// The text of the path that is read: what is above in grey, then the Node with its tokens.
import { make } from "../dialogs.js";
import { refusalParts } from "../refusals.js";
import { read } from "../request.js";
import { drawTokens, legend, likeliest, marked } from "../tokens.js";
import { isGrowing } from "./tree.js";

const KEPT = 50;

export class Text {
  constructor(boxes, tree, { path, model, takes }) {
    Object.assign(this, { boxes, tree, path, model, takes });
    this.details = new Map();
    this.open = null;
    boxes.legend.replaceChildren(legend());
    tree.addEventListener("change", () => this.#soon());
  }

  #soon() {
    this.frame ??= requestAnimationFrame(() => {
      this.frame = null;
      this.draw();
    });
  }

  /** The tokens of the path to the Node that is read, once they were counted. */
  get promptTokens() {
    return this.#detail?.path_tokens ?? null;
  }

  get #key() {
    const { selected } = this.tree;
    const above = this.tree.path(selected.id).map((node) => node.changed);
    return `${selected.id} ${Math.max(...above)} ${this.model()}`;
  }

  get #detail() {
    return this.tree.selected ? (this.details.get(this.#key) ?? null) : null;
  }

  draw() {
    const node = this.tree.selected;
    if (!node) return;
    const key = this.#key;
    if (this.shown === key) return;
    this.shown = key;
    this.open = null;
    const above = this.tree.path(node.id).slice(0, -1).map((each) => each.text).join("");
    if (this.boxes.above.textContent !== above) this.boxes.above.textContent = above;
    this.#plain(node);
    this.boxes.likeliest.replaceChildren();
    this.#fault(node);
    this.#facts();
    if (!isGrowing(node)) this.#measure(node, key);
  }

  #plain(node) {
    this.boxes.own.replaceChildren(...marked(node.text));
    this.boxes.own.onclick = this.boxes.own.onkeydown = null;
    this.boxes.legend.hidden = true;
    this.boxes.empty.hidden = node.text !== "" || this.tree.path(node.id).length > 1;
  }

  /** Why a failed Node has no more text than it has. */
  #fault(node) {
    this.boxes.fault.hidden = node.status !== "failed";
    const parts = node.status === "failed" ? refusalParts({ message: node.reason ?? "The Node has failed." }) : [];
    this.boxes.fault.replaceChildren(...parts);
  }

  async #measure(node, key) {
    if (!this.details.has(key)) {
      const model = encodeURIComponent(this.model());
      let detail;
      try {
        detail = await read(`${this.path}/nodes/${node.id}?model=${model}`);
      } catch {
        this.boxes.facts.textContent = "What was measured of this Node could not be read.";
        return;
      }
      this.details.set(key, detail);
      if (this.details.size > KEPT) this.details.delete(this.details.keys().next().value);
    }
    if (this.tree.selected && this.#key === key) this.#measured(node);
  }

  #measured(node) {
    const { tokens } = this.#detail;
    this.#facts();
    if (!tokens?.length) return;
    this.boxes.legend.hidden = false;
    this.showOpen = drawTokens(this.boxes.own, node.text, tokens, {
      opens: (place) => this.#openToken(place === this.open ? null : place),
    });
  }

  #facts() {
    const node = this.tree.selected;
    const detail = this.#detail;
    const nodes = this.tree.path(node.id).length;
    const parts = [`${nodes} ${nodes === 1 ? "Node" : "Nodes"}`];
    if (detail && detail.path_tokens !== null) {
      const count = detail.path_tokens.toLocaleString("en-US");
      parts.push(`${count} tokens of ${detail.context.toLocaleString("en-US")}`);
    }
    this.boxes.facts.textContent = parts.join(" · ");
    this.boxes.origin.textContent = detail ? detail.origin.join(" · ") : "";
    document.dispatchEvent(new CustomEvent("loom:measured"));
  }

  #openToken(place) {
    this.open = place;
    this.showOpen(place);
    this.boxes.likeliest.replaceChildren();
    if (place === null) return;
    const token = this.#detail.tokens[place];
    const node = this.tree.selected;
    const takes = this.takes(node, token);
    const list = likeliest(token, { takes, takesLabel: "Write a sibling that goes on with" });
    list.addEventListener("keydown", (event) => this.#listKeys(event, list));
    this.boxes.likeliest.append(
      make("p", { class: "unseen", role: "status", text: "The likeliest tokens are listed." }),
      list,
    );
  }

  #listKeys(event, list) {
    const buttons = [...list.querySelectorAll("button")];
    const at = buttons.indexOf(document.activeElement);
    const to = { ArrowDown: at + 1, ArrowUp: at - 1, Home: 0, End: buttons.length - 1 }[event.key];
    if (at < 0) return;
    if (to !== undefined) {
      event.preventDefault();
      event.stopPropagation();
      buttons[Math.min(buttons.length - 1, Math.max(0, to))].focus();
    }
  }
}
