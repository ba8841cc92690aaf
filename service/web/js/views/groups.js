/** Consumer groups: who reads what, and how far behind. */

import { ApiError, askJson, words } from "../api.js";
import { h, refill } from "../dom.js";
import { Poll } from "../poll.js";
import { count, counted, duration } from "../units.js";
import { askToDelete, askToReset } from "./group_dialogs.js";

/** Groups that are drawn; of more, the first ones. */
const MOST = 200;

export class GroupsView {
  constructor() {
    this.note = h("p", { role: "status" });
    this.list = h("div", { class: "cards" });
    this.element = h("section", { class: "view", "aria-labelledby": "groups-title" },
      h("div", { class: "view-head" }, h("h2", { id: "groups-title" }, "Consumer groups")), this.note, this.list);
    this.poll = new Poll(3000, () => this.ask());
    /** @type {Set<string>} */
    this.opened = new Set();
    /** What is told of those that are opened. @type {Map<string, any>} */
    this.told = new Map();
    /** @type {any[]} */
    this.groups = [];
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
      this.groups = groups.slice(0, MOST);
      const opened = this.groups.filter((one) => this.opened.has(one.group));
      await Promise.all(opened.map((one) => this.look(one.group)));
      refill(this.note, groups.length === 0
        ? "No consumer group yet: the first member that joins a group makes it."
        : groups.length > MOST && `The first ${count(MOST)} of ${counted(groups.length, "group")}`);
      if (!document.querySelector("dialog[open]")) this.draw(); // a question goes back to the button that asked it
    } catch (error) {
      refill(this.note, h("span", { class: "bad" }, words(error)));
      throw error;
    }
  }

  /** Ask for the members and queues of one; it may have gone meanwhile. @param {string} name */
  async look(name) {
    try {
      this.told.set(name, await askJson(pathOf(name), { quiet: true }));
    } catch (error) {
      if (!(error instanceof ApiError && error.status === 404)) throw error;
      this.told.delete(name);
    }
  }

  draw() {
    const focused = this.list.contains(document.activeElement) ? document.activeElement?.getAttribute("data-part") : null;
    refill(this.list, ...this.groups.map((group) => this.card(group)));
    if (focused) /** @type {HTMLElement | null} */ (this.list.querySelector(`[data-part="${CSS.escape(focused)}"]`))?.focus();
  }

  /** @param {any} group  in numbers */
  card(group) {
    const name = group.group;
    const told = this.told.get(name);
    const details = /** @type {HTMLDetailsElement} */ (
      h("details", { open: this.opened.has(name) },
        h("summary", { "data-part": `queues ${name}` }, "Members and queues"),
        told ? [...members(told), queues(told)] : h("p", { class: "muted" }, "Looking…"))
    );
    details.addEventListener("toggle", () => {
      if (details.open === this.opened.has(name)) return;
      if (details.open) this.opened.add(name);
      else this.opened.delete(name);
      if (details.open) this.poll.now();
    });
    return h("article", { class: "card", "aria-label": `Group ${name}` },
      h("div", { class: "card-head" },
        h("h3", {}, name),
        group.lag === null
          ? h("span", { class: "lag some" }, "how far behind is not known: a store or the archive does not answer")
          : h("span", { class: `lag ${group.lag > 0 ? "some" : "none"}` }, h("b", {}, count(group.lag)), " behind")),
      h("p", { class: "muted" }, `${group.topics.join(", ") || "no topic"}; ${counted(group.members, "member")}, generation ${count(group.generation)}`),
      group.members === 0 && h("p", {}, "Nobody reads at the moment; the offsets are kept."),
      details,
      h("div", { class: "card-buttons" },
        h("button", { type: "button", class: "small", "data-part": `move ${name}`, "aria-label": `Move the group ${name}`, onclick: () => this.act(name, askToReset) }, "Move…"),
        h("button", { type: "button", class: "small quiet", "data-part": `delete ${name}`, "aria-label": `Delete the group ${name}`, onclick: () => this.act(name, askToDelete) }, "Delete…")));
  }

  /**
   * Ask what is to be asked before a group is changed, with what is so at this moment.
   * @param {string} name
   * @param {(group: any, done: () => void) => void} ask
   */
  async act(name, ask) {
    try {
      ask(await askJson(pathOf(name)), () => this.poll.now());
    } catch (error) {
      refill(this.note, h("span", { class: "bad", role: "alert" }, words(error)));
    }
  }
}

/** @param {string} name */
function pathOf(name) {
  return `/v1/groups/${encodeURIComponent(name)}`;
}

/** @param {any} group */
function members(group) {
  return [
    group.stores_down.length > 0 && h("p", { class: "bad" }, `No answer from ${group.stores_down.join(", ")}`),
    h("ul", { class: "plain members" }, ...group.members.map((/** @type {any} */ member) =>
      h("li", {}, h("code", {}, member.member_id), " ", h("span", { class: "muted" },
        `${counted(member.assignment.length, "queue")} of ${member.topics.join(", ")}; heard ${duration(member.idle_ms)} ago`))))];
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
