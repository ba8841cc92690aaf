/** The bearer token: asked for when the service wants one, kept for this tab only, gone when the tab closes. */

import { byId, h } from "./dom.js";

const NAME = "tierlog.token";
let held = "";
try {
  held = sessionStorage.getItem(NAME) ?? "";
} catch {
  // storage may be forbidden; the token then lasts as long as the page
}

/** @type {Promise<boolean> | null} */
let asking = null;
const listeners = /** @type {Set<() => void>} */ (new Set());

/** The token, or an empty text. */
export function token() {
  return held;
}

/** @param {string} value */
export function setToken(value) {
  held = value;
  try {
    if (value) sessionStorage.setItem(NAME, value);
    else sessionStorage.removeItem(NAME);
  } catch {
    // see above
  }
  for (const tell of listeners) tell();
}

/**
 * Called after another token was given or forgotten.
 * @param {() => void} tell
 */
export function onToken(tell) {
  listeners.add(tell);
}

/**
 * Ask the person; requests that need a token at the same time share the dialog.
 * @param {string} refused  why the one before was refused, or empty
 * @returns {Promise<boolean>} whether there is one now
 */
export function askForToken(refused) {
  asking ??= prompt(refused).finally(() => {
    asking = null;
  });
  return asking;
}

/**
 * @param {string} refused
 * @returns {Promise<boolean>}
 */
function prompt(refused) {
  return new Promise((resolve) => {
    const input = /** @type {HTMLInputElement} */ (
      h("input", { id: "token", type: "password", autocomplete: "off", spellcheck: "false", required: true })
    );
    const dialog = /** @type {HTMLDialogElement} */ (
      h(
        "dialog",
        { class: "dialog", "aria-labelledby": "token-title" },
        h(
          "form",
          { method: "dialog" },
          h("h2", { id: "token-title" }, "This service wants a token"),
          refused && h("p", { class: "bad", role: "alert" }, refused),
          h("p", { class: "muted" }, "It stays in this tab and is forgotten when the tab is closed."),
          h("label", { for: "token" }, "Bearer token"),
          input,
          h(
            "div",
            { class: "dialog-buttons" },
            h("button", { type: "button", class: "quiet", onclick: () => dialog.close("") }, "Cancel"),
            h("button", { type: "submit", class: "primary", value: "given" }, "Use it"),
          ),
        ),
      )
    );
    dialog.addEventListener("close", () => {
      const given = dialog.returnValue === "given" && input.value.trim() !== "";
      if (given) setToken(input.value.trim());
      dialog.remove();
      resolve(given);
    });
    byId("dialogs").append(dialog);
    dialog.showModal();
    input.focus();
  });
}
