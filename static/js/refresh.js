// Numbers that come again by themselves: htmx reads them, and this says when a read failed.

/** Watch an element that htmx refreshes; `stale` shows while its last read failed.
    Returns a function that reads at once. */
export function startRefresh(element, stale) {
  const failed = () => {
    stale.hidden = false;
  };
  for (const name of ["htmx:responseError", "htmx:sendError", "htmx:timeout"]) {
    element.addEventListener(name, failed);
  }
  let unfolded = [];
  element.addEventListener("htmx:beforeSwap", () => {
    unfolded = [...element.querySelectorAll("details[open]")].map((each) => each.id);
  });
  element.addEventListener("htmx:afterSwap", () => {
    stale.hidden = true;
    for (const id of unfolded) document.getElementById(id)?.setAttribute("open", "");
  });
  // A read would take an open menu away from under the hand.
  element.addEventListener("htmx:beforeRequest", (event) => {
    const isOpen = element.querySelector("[popover]:popover-open");
    if (isOpen && event.detail.requestConfig.triggeringEvent?.type !== "refresh") event.preventDefault();
  });
  return () => htmx.trigger(element, "refresh");
}
