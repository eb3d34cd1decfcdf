// The models that the page offers: which one a new page starts on, and how far a start is.
import { read } from "../request.js";
import { startWords } from "../starting.js";

const LOOK_MS = 2000;

/** A warm model when there is one, else the default. */
export function startModel(models) {
  const warm = models.filter((model) => model.warm);
  return (warm.find((model) => model.default) ?? warm[0] ?? models.find((model) => model.default)).id;
}

/** What a Run waits for, in one line. */
export function waitingFor(run, model) {
  const start = model && startWords(model);
  return start ?? (run.status === "waiting" ? "Waiting for its turn" : "Reading the prompt");
}

/** Look at the models' state while `isAsked()` or one of them starts; `changed()` after each look. */
export async function watchModels(models, isAsked, changed) {
  if (isAsked() || models.some((model) => model.stage)) {
    try {
      const found = new Map((await read("/playground/models")).models.map((news) => [news.id, news]));
      for (const model of models) Object.assign(model, found.get(model.id) ?? {});
      changed();
    } catch {
      // The next look comes anyway; the Runs themselves say when the line is broken.
    }
  }
  setTimeout(() => watchModels(models, isAsked, changed), LOOK_MS);
}
