// What a refusal says on a page: the way to more tokens is a link there, not an address in the
// text.
import { make } from "./dialogs.js";

const ADDRESS = / Ask for more tokens at \S+\.$/;

/** The words of an error (`{message}`) without the address that the API's message ends with. */
export const withoutAddress = ({ message }) => message.replace(ADDRESS, "");

/** The same as parts of an element: the words, and a link where the address was. */
export function refusalParts(error) {
  const words = withoutAddress(error);
  if (words === error.message) return [words];
  return [words, " ", make("a", { href: "/usage/request", text: "Request more tokens" })];
}
