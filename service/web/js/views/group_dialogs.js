/** What is asked before a group is moved or deleted, and what the service answers. */

import { askJson, words } from "../api.js";
import { byId, h, refill, say } from "../dom.js";
import { TimeField, field, input } from "../search/fields.js";
import { parse } from "../times.js";
import { count, counted } from "../units.js";

/**
 * A question of its own, closed once its act has succeeded.
 * @param {string} title
 * @param {(HTMLElement | null)[]} content
 * @param {HTMLElement} action  the button that acts
 * @param {() => Promise<boolean>} act  whether it is done; what it raises is shown
 */
function question(title, content, action, act) {
  const trouble = h("p", { class: "bad", role: "alert" });
  const form = h("form", { method: "dialog", novalidate: true }, h("h2", { id: "question-title" }, title), ...content.filter((one) => one !== null), trouble,
    h("div", { class: "dialog-buttons" }, h("button", { type: "button", class: "quiet", onclick: () => dialog.close() }, "Cancel"), action));
  const dialog = /** @type {HTMLDialogElement} */ (h("dialog", { class: "dialog wide-dialog", "aria-labelledby": "question-title" }, form));
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    if (action.hasAttribute("disabled")) return;
    action.setAttribute("disabled", "");
    trouble.textContent = "";
    try {
      if (await act()) dialog.close();
    } catch (error) {
      trouble.textContent = words(error);
    } finally {
      action.removeAttribute("disabled");
    }
  });
  dialog.addEventListener("close", () => dialog.remove());
  byId("dialogs").append(dialog);
  dialog.showModal();
}

/**
 * @param {any} group
 * @param {() => void} done
 */
export function askToDelete(group, done) {
  const name = group.group;
  question(`Delete the group ${name}?`,
    [h("p", {}, `Its committed offsets are forgotten (${counted(group.queues.filter((/** @type {any} */ queue) => queue.offset !== null).length, "queue")}), and whoever joins it again begins anew. Messages stay where they are.`),
      group.lag > 0 ? h("p", {}, `It is ${counted(group.lag, "message")} behind.`) : null],
    h("button", { type: "submit", class: "danger" }, `Delete ${name}`),
    async () => {
      await askJson(`/v1/groups/${encodeURIComponent(name)}`, { method: "DELETE" });
      say(`group ${name} is deleted`);
      done();
      return true;
    });
}

/** @type {[string, string][]} */
const PLACES = [["first", "the first message there is"], ["latest", "behind the last message"], ["time", "the first message stored at or after a time"], ["offset", "an offset"]];

/**
 * Where a group goes on: what would change is shown before it does.
 * @param {any} group
 * @param {() => void} done
 */
export function askToReset(group, done) {
  const name = group.group;
  const changed = () => {
    refill(preview);
    previewed = null;
    label();
  };
  const time = new TimeField("reset-time", "Time", "2h, yesterday, 2026-03-01 06:00", changed);
  const offset = input({ id: "f-reset-offset", inputmode: "numeric", placeholder: "0" });
  const offsetField = field("Offset", offset);
  const queue = /** @type {HTMLSelectElement} */ (h("select", { id: "f-reset-queue", onchange: changed }, h("option", { value: "" }, "all of the group"),
    ...topicsOf(group).map((topic) => h("option", { value: JSON.stringify({ topic }) }, `all of ${topic}`)),
    ...group.queues.map((/** @type {any} */ one) => h("option", { value: JSON.stringify({ topic: one.topic, store_id: one.store_id, queue_id: one.queue_id }) }, `${one.topic} ${one.queue_id}`))));
  const choices = h("fieldset", { class: "choices" }, h("legend", {}, "Go on at"), ...PLACES.map(([value, text], at) =>
    h("label", {}, h("input", { type: "radio", name: "place", value, checked: at === 0 }), " ", text)));
  const preview = h("div", { class: "preview-of-reset", role: "status" });
  const action = h("button", { type: "submit", class: "primary" });
  /** @type {string | null} */
  let previewed = null;

  const place = () => /** @type {HTMLInputElement} */ (choices.querySelector("input:checked")).value;
  const label = () => {
    action.textContent = previewed === null ? "What would change?" : `Move ${name}`;
    time.element.hidden = place() !== "time";
    offsetField.hidden = place() !== "offset";
  };
  /** @returns {Record<string, unknown>} */
  const wanted = () => {
    const where = place();
    const only = queue.value ? JSON.parse(queue.value) : {};
    if (where === "time") {
      const ms = parse(time.input.value);
      if (ms === null || Number.isNaN(ms)) throw new Error("Which time? 2h (ago), yesterday, 2026-03-01 06:00, RFC 3339, or ms since 1970.");
      return { time: ms, ...only };
    }
    if (where !== "offset") return { to: where, ...only };
    if (!/^\d{1,15}$/.test(offset.value.trim())) throw new Error("Which offset? That of the next message to consume.");
    return { offset: Number(offset.value), ...only };
  };
  choices.addEventListener("change", changed);
  offset.addEventListener("input", changed);
  label();
  question(`Move the group ${name}`,
    [group.members.length ? h("p", { class: "bad" }, `${counted(group.members.length, "member")} read at the moment: a group is moved while nobody does.`) : null,
      field("Queues", queue), choices, time.element, offsetField, preview], action,
    async () => {
      const body = previewed ?? JSON.stringify(wanted());
      const found = await askJson(`/v1/groups/${encodeURIComponent(name)}/reset`, { method: "POST", json: previewed ? JSON.parse(body) : { ...JSON.parse(body), dry_run: true } });
      if (previewed !== null) {
        say(`group ${name} is moved`);
        done();
        return true;
      }
      previewed = body; // a relative time stays the moment that was shown
      refill(preview, changes(found.queues));
      label();
      return false;
    });
}

/** @param {any} group @returns {string[]} */
function topicsOf(group) {
  return [...new Set(group.queues.map((/** @type {any} */ queue) => queue.topic))];
}

/** @param {any[]} queues */
function changes(queues) {
  const moved = queues.filter((queue) => queue.offset !== queue.new_offset);
  if (!moved.length) return h("p", {}, "Nothing would change.");
  return [h("p", {}, `${counted(moved.length, "queue")} of ${count(queues.length)} would move:`),
    h("div", { class: "scroll short" }, h("table", { class: "rows small-rows" },
      h("thead", {}, h("tr", {}, ...["Topic", "Queue", "From", "To", "By"].map((name, at) => h("th", { scope: "col", class: at ? "number" : "" }, name)))),
      h("tbody", {}, ...moved.map((queue) => h("tr", {}, h("td", {}, queue.topic),
        ...[queue.queue_id, queue.offset, queue.new_offset].map((value) => h("td", { class: "number" }, value === null ? "nothing yet" : count(value))),
        h("td", { class: "number" }, queue.offset === null ? "–" : `${queue.new_offset > queue.offset ? "+" : "−"}${count(Math.abs(queue.new_offset - queue.offset))}`))))))];
}
