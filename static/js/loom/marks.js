// What the state of a Node looks like, in the tree and in the graph: a shape, and a word.
import { isGrowing } from "./tree.js";

/** The name of the shape: `dot`, `ring` (stopped), `grows`, `waits`, `failed`. */
export function shapeOf(node) {
  return { completed: "dot", cancelled: "ring", running: "grows", queued: "waits", failed: "failed" }[
    node.status
  ];
}

/** The state in a word, for readers who do not see the shape; empty where there is nothing to say. */
export function stateOf(node) {
  return { completed: "", cancelled: "stopped", running: "growing", queued: "waiting", failed: "failed" }[
    node.status
  ];
}

/** What stands at the right of a row: how likely the text was, how far it is, or why it ended. */
export function noteOf(node) {
  if (node.status === "failed") return node.code ?? "failed";
  if (node.status === "cancelled") return "stopped";
  if (node.status === "queued") return "waiting";
  if (isGrowing(node)) return "growing";
  if (node.parent === null) return "root";
  return node.mean === null ? "" : node.mean.toFixed(2);
}

export const noteTitle = (node) =>
  node.mean !== null && node.status === "completed" ? "Mean log probability of a token" : "";
