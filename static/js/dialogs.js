// Dialogs, questions, toasts, and copies.

/** Make an element: `make("p", {class: "x", text: "y", onclick: f}, child, ...)`. */
export function make(tag, properties = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (value === null || value === undefined || value === false) continue;
    if (name === "text") element.textContent = value;
    else if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.filter((child) => child !== null && child !== undefined));
  return element;
}

/** Say something in passing, on the screen and to a screen reader. */
export function toast(text) {
  const line = make("p", { class: "toast", text });
  document.getElementById("live").append(line);
  setTimeout(() => line.remove(), 6000);
}

let dialogs = 0;

/** Show a dialog that is made on the spot; it goes when it closes. Resolves to its return value. */
export function show(title, content, actions) {
  const id = `dialog-${++dialogs}`;
  const dialog = make("dialog", { class: "dialog", "aria-labelledby": id });
  const form = make("form", { method: "dialog" });
  form.append(make("h2", { id, text: title }), ...content, make("div", { class: "actions" }, ...actions));
  dialog.append(form);
  document.body.append(dialog);
  dialog.showModal();
  return new Promise((resolve) => {
    dialog.addEventListener("close", () => {
      dialog.remove();
      resolve(dialog.returnValue);
    });
  });
}

/** Ask before something that cannot be undone; resolves to whether the answer was `confirm`. */
export async function confirmed(title, text, confirm, cancel = "Cancel") {
  const answer = await show(
    title,
    [make("p", { text })],
    [
      make("button", { value: "no", text: cancel, autofocus: true }),
      make("button", { value: "yes", class: "danger", text: confirm }),
    ],
  );
  return answer === "yes";
}

/** Copy a text; where the browser refuses, show it selected, to copy by hand. */
export async function copy(text, what = "Copied") {
  try {
    await navigator.clipboard.writeText(text);
    toast(what);
    return true;
  } catch {
    const box = make("textarea", { readonly: true, rows: 8, "aria-label": "Text to copy", class: "wide" });
    box.value = text;
    const shown = show(
      "Copy by hand",
      [make("p", { text: "The browser did not allow the copy. The text is selected: copy it with the keyboard." }), box],
      [make("button", { value: "done", class: "primary", text: "Done" })],
    );
    box.focus();
    box.select();
    await shown;
    return false;
  }
}

/** Hand a text or a blob to the browser as a file. */
export function download(name, content, type = "text/plain;charset=utf-8") {
  const blob = content instanceof Blob ? content : new Blob([content], { type });
  const address = URL.createObjectURL(blob);
  make("a", { href: address, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(address), 10_000);
}
