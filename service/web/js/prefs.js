/** What a person has chosen for this browser: light or dark, UTC or local. Kept; the token is not among it. */

/** @typedef {"utc" | "local"} Zone */
/** @typedef {"system" | "light" | "dark"} Theme */

const listeners = /** @type {Set<() => void>} */ (new Set());

/**
 * @param {string} name
 * @param {string} otherwise
 */
function kept(name, otherwise) {
  try {
    return localStorage.getItem(`tierlog.${name}`) ?? otherwise;
  } catch {
    return otherwise; // storage may be forbidden; the choice then lasts as long as the page
  }
}

/**
 * @param {string} name
 * @param {string} value
 */
function keep(name, value) {
  try {
    localStorage.setItem(`tierlog.${name}`, value);
  } catch {
    // see above
  }
}

let zone = /** @type {Zone} */ (kept("zone", "utc") === "local" ? "local" : "utc");
let theme = /** @type {Theme} */ (["light", "dark"].includes(kept("theme", "")) ? kept("theme", "") : "system");

/** @returns {Zone} */
export function timeZone() {
  return zone;
}

export function switchZone() {
  zone = zone === "utc" ? "local" : "utc";
  keep("zone", zone);
  for (const tell of listeners) tell();
}

/**
 * Called after every change of the zone.
 * @param {() => void} tell
 */
export function onZone(tell) {
  listeners.add(tell);
}

function isDark() {
  return theme === "system" ? matchMedia("(prefers-color-scheme: dark)").matches : theme === "dark";
}

function applyTheme() {
  if (theme === "system") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = theme;
}

export function switchTheme() {
  theme = isDark() ? "light" : "dark";
  keep("theme", theme);
  applyTheme();
}

/** @param {HTMLElement} button */
export function connectZone(button) {
  const label = () => {
    button.textContent = zone === "utc" ? "UTC" : "Local";
    const shown = zone === "utc" ? "UTC" : Intl.DateTimeFormat().resolvedOptions().timeZone;
    button.setAttribute("aria-label", `Times are shown in ${shown}; switch`);
  };
  label();
  onZone(label);
  button.addEventListener("click", switchZone);
}

/** @param {HTMLElement} button */
export function connectTheme(button) {
  const label = () => {
    button.textContent = isDark() ? "☾" : "☀";
    button.setAttribute("aria-label", isDark() ? "Dark; switch to light" : "Light; switch to dark");
  };
  applyTheme();
  label();
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", label);
  button.addEventListener("click", () => {
    switchTheme();
    label();
  });
}
