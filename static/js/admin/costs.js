// The form of a warm window: what it would cost, as the fields are now.
const form = document.getElementById("window");
const cost = document.getElementById("cost");
let asked = 0;

async function show() {
  const mine = (asked += 1);
  const fields = new FormData(form);
  fields.delete("csrfmiddlewaretoken");
  const answer = await fetch(`${form.dataset.cost}?${new URLSearchParams(fields)}`).catch(() => null);
  const words = answer?.ok ? (await answer.json()).cost : "";
  if (mine === asked) cost.textContent = words || "fill in the fields";
}

form.addEventListener("input", show);
show();
