/** One message by its id, whole: what a permalink leads to. */

import { askJson, words } from "../api.js";
import { emptySearch, messageFragment, parsePlace, searchFragment } from "../address.js";
import { h, refill, say } from "../dom.js";
import { onZone } from "../prefs.js";
import { bodyBytes } from "../search/body.js";
import { save } from "../search/download.js";
import { field, input } from "../search/fields.js";
import { messageDetails } from "../search/message.js";
import { moment, rfc3339 } from "../times.js";

/** @typedef {import("../search/message.js").Message} Message */

const AROUND_MS = 60_000;

export class MessageView {
  constructor() {
    this.id = input({ id: "f-message-id", name: "message_id", placeholder: "an id, or a link to a message" });
    const form = h("form", { class: "search", "aria-label": "Open a message", novalidate: true },
      h("div", { class: "row" }, field("Message id", this.id, "wide"), h("button", { type: "submit", class: "primary" }, "Open")));
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      this.submit();
    });
    this.shown = h("div");
    this.element = h("section", { class: "view", "aria-label": "Message" }, form, this.shown);
    /** @type {Message | null} */
    this.message = null;
    /** @type {AbortController | null} */
    this.running = null;
    onZone(() => this.draw());
  }

  submit() {
    const text = this.id.value.trim();
    const linked = text.includes("#/message/") ? parsePlace(text.slice(text.indexOf("#"))) : null;
    const id = linked ? linked.rest : text;
    if (id) location.hash = messageFragment({ message_id: id, store_id: linked?.asked.get("store_id") ?? "" });
    else this.id.focus();
  }

  /** @param {import("../address.js").Place} place */
  async open(place) {
    this.close();
    this.message = null;
    this.id.value = place.rest;
    if (!place.rest) {
      refill(this.shown, h("div", { class: "empty" }, h("h2", {}, "Open a message"),
        h("p", {}, "Its id stands in the answer to its append, and below it wherever it was found.")));
      return;
    }
    const running = new AbortController();
    this.running = running;
    refill(this.shown, h("div", { class: "loading", role: "progressbar", "aria-label": "Opening" }));
    const store = place.asked.get("store_id");
    try {
      this.message = await askJson(`/v1/messages/${encodeURIComponent(place.rest)}${store ? `?store_id=${encodeURIComponent(store)}` : ""}`, { signal: running.signal });
      this.draw();
      say(`message of topic ${this.message?.topic}`);
    } catch (error) {
      if (!running.signal.aborted) refill(this.shown, h("p", { class: "trouble", role: "alert" }, words(error)));
    }
  }

  close() {
    this.running?.abort();
  }

  draw() {
    const message = this.message;
    if (!message) return;
    const around = { ...emptySearch(), topic: message.topic, range: "custom", from: rfc3339(message.store_ms - AROUND_MS), to: rfc3339(message.store_ms + AROUND_MS) };
    const named = `${message.topic}-${message.message_id}`.replace(/[^\w.-]+/g, "_");
    refill(this.shown, h("article", { class: `card whole ${message.tier}`, "aria-label": "The message" },
      h("div", { class: "whole-head" },
        h("h2", {}, message.topic), h("span", { class: `badge ${message.tier}` }, message.tier), h("span", { class: "muted" }, moment(message.store_ms)),
        h("span", { class: "grow" }),
        h("a", { href: searchFragment(around) }, "Messages around it"),
        h("button", { type: "button", class: "quiet small", onclick: () => save(new Blob([/** @type {BlobPart} */ (bodyBytes(message))]), named) }, "Save body")),
      messageDetails(message, [], (key) => {
        location.hash = searchFragment({ ...emptySearch(), topic: message.topic, key });
      })));
  }
}
