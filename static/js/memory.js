// What this browser remembers: choices of layout in cookies, so that the server draws them at once,
// and drafts in storage until the sign-out.
const YEAR = 31_536_000;

/** Keep a choice of layout; `seconds` null is until the browser is closed. */
export function remember(name, value, seconds = YEAR) {
  const age = seconds === null ? "" : `; max-age=${seconds}`;
  document.cookie = `${name}=${value}; path=/; samesite=lax${age}`;
}

export function remembered(name) {
  const found = document.cookie.split("; ").find((each) => each.startsWith(`${name}=`));
  return found?.slice(name.length + 1) ?? "";
}

/** Forget what belongs to a User: drafts, addresses, errors. */
export function forgetUser() {
  localStorage.clear();
  sessionStorage.clear();
}

/** Forget what another User left in this browser. */
export function belongTo(user) {
  if (localStorage.getItem("user") !== user) {
    forgetUser();
    localStorage.setItem("user", user);
  }
}
