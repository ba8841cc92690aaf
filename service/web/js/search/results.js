/** The messages found, a line each, which opens. */

import { h, refill } from "../dom.js";
import { parts, zoneName } from "../times.js";
import { marked } from "./body.js";
import { messageDetails } from "./message.js";
import { soughtTexts } from "./question.js";

/** @typedef {import("./message.js").Message} Message */

const PREVIEW = 400;

export class Results {
  /** @param {(key: string) => void} searchKey */
  constructor(searchKey) {
    this.searchKey = searchKey;
    this.list = h("ol", { class: "messages", "aria-label": "Messages" });
    this.head = h("div", { class: "messages-head", hidden: true, "aria-hidden": "true" });
    this.element = h("div", {}, this.head, this.list);
    /** @type {Message[]} */
    this.messages = [];
    /** @type {import("../address.js").Search | null} */
    this.search = null;
    /** @type {string[]} */
    this.sought = [];
    this.list.addEventListener("keydown", (event) => this.onKey(/** @type {KeyboardEvent} */ (event)));
  }

  /** @param {import("../address.js").Search} search */
  begin(search) {
    this.search = search;
    this.sought = soughtTexts(search);
    this.messages = [];
    this.list.replaceChildren();
    this.head.hidden = true;
  }

  /** @param {Message[]} messages */
  add(messages) {
    this.messages.push(...messages);
    this.head.hidden = this.messages.length === 0;
    this.label();
    this.list.append(...messages.map((message) => this.line(message)));
  }

  /** Keep the last messages only. @param {number} most */
  trim(most) {
    const gone = Math.max(0, this.messages.length - most);
    this.messages.splice(0, gone);
    for (const line of [...this.list.children].slice(0, gone)) line.remove();
  }

  /** Show times in the zone of now. */
  redraw() {
    const open = new Set([...this.list.querySelectorAll(".message.open")].map((line) => this.place(line)));
    this.list.replaceChildren(...this.messages.map((message) => this.line(message)));
    this.label();
    [...this.list.children].forEach((line, at) => open.has(at) && this.toggle(line, true));
  }

  label() {
    const axis = this.search?.time === "born" ? "Born" : "Stored";
    refill(
      this.head,
      h("span", {}, `${axis} (${zoneName()})`),
      h("span", {}, "Tier"),
      h("span", {}, "Tag, keys and body"),
    );
  }

  /** @param {Message} message */
  line(message) {
    const key = this.search?.key ?? "";
    const at = parts(this.search?.time === "born" ? message.born_ms : message.store_ms);
    const text = message.body ?? `base64 ${message.body_base64 ?? ""}`;
    const preview = text.slice(0, PREVIEW).replace(/\s+/g, " ");
    const mention = message.keys.filter((one) => one !== key && !preview.includes(one)).slice(0, 3);
    return h(
      "li",
      { class: `message ${message.tier}` },
      h(
        "button",
        { type: "button", class: "line", "aria-expanded": "false", onclick: (/** @type {Event} */ event) => this.onClick(event) },
        h("time", { class: "when" }, h("span", { class: "date" }, at.date), " ", at.time, h("span", { class: "zone" }, ` ${at.zone}`)),
        h("span", { class: `badge ${message.tier}` }, message.tier),
        h(
          "span",
          { class: "what" },
          message.tag && h("span", { class: `tag tag-${tone(message.tag)}` }, message.tag),
          key && message.keys.includes(key) && !preview.includes(key) && h("mark", { class: "chip" }, key),
          mention.map((one) => h("span", { class: "chip" }, one)),
          h("span", { class: "preview" }, marked(preview, this.sought)),
        ),
      ),
    );
  }

  /** @param {Event} event */
  onClick(event) {
    const line = /** @type {Element} */ (event.currentTarget).closest(".message");
    if (line) this.toggle(line);
  }

  /** @param {Element} line */
  place(line) {
    return [...this.list.children].indexOf(line);
  }

  /**
   * @param {Element} line
   * @param {boolean} [open]
   */
  toggle(line, open = !line.classList.contains("open")) {
    line.classList.toggle("open", open);
    line.querySelector(".line")?.setAttribute("aria-expanded", String(open));
    line.querySelector(".details")?.remove();
    const message = this.messages[this.place(line)];
    if (open && message) line.append(messageDetails(message, this.sought, this.searchKey));
  }

  /**
   * Move to the next message, or the one before; true if there is one.
   * @param {number} by
   */
  move(by) {
    const lines = /** @type {HTMLElement[]} */ ([...this.list.querySelectorAll(".line")]);
    const now = lines.findIndex((line) => line.parentElement?.contains(document.activeElement));
    const next = lines[now < 0 ? (by > 0 ? 0 : lines.length - 1) : now + by];
    next?.focus();
    next?.scrollIntoView({ block: "nearest" });
    return Boolean(next);
  }

  /** @param {KeyboardEvent} event */
  onKey(event) {
    const line = /** @type {Element} */ (event.target).closest(".message");
    if (event.key === "Escape" && line?.classList.contains("open")) {
      this.toggle(line, false);
      /** @type {HTMLElement | null} */ (line.querySelector(".line"))?.focus();
      event.stopPropagation();
    } else if (event.key === "ArrowDown" || event.key === "ArrowUp") {
      if (/** @type {Element} */ (event.target).matches(".line") && this.move(event.key === "ArrowDown" ? 1 : -1)) {
        event.preventDefault();
      }
    }
  }
}

/**
 * Tags that say how bad it is have a colour for it, as people know it from logs.
 * @param {string} tag
 */
function tone(tag) {
  const word = tag.toLowerCase();
  if (/err|fatal|crit|fail/.test(word)) return "bad";
  return /warn/.test(word) ? "warn" : "plain";
}
