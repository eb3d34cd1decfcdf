// The choice of colours: light, dark, or as the system.
import { remember } from "./memory.js";

document.getElementById("theme-choice").addEventListener("change", (event) => {
  const { value } = event.target;
  if (value) document.documentElement.dataset.theme = value;
  else delete document.documentElement.dataset.theme;
  remember("theme", value);
});
