// Small manners of the admin's lists and dialogs.
document.addEventListener("DOMContentLoaded", () => {
  /** The header's box selects every row that the filters show, on every page. */
  const all = document.getElementById("action-toggle");
  all?.addEventListener("click", () => {
    setTimeout(() => {
      const which = all.checked ? ".actions .question a" : ".actions .clear a";
      document.querySelector(which)?.click();
    });
  });

  /** A tag is brought to its form while it is typed. */
  for (const field of document.querySelectorAll("[data-tag]")) {
    field.addEventListener("input", () => {
      const at = field.selectionStart;
      field.value = field.value
        .toLowerCase()
        .replace(/[\s_]+/g, "-")
        .replace(/[^a-z0-9-]/g, "")
        .slice(0, 32);
      field.setSelectionRange(at, at);
    });
  }

  /** The button stays off until the shown words are typed. */
  for (const field of document.querySelectorAll("[data-typed]")) {
    const button = field.form.querySelector("button[type=submit]");
    const check = () => {
      button.disabled = field.value !== field.dataset.typed;
    };
    field.addEventListener("input", check);
    check();
  }

  /** Copies a text, or shows it selected where the browser refuses. */
  for (const button of document.querySelectorAll("[data-copies]")) {
    button.addEventListener("click", async () => {
      try {
        await navigator.clipboard.writeText(button.dataset.copies);
        button.textContent = "Copied";
      } catch {
        const shown = document.createElement("input");
        shown.value = button.dataset.copies;
        shown.readOnly = true;
        shown.setAttribute("aria-label", "Copy by hand");
        button.replaceWith(shown);
        shown.select();
      }
    });
  }
});
