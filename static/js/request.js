// Reads and writes of a page: one form of refusals, the way to the sign-in, and what feedback tells.
import { note } from "./errors.js";

/** What the server refused, or what did not reach it: `status` 0. */
export class Refused extends Error {
  constructor(status, error, requestId) {
    super(error.message);
    this.status = status;
    this.code = error.code ?? null;
    this.param = error.param ?? null;
    this.retryAfter = error.retry_after_seconds ?? null;
    this.requestId = requestId;
  }
}

/** Leave for the sign-in, and come back here after it. */
export function toSignIn(address) {
  const next = encodeURIComponent(location.pathname + location.search);
  location.assign(`${address}?next=${next}`);
}

async function ask(method, path, options = {}) {
  const headers = { "X-Requested-With": "basalt", Accept: "application/json" };
  let body;
  if (method !== "GET") headers["X-CSRFToken"] = document.body.dataset.csrf;
  if (options.json !== undefined) {
    headers["Content-Type"] = "application/json";
    body = JSON.stringify(options.json);
  } else if (options.form !== undefined) body = options.form;
  let answer;
  try {
    answer = await fetch(path, { method, headers, body, signal: options.signal });
  } catch (fault) {
    if (fault.name === "AbortError") throw fault;
    const message = navigator.onLine
      ? "The server could not be reached. Nothing was changed; try again."
      : "You are offline. Nothing was changed; try again when the connection is back.";
    note(`${method} ${path}: ${message}`, null);
    throw new Refused(0, { message }, null);
  }
  const requestId = answer.headers.get("X-Request-Id");
  if (answer.status === 401 && answer.headers.has("X-Sign-In")) {
    toSignIn(answer.headers.get("X-Sign-In"));
    return new Promise(() => {});
  }
  if (!answer.ok) {
    const error = await errorOf(answer);
    note(`${method} ${path}: ${answer.status} ${error.message}`, requestId);
    throw new Refused(answer.status, error, requestId);
  }
  return answer;
}

async function errorOf(answer) {
  try {
    return (await answer.json()).error ?? { message: `The server answered ${answer.status}.` };
  } catch {
    return { message: `The server answered ${answer.status}. The fault is noted; try again.` };
  }
}

export const read = async (path, options) => (await ask("GET", path, options)).json();
export const open = (path, options) => ask("GET", path, options);
export const readText = async (path, options) => (await ask("GET", path, options)).text();

/** POST `json` or `form`; resolves to the answer's JSON, or null for an answer without a body. */
export async function post(path, options) {
  const answer = await ask("POST", path, options);
  return answer.status === 204 ? null : answer.json();
}
