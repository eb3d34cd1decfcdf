// The dialog `Send feedback`: what goes along is shown before it is sent (A-377 to A-386).
import { make, toast } from "./dialogs.js";
import { recentErrors } from "./errors.js";
import { post } from "./request.js";

const MOST = 5;
const MOST_BYTES = 2 * 1024 * 1024;
const TYPES = ["image/png", "image/jpeg", "image/gif", "image/webp"];

const byId = (name) => document.getElementById(`feedback-${name}`);
const dialog = document.getElementById("feedback");
const form = byId("form");
let images = [];

function say(name, message) {
  const line = byId(name);
  line.textContent = message;
  line.hidden = message === "";
}

function whyNot(file) {
  if (images.length >= MOST) return `${file.name || "The image"} was left out: ${MOST} images at most.`;
  if (!TYPES.includes(file.type)) return `${file.name || "The file"} is no PNG, JPEG, GIF or WebP image.`;
  if (file.size > MOST_BYTES) return `${file.name || "The image"} is larger than 2 MB.`;
  return "";
}

/** Add images; one that cannot be taken is named, and the rest stays (A-381). */
function add(files) {
  const faults = [];
  for (const file of files) {
    const fault = whyNot(file);
    if (fault) faults.push(fault);
    else images.push(file);
  }
  say("images-fault", faults.join(" "));
  showImages();
}

function showImages() {
  byId("shots").replaceChildren(
    ...images.map((file, index) => {
      const address = URL.createObjectURL(file);
      const picture = make("img", { src: address, alt: file.name || "Pasted image", height: "64" });
      picture.addEventListener("load", () => URL.revokeObjectURL(address));
      const leave = () => {
        images = images.filter((each) => each !== file);
        showImages();
        byId("choose").focus();
      };
      const name = `Leave out ${file.name || `image ${index + 1}`}`;
      return make("li", {}, picture, make("button", { type: "button", class: "plain", text: "Leave out", "aria-label": name, onclick: leave }));
    }),
  );
}

/** Show what the note will carry: the page, the browser, the last errors with their ids (A-382). */
function showDetails() {
  byId("page").textContent = location.pathname + location.search;
  byId("browser").textContent = navigator.userAgent;
  const errors = recentErrors();
  byId("errors").replaceChildren(
    ...(errors.length ? errors : [null]).map((error) =>
      make("li", { text: error ? `${error.when} ${error.what}${error.requestId ? ` (${error.requestId})` : ""}` : "No errors." }),
    ),
  );
}

function followAnonymous() {
  byId("details").hidden = byId("anonymous").checked;
}

for (const opener of document.querySelectorAll('[data-opens="feedback"]')) {
  opener.addEventListener("click", () => {
    showDetails();
    setTimeout(() => byId("text").focus());
  });
}
byId("choose").addEventListener("click", () => byId("images").click());
byId("images").addEventListener("change", () => {
  add(byId("images").files);
  byId("images").value = "";
});
byId("anonymous").addEventListener("change", followAnonymous);

for (const kind of ["dragenter", "dragover"]) {
  byId("drop").addEventListener(kind, (event) => {
    event.preventDefault();
    byId("drop").classList.add("over");
  });
}
byId("drop").addEventListener("dragleave", () => byId("drop").classList.remove("over"));
byId("drop").addEventListener("drop", (event) => {
  event.preventDefault();
  byId("drop").classList.remove("over");
  add(event.dataTransfer.files);
});
dialog.addEventListener("paste", (event) => {
  const files = [...event.clipboardData.files];
  if (files.length === 0) return;
  event.preventDefault();
  add(files);
});

form.addEventListener("submit", async (event) => {
  event.preventDefault();
  for (const name of ["text-fault", "images-fault", "fault"]) say(name, "");
  const body = new FormData(form);
  body.set("page", location.pathname + location.search);
  if (!byId("anonymous").checked) body.set("errors", JSON.stringify(recentErrors()));
  for (const image of images) body.append("images", image, image.name || "pasted");
  byId("send").disabled = true;
  try {
    const told = await post("/feedback", { form: body });
    dialog.close();
    form.reset();
    images = [];
    showImages();
    followAnonymous();
    toast(told.told);
  } catch (refused) {
    showDetails();
    const place = { text: "text-fault", images: "images-fault" }[refused.param] ?? "fault";
    say(place, place === "fault" ? `Your note was not sent, and is still here. ${refused.message}` : refused.message);
  } finally {
    byId("send").disabled = false;
  }
});
