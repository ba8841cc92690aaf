/** Topics: how much is in each, what comes in, and what keeps it. */

import { askJson, words } from "../api.js";
import { emptySearch, searchFragment, tailFragment } from "../address.js";
import { h, refill } from "../dom.js";
import { Poll } from "../poll.js";
import { count, counted, duration, rate } from "../units.js";
import { Rates } from "./rates.js";

export class TopicsView {
  constructor() {
    this.body = h("tbody");
    this.note = h("p", { role: "status" });
    this.filter = /** @type {HTMLInputElement} */ (h("input", { type: "search", placeholder: "Filter topics", "aria-label": "Filter topics", oninput: () => this.draw() }));
    this.element = h("section", { class: "view", "aria-labelledby": "topics-title" },
      h("div", { class: "view-head" }, h("h2", { id: "topics-title" }, "Topics"), this.filter), this.note,
      h("div", { class: "scroll", tabindex: "0", role: "group", "aria-labelledby": "topics-title" },
        h("table", { class: "rows" },
          h("thead", {}, h("tr", {}, ...["Topic", "Messages", "Rate", "Queues", "Kept", "State"].map((name, at) => h("th", { scope: "col", class: at === 1 || at === 2 || at === 3 ? "number" : "" }, name)))),
          this.body)));
    this.rates = new Rates();
    /** @type {any[] | null} */
    this.topics = null;
    /** @type {Set<string>} */
    this.opened = new Set();
    this.poll = new Poll(2000, () => this.ask());
  }

  open() {
    this.poll.start();
  }

  close() {
    this.poll.stop();
  }

  async ask() {
    try {
      this.topics = (await askJson("/v1/topics", { quiet: this.poll.failures > 0 })).topics;
      const at = performance.now();
      for (const topic of this.topics ?? []) this.rates.add(topic.topic, ended(topic), at);
      this.draw();
    } catch (error) {
      refill(this.note, h("span", { class: "bad" }, words(error)));
      throw error;
    }
  }

  draw() {
    const topics = this.topics;
    if (!topics) return;
    const wanted = this.filter.value.trim().toLowerCase();
    const shown = topics.filter((topic) => topic.topic.toLowerCase().includes(wanted));
    refill(this.note, topics.length === 0 ? "No topic yet: the first message that is sent to a topic makes it." : shown.length < topics.length && `${count(shown.length)} of ${counted(topics.length, "topic")}`);
    const focused = document.activeElement?.getAttribute("data-topic");
    refill(this.body, ...shown.flatMap((topic) => this.rows(topic)));
    if (focused && this.body.contains(document.activeElement) === false) {
      for (const button of this.body.querySelectorAll("[data-topic]")) {
        if (button.getAttribute("data-topic") === focused) /** @type {HTMLElement} */ (button).focus();
      }
    }
  }

  /** @param {any} topic */
  rows(topic) {
    const open = this.opened.has(topic.topic);
    const button = h("button", { type: "button", class: "plain-button", "aria-expanded": String(open), "data-topic": topic.topic }, open ? "▾ " : "▸ ", counted(topic.queues, "queue"));
    button.addEventListener("click", () => {
      if (!this.opened.delete(topic.topic)) this.opened.add(topic.topic);
      this.draw();
    });
    const row = h("tr", {},
      h("th", { scope: "row" }, h("a", { href: searchFragment({ ...emptySearch(), topic: topic.topic }) }, topic.topic), " ",
        h("a", { class: "aside", href: tailFragment({ topic: topic.topic }), "aria-label": `Follow ${topic.topic} live` }, "live")),
      h("td", { class: "number" }, held(topic.messages)),
      h("td", { class: "number" }, rate(this.rates.of(topic.topic))),
      h("td", { class: "number" }, button),
      h("td", {}, kept(topic)),
      h("td", {}, topic.hold ? h("span", { class: "pill hold", title: "Nothing of it is erased or expires" }, "on hold") : "–"));
    return open ? [row, h("tr", { class: "inner" }, h("td", { colspan: 6 }, queues(topic)))] : [row];
  }
}

/** Messages that are there; unknown while the archive does not tell what a restore left out. @param {number | null} messages */
function held(messages) {
  return messages === null ? "?" : count(messages);
}

/** @param {any} topic */
function ended(topic) {
  return topic.offsets.reduce((/** @type {number} */ sum, /** @type {any} */ queue) => sum + queue.max_offset, 0);
}

/** @param {any} topic */
function kept(topic) {
  if (!topic.archive) return "hot tier only, not archived";
  return topic.cold_retention_ms === null ? "archived, as the store keeps it" : `archived for ${duration(topic.cold_retention_ms)}`;
}

/** @param {any} topic */
function queues(topic) {
  return h("table", { class: "rows small-rows" },
    h("thead", {}, h("tr", {}, ...["Queue", "First offset", "Next offset", "Messages"].map((name) => h("th", { scope: "col", class: "number" }, name)))),
    h("tbody", {}, ...topic.offsets.map((/** @type {any} */ queue) =>
      h("tr", {}, ...[count(queue.queue_id), count(queue.min_offset), count(queue.max_offset), held(queue.messages)].map((value) => h("td", { class: "number" }, value))))));
}
