// How the Runs in view compare with one another. Pure.

/** How many first tokens of a choice match those of the first Run in view. */
export function matching(first, run, choice) {
  if (!first || first.number === run.number || first.prompt !== run.prompt) return "";
  const [theirs, mine] = [first.choices?.[0]?.tokens, choice.tokens];
  if (!theirs?.length || !mine?.length) return "";
  let same = 0;
  while (same < mine.length && same < theirs.length && mine[same].text === theirs[same].text) same++;
  return `the first ${same} tokens match Run ${first.number}`;
}
