// How far the start of a model is, in one line of words.

/** About how long, in whole minutes and never below one (U-32). */
export function duration(seconds) {
  const minutes = Math.max(1, Math.round(seconds / 60));
  return minutes === 1 ? "a minute" : `${minutes} minutes`;
}

/** Say how far a start is; `model` is as `/playground/models` tells of it. Null once it is warm. */
export function startWords(model) {
  if (model.warm) return null;
  const left = model.left_seconds === null ? "" : `, about ${duration(model.left_seconds)} left`;
  return `${model.stage ?? "Waiting for the model"}${left}`;
}
