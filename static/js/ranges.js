// The ranges of sampling settings, in numbers and in words; the server checks them again.

/** `least` and `most` are inside the range; `above` is outside it. */
export const RANGES = {
  n: { label: "Choices", whole: true, least: 1, most: 128 },
  max_tokens: { label: "Max tokens", whole: true, least: 0, most: 32_000 },
  temperature: { label: "Temperature", least: 0, most: 2 },
  top_p: { label: "Top p", above: 0, most: 1 },
  top_k: { label: "Top k", whole: true, least: -1 },
  min_p: { label: "Min p", least: 0, most: 1 },
  presence_penalty: { label: "Presence penalty", least: -2, most: 2 },
  frequency_penalty: { label: "Frequency penalty", least: -2, most: 2 },
  repetition_penalty: { label: "Repetition penalty", above: 0 },
  seed: { label: "Seed", whole: true, least: 0, most: Number.MAX_SAFE_INTEGER },
  logprobs: { label: "Top logprobs shown", whole: true, least: 0, most: 100 },
  priority: { label: "Priority", whole: true, least: 0 },
};

const written = (number) => number.toLocaleString("en-US");

/** A range in words, such as `more than 0 and at most 1`. */
export function inWords({ least, above, most }) {
  const parts = [];
  if (above !== undefined) parts.push(`more than ${written(above)}`);
  if (least !== undefined && !(least === 0 && most !== undefined && most > 100)) {
    parts.push(`at least ${written(least)}`);
  }
  if (most !== undefined) parts.push(`at most ${written(most)}`);
  return parts.join(" and ");
}

/**
 * Say what is wrong with a typed number, or null.
 *
 * `text` is what stands in the box; an empty box is right where `mayBeEmpty`.
 */
export function faultOf(text, range, mayBeEmpty = false) {
  const trimmed = text.trim();
  if (!trimmed) return mayBeEmpty ? null : `${range.label}: a number is missing.`;
  const number = Number(trimmed);
  if (!Number.isFinite(number)) return `${range.label}: not a number.`;
  if (range.whole && !Number.isInteger(number)) return `${range.label}: a whole number.`;
  const isOut =
    (range.least !== undefined && number < range.least) ||
    (range.above !== undefined && number <= range.above) ||
    (range.most !== undefined && number > range.most);
  return isOut ? `${range.label}: ${inWords(range)}.` : null;
}

/** Mark a control with a fault that stands beside it, or take the mark away. */
export function markFault(control, fault) {
  const note = document.getElementById(`${control.id}-fault`);
  if (fault) control.setAttribute("aria-invalid", "true");
  else control.removeAttribute("aria-invalid");
  if (!note) return;
  note.textContent = fault ?? "";
  note.hidden = !fault;
  if (fault) control.setAttribute("aria-describedby", note.id);
  else control.removeAttribute("aria-describedby");
}
