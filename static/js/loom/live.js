// Follows a Loom: what grows arrives as events, and a change by somebody else as a hint to read anew.

const AGAIN_MS = 2000;

/**
 * Follow from a revision on. `grew` gets Nodes and the new revision, `changed` is called when the
 * tree has another shape, `gone` when the Loom was deleted, `lost` with whether the line is broken.
 */
export function follow(path, revision, { grew, changed, gone, lost }) {
  let at = revision;
  let source;
  let timer;

  function connect() {
    source = new EventSource(`${path}/events?after=${at}`);
    source.addEventListener("open", () => lost(false));
    source.addEventListener("nodes", (event) => {
      const news = JSON.parse(event.data);
      at = Math.max(at, news.revision);
      grew(news.nodes);
    });
    source.addEventListener("shape", (event) => {
      const { revision } = JSON.parse(event.data);
      // A change of this page's own is known already; a Loom that is gone has no revision.
      if (revision === null) {
        source.close();
        gone();
      } else if (revision > at) changed();
    });
    source.addEventListener("error", () => {
      // A new source says where it is, so nothing is missed and nothing comes twice.
      source.close();
      lost(true);
      timer = setTimeout(connect, AGAIN_MS);
    });
  }

  connect();
  addEventListener("pagehide", () => {
    clearTimeout(timer);
    source.close();
  });
  addEventListener("pageshow", (event) => {
    if (event.persisted) connect();
  });
  return {
    /** Note that the page knows the Loom up to a revision. */
    knows(known) {
      at = Math.max(at, known);
    },
  };
}
