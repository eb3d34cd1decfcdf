// The last errors of this tab with their request ids, for `Send feedback`.
const KEY = "errors";
const KEPT = 10;

/** The last errors, oldest first: `{when, what, requestId, path}`. */
export function recentErrors() {
  try {
    return JSON.parse(sessionStorage.getItem(KEY)) ?? [];
  } catch {
    return [];
  }
}

export function note(what, requestId) {
  const entry = {
    when: new Date().toISOString(),
    what: String(what).slice(0, 500),
    requestId,
    path: location.pathname,
  };
  sessionStorage.setItem(KEY, JSON.stringify([...recentErrors(), entry].slice(-KEPT)));
}

addEventListener("error", (event) => note(event.message, null));
addEventListener("unhandledrejection", (event) => note(event.reason, null));
