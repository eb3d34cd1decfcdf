// What is copied of a Run. Pure.
import { bodyOf, valuesOf } from "./settings.js";

/** The choices' texts, numbered where there are several (A-283). */
export function outputText(run) {
  if (run.choices.length === 1) return run.choices[0].text;
  return run.choices.map((choice) => `${choice.index + 1}.\n${choice.text}`).join("\n\n");
}

/** The prompt with each choice's text (A-298). */
export function wholeText(run) {
  const whole = run.choices.map((choice) => (run.request.echo ? choice.text : run.prompt + choice.text));
  if (whole.length === 1) return whole[0];
  return whole.map((text, place) => `${place + 1}.\n${text}`).join("\n\n");
}

/** The settings as JSON with the API's names: what differs from its defaults (A-282). */
export function settingsText(run) {
  const body = bodyOf(valuesOf(run.request, vectorsOf(run)));
  body.model = run.model;
  return JSON.stringify(body, null, 2);
}

export const vectorsOf = (run) =>
  (run.request.apply_steering_vectors ?? []).map((body, place) => ({
    name: `vector ${place + 1} of Run ${run.number}`,
    width: body.activations?.[0]?.length ?? 0,
    body,
    origin: { kind: "run", name: String(run.number) },
  }));

/** A text inside single quotes of a POSIX shell. */
const quoted = (text) => `'${text.replaceAll("'", "'\\''")}'`;

/** A streaming curl command that does the same, without a key in it (A-284). */
export function requestText(run, apiAddress) {
  const values = valuesOf(run.request, vectorsOf(run));
  const body = { ...bodyOf(values, run.request.prompt), model: run.model, stream: true };
  return [
    `curl -sN ${quoted(`${apiAddress}/v1/completions`)} \\`,
    '  -H "Authorization: Bearer $ACS_API_KEY" \\',
    "  -H 'Content-Type: application/json' \\",
    `  -d ${quoted(JSON.stringify(body))}`,
  ].join("\n");
}
