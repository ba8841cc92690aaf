/** Consumer groups: who reads what, and how far behind. */

import { askJson, words } from "../api.js";
import { h, refill } from "../dom.js";
import { Poll } from "../poll.js";
import { count, counted, duration } from "../units.js";
import { askToDelete, askToReset } from "./group_dialogs.js";

export class GroupsView {
  constructor() {
    this.note = h("p", { role: "status" });
    this.list = h("div", { class: "cards" });
    this.element = h("section", { class: "view", "aria-labelledby": "groups-title" },
      h("div", { class: "view-head" }, h("h2", { id: "groups-title" }, "Consumer groups")), this.note, this.list);
    this.poll = new Poll(3000, () => this.ask());
    /** @type {Set<string>} */
    this.opened = new Set();
  }

  open() {
    this.poll.start();
  }

  close() {
    this.poll.stop();
  }

  async ask() {
    try {
      const { groups } = await askJson("/v1/groups", { quiet: this.poll.failures > 0 });
      const shown = groups.slice(0, 50);
      const told = await Promise.all(shown.map((/** @type {any} */ one) => askJson(`/v1/groups/${encodeURIComponent(one.group)}`, { quiet: true })));
      refill(this.note, groups.length === 0
        ? "No consumer group yet: the first member that joins a group makes it."
        : groups.length > shown.length && `The first ${count(shown.length)} of ${counted(groups.length, "group")}`);
      if (!document.querySelector("dialog[open]")) this.draw(told); // a question goes back to the button that asked it
    } catch (error) {
      refill(this.note, h("span", { class: "bad" }, words(error)));
      throw error;
    }
  }

  /** @param {any[]} groups */
  draw(groups) {
    const focused = this.list.contains(document.activeElement) ? document.activeElement?.getAttribute("data-part") : null;
    refill(this.list, ...groups.map((group) => this.card(group)));
    if (focused) /** @type {HTMLElement | null} */ (this.list.querySelector(`[data-part="${CSS.escape(focused)}"]`))?.focus();
  }

  /** @param {any} group */
  card(group) {
    const details = /** @type {HTMLDetailsElement} */ (
      h("details", { open: this.opened.has(group.group) },
        h("summary", { "data-part": `queues ${group.group}` }, counted(group.queues.length, "queue")), queues(group))
    );
    details.addEventListener("toggle", () => {
      if (details.open) this.opened.add(group.group);
      else this.opened.delete(group.group);
    });
    return h("article", { class: "card", "aria-label": `Group ${group.group}` },
      h("div", { class: "card-head" },
        h("h3", {}, group.group),
        group.lag === null
          ? h("span", { class: "lag some" }, `how far behind is not known: no answer from ${group.stores_down.join(", ")}`)
          : h("span", { class: `lag ${group.lag > 0 ? "some" : "none"}` }, h("b", {}, count(group.lag)), " behind")),
      h("p", { class: "muted" }, `${counted(group.members.length, "member")}, generation ${count(group.generation)}`),
      group.members.length === 0 && h("p", {}, "Nobody reads at the moment; the offsets are kept."),
      h("ul", { class: "plain members" }, ...group.members.map((/** @type {any} */ member) =>
        h("li", {}, h("code", {}, member.member_id), " ", h("span", { class: "muted" },
          `${counted(member.assignment.length, "queue")} of ${member.topics.join(", ")}; heard ${duration(member.idle_ms)} ago`)))),
      details,
      h("div", { class: "card-buttons" },
        h("button", { type: "button", class: "small", "data-part": `move ${group.group}`, "aria-label": `Move the group ${group.group}`, onclick: () => askToReset(group, () => this.poll.now()) }, "Move…"),
        h("button", { type: "button", class: "small quiet", "data-part": `delete ${group.group}`, "aria-label": `Delete the group ${group.group}`, onclick: () => askToDelete(group, () => this.poll.now()) }, "Delete…")));
  }
}

/** @param {any} group */
function queues(group) {
  const severalStores = new Set(group.queues.map((/** @type {any} */ queue) => queue.store_id)).size > 1;
  const most = Math.max(1, ...group.queues.map((/** @type {any} */ queue) => queue.lag ?? 0));
  return h("div", { class: "scroll" }, h("table", { class: "rows small-rows" },
    h("thead", {}, h("tr", {}, ...["Topic", "Queue", "Committed", "End", "Behind"].map((name, at) => h("th", { scope: "col", class: at ? "number" : "" }, name)))),
    h("tbody", {}, ...group.queues.map((/** @type {any} */ queue) =>
      h("tr", {},
        h("td", {}, severalStores ? `${queue.topic} (${queue.store_id})` : queue.topic), h("td", { class: "number" }, count(queue.queue_id)),
        h("td", { class: "number" }, queue.offset === null ? "nothing yet" : count(queue.offset)),
        h("td", { class: "number" }, count(queue.max_offset)),
        h("td", { class: "number" }, h("meter", { min: 0, max: most, value: queue.lag ?? 0, "aria-hidden": "true" }), " ", count(queue.lag)))))));
}
