/** Keys of the whole page, and the dialog that names them. */

import { byId, h } from "./dom.js";

/** @type {[string, string][]} */
const KEYS = [
  ["/", "to the search"],
  ["j  k", "next, previous message"],
  ["Enter", "open or close a message; in the form: search"],
  ["Esc", "close; leave a field"],
  ["m", "more: the next page"],
  ["p", "pause or resume what is live"],
  ["g s, g l, g m", "go to search, live, message"],
  ["g t, g g, g o", "go to topics, groups, store"],
  ["t", "times in UTC or local"],
  ["d", "dark or light"],
  ["In the bars: ← →", "bar before, after; with Shift: several"],
  ["In the timeline: ← →", "block before, after; with Shift: move"],
  ["↑ ↓", "row above, below"],
  ["+  −  0", "closer, wider, all"],
  ["Enter", "search the time of the block"],
  ["?", "this list"],
];

/** @param {EventTarget | null} target */
function types(target) {
  return target instanceof Element && target.matches("input, select, textarea");
}

export function showHelp() {
  if (document.querySelector("dialog[open]")) return;
  const dialog = /** @type {HTMLDialogElement} */ (
    h("dialog", { class: "dialog", "aria-labelledby": "keys-title" },
      h("h2", { id: "keys-title" }, "Keys"),
      h("dl", { class: "keys" }, ...KEYS.flatMap(([keys, what]) => [h("dt", {}, h("kbd", {}, keys)), h("dd", {}, what)])),
      h("div", { class: "dialog-buttons" }, h("button", { type: "button", class: "primary", onclick: () => dialog.close() }, "Close")))
  );
  dialog.addEventListener("close", () => dialog.remove());
  byId("dialogs").append(dialog);
  dialog.showModal();
}

/**
 * @param {Record<string, () => void>} actions  by key, `g s` for two keys one after the other
 */
export function connectKeys(actions) {
  let before = "";
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || document.querySelector("dialog[open]")) return;
    if (types(event.target)) {
      if (event.key === "Escape") /** @type {HTMLElement} */ (event.target).blur();
      return;
    }
    const action = actions[`${before} ${event.key}`] ?? actions[event.key];
    before = event.key;
    if (action) {
      event.preventDefault();
      before = "";
      action();
    }
  });
}
