// Follows a Run: its text arrives as events with numbers, so that a broken line loses nothing and
// doubles nothing.

const AGAIN_MS = 1000;

/**
 * Follow a Run from its beginning. `grew({state, choices: [{index, text}]})` for what comes,
 * `began()` when everything starts anew, `ended()` when it is over, `lost(isLost)` whether the line
 * is broken. Returns a function that stops following.
 */
export function follow(number, { grew, began, ended, lost }) {
  let at = "";
  let source = null;
  let timer = null;
  let isOver = false;

  function connect() {
    source = new EventSource(`/playground/runs/${number}/events?after=${encodeURIComponent(at)}`);
    source.addEventListener("open", () => lost(false));
    source.addEventListener("news", (event) => {
      const { state, anew, gains } = JSON.parse(event.data);
      // A new attempt begins at its own first event, with nothing of the one before.
      if (anew) began();
      at = event.lastEventId;
      grew({ state, choices: gains.map(({ choice }) => choice) });
    });
    source.addEventListener("end", () => {
      stop();
      ended();
    });
    source.addEventListener("error", () => {
      // A new source names the last event, so nothing is missed and nothing comes twice.
      source.close();
      if (isOver) return;
      lost(true);
      timer = setTimeout(connect, AGAIN_MS);
    });
  }

  function stop() {
    isOver = true;
    clearTimeout(timer);
    source?.close();
    removeEventListener("pagehide", stop);
  }

  addEventListener("pagehide", stop);
  connect();
  return stop;
}
