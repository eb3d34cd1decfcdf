// The keys of the Loom: letters press buttons, arrows move in the tree.

const LETTERS = { g: "branch", e: "edit", s: "split", i: "sibling", Delete: "delete", "?": "keys" };
const MOVES = new Set(["ArrowUp", "ArrowDown", "ArrowLeft", "ArrowRight", "Home", "End"]);

/** Whether a key belongs to what has the focus: a text box, a list, a dialog, a menu. */
function isTaken(target) {
  return Boolean(
    target.closest?.("input, select, textarea, [contenteditable], dialog, .menu, .likeliest") ||
      document.querySelector("dialog[open]"),
  );
}

export function startKeys(tree, press) {
  document.addEventListener("keydown", (event) => {
    if (isTaken(event.target)) return;
    const isZ = event.key.toLowerCase() === "z" && (event.ctrlKey || event.metaKey);
    if (isZ) {
      event.preventDefault();
      press(event.shiftKey ? "redo" : "undo");
      return;
    }
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const letter = LETTERS[event.key.length === 1 ? event.key.toLowerCase() : event.key];
    if (letter) {
      event.preventDefault();
      press(letter);
    } else if (MOVES.has(event.key) && !event.target.closest?.(".token")) move(event, tree);
  });
}

function move(event, tree) {
  event.preventDefault();
  const { selectedId: id, folded } = tree;
  const hasChildren = tree.childrenOf(id).length > 0;
  if (event.key === "ArrowRight" && hasChildren && folded.has(id)) tree.fold(id, false);
  else if (event.key === "ArrowLeft" && hasChildren && !folded.has(id) && event.shiftKey) {
    tree.fold(id, true);
  } else {
    const to = tree.neighbour(event.key);
    if (to) tree.select(to.id);
  }
}
