// A text as its tokens: the heatmap, tokens as buttons, and the likeliest tokens at a place.
//
// A token here is `{text, id, logprob, begin, end, top}`: `begin` and `end` are code points of the
// whole text, `top` is a list of `{text, id, logprob}`. What is drawn is the text itself, cut at
// those places, so that a copy is the text and nothing else.
import { make } from "./dialogs.js";

const BANDS = [
  [0.9, "90% or more"],
  [0.5, "50% to 90%"],
  [0.1, "10% to 50%"],
  [0.01, "1% to 10%"],
  [0, "Under 1%"],
];

/** The band of a probability: 0 is the likeliest. */
export function bandOf(logprob) {
  if (logprob === null) return null;
  const probability = Math.exp(logprob);
  return BANDS.findIndex(([least]) => probability >= least);
}

/** A probability as people read it. */
export function percent(logprob) {
  const share = Math.exp(logprob) * 100;
  if (share === 0) return "0%";
  if (share < 0.01) return "< 0.01%";
  return `${share.toFixed(share < 1 ? 2 : 1)}%`;
}

/** The legend of the bands. */
export function legend() {
  const items = BANDS.map(([, name], band) =>
    make("li", {}, make("span", { class: "heat", "data-band": band, "aria-hidden": "true" }), name),
  );
  return make("ul", { class: "legend small quiet", "aria-label": "Heatmap" }, ...items);
}

/** A text with marks for line breaks and tabs that no copy takes along. */
export function marked(text) {
  const parts = [];
  for (const part of text.split(/(\n|\t)/)) {
    if (part === "\n" || part === "\t") {
      parts.push(make("span", { class: part === "\n" ? "mark-line" : "mark-tab", text: part }));
    } else if (part) parts.push(part);
  }
  return parts;
}

/** What cannot be seen, and spaces that could be taken for plain ones. */
const UNSEEN = /[\p{Cc}\p{Cf}\p{Cn}\p{Co}\p{Zl}\p{Zp}]|(?! )\p{Zs}/gu;

/** How a token is named where it stands alone: spaces and ends are seen, and so is what is not. */
export function named(text) {
  const code = (mark) => `\\u{${mark.codePointAt(0).toString(16)}}`;
  return JSON.stringify(text).replace(UNSEEN, code);
}

/**
 * Draw a text as tokens into a box. Arrow keys move between them, Enter or a click opens one.
 *
 * Returns a function that shows which token is open, or none.
 */
export function drawTokens(box, text, tokens, { heat = true, opens }) {
  const points = Array.from(text);
  const parts = [];
  const buttons = [];
  let at = 0;
  for (const [place, token] of tokens.entries()) {
    if (token.begin > at) parts.push(...marked(points.slice(at, token.begin).join("")));
    buttons.push(tokenButton(points, token, place, heat));
    parts.push(buttons.at(-1));
    at = Math.max(at, token.end);
  }
  if (at < points.length) parts.push(...marked(points.slice(at).join("")));
  box.replaceChildren(...parts);
  if (buttons.length) buttons[0].tabIndex = 0;
  box.onkeydown = (event) => moved(event, buttons, opens);
  box.onclick = (event) => {
    const button = event.target.closest(".token");
    // A drag over the text selects it, and is no press.
    if (button && getSelection().isCollapsed) opens(Number(button.dataset.place));
  };
  return (open) => {
    for (const [place, button] of buttons.entries()) {
      button.setAttribute("aria-expanded", place === open);
    }
    if (open !== null) rove(buttons, buttons[open]);
  };
}

function tokenButton(points, token, place, heat) {
  const text = points.slice(token.begin, token.end).join("");
  const likely = token.logprob === null ? "" : `, ${percent(token.logprob)}`;
  return make(
    "span",
    {
      class: heat ? "token heat" : "token",
      role: "button",
      tabindex: -1,
      "data-place": place,
      "data-band": heat ? bandOf(token.logprob) : null,
      "aria-expanded": "false",
      "aria-label": `${named(token.text)}${likely}`,
      title: `${named(token.text)}${likely}`,
    },
    ...(text ? marked(text) : [make("span", { class: "mark-part", "aria-hidden": "true" })]),
  );
}

function rove(buttons, to) {
  for (const button of buttons) button.tabIndex = button === to ? 0 : -1;
}

function moved(event, buttons, opens) {
  const at = buttons.indexOf(event.target.closest(".token"));
  if (at < 0) return;
  const to = {
    ArrowRight: at + 1,
    ArrowDown: at + 1,
    ArrowLeft: at - 1,
    ArrowUp: at - 1,
    Home: 0,
    End: buttons.length - 1,
  }[event.key];
  if (to !== undefined) {
    event.preventDefault();
    event.stopPropagation();
    const button = buttons[Math.min(buttons.length - 1, Math.max(0, to))];
    rove(buttons, button);
    button.focus();
  } else if (event.key === "Enter" || event.key === " ") {
    event.preventDefault();
    opens(at);
  }
}

/**
 * The likeliest tokens at a place, each a button: `takes(entry)` is called with the one that is
 * pressed, of those that `can(entry)` lets; without `takes` they are a list to read.
 */
export function likeliest(token, { takes = null, can = () => true, takesLabel = "Go on with" } = {}) {
  const own = token.top.some((entry) => entry.id === token.id && entry.text === token.text);
  const entries = own || token.logprob === null ? token.top : [token, ...token.top];
  const most = Math.max(...entries.map((entry) => Math.exp(entry.logprob)), 1e-9);
  const rows = entries.map((entry) => {
    const isOwn = entry.id === token.id && entry.text === token.text;
    const bar = make("span", { class: "likely-bar", "aria-hidden": "true" }, make("i"));
    bar.firstChild.style.width = `${(100 * Math.exp(entry.logprob)) / most}%`;
    const cells = [
      make("span", { class: "likely-text", text: named(entry.text) }),
      bar,
      make("span", { class: "likely-share", text: percent(entry.logprob) }),
      make("span", { class: "likely-id quiet", text: entry.id === null ? "" : `id ${entry.id}` }),
    ];
    const row =
      takes && !isOwn && can(entry)
        ? make("button", { type: "button", class: "likely", title: `${takesLabel} ${named(entry.text)}`, onclick: () => takes(entry) }, ...cells)
        : make("span", { class: "likely" }, ...cells);
    return make("li", { "data-own": isOwn || null, "aria-current": isOwn ? "true" : null }, row);
  });
  return make("ul", { class: "likeliest number", "aria-label": `Likeliest tokens at ${named(token.text)}` }, ...rows);
}
