/** The search's form: what a person fills in, as a {@link Search} and back. */

import { LIMITS } from "../address.js";
import { h } from "../dom.js";
import { onZone } from "../prefs.js";
import { PRESETS } from "../times.js";
import { RepeatedField, TimeField, field, input } from "./fields.js";

/** @typedef {import("../address.js").Search} Search */

/**
 * @param {string} name
 * @param {[string, string][]} options
 */
function select(name, options) {
  return h("select", { name, id: `f-${name}` }, ...options.map(([value, label]) => h("option", { value }, label)));
}

export class SearchForm {
  /**
   * @param {{search: () => void, price: () => void}} actions
   */
  constructor(actions) {
    const judged = { "aria-describedby": "f-wrong" };
    this.topics = h("datalist", { id: "topics" });
    this.topic = input({ id: "f-topic", name: "topic", list: "topics", placeholder: "orders", ...judged });
    this.key = input({ id: "f-key", name: "key", placeholder: "any" });
    this.tag = input({ id: "f-tag", name: "tag", placeholder: "any; A || B" });
    this.contains = new RepeatedField("contains", "Body contains", { placeholder: "any" });
    this.where = new RepeatedField("where", "Property or field", { placeholder: "name=value", ...judged });
    this.from = new TimeField("from", "From", "the beginning; 2h, yesterday, 2026-03-01 06:00", () => this.choose("custom"));
    this.to = new TimeField("to", "To, exclusive", "now", () => this.choose("custom"));
    this.time = select("time", [["store", "stored"], ["born", "born"]]);
    this.order = select("order", [["newest", "newest first"], ["oldest", "oldest first"]]);
    this.limit = select("limit", LIMITS.map((n) => [String(n), String(n)]));
    this.range = "all";
    this.presets = h(
      "div",
      { class: "segmented presets", role: "group", "aria-label": "Time range" },
      ...[...PRESETS, { name: "custom", label: "Custom" }].map((preset) =>
        h("button", { type: "button", "data-range": preset.name, onclick: () => this.choose(preset.name) }, preset.label),
      ),
    );
    this.bounds = h("div", { class: "bounds" }, this.from.element, this.to.element);
    this.wrong = h("p", { class: "bad wrong", id: "f-wrong", role: "alert" });
    this.element = h(
      "form",
      { class: "search", role: "search", "aria-label": "Messages", novalidate: true },
      h("div", { class: "row" }, field("Topic", this.topic, "wide"), this.topics, field("Key", this.key, "wide"),
        h("button", { type: "submit", class: "primary" }, "Search")),
      h("div", { class: "row filters", role: "group", "aria-label": "Filters" }, field("Tag", this.tag, "wide"), this.contains.element, this.where.element),
      h("div", { class: "row" },
        h("div", { class: "field" }, h("span", { class: "label" }, "Time range"), this.presets),
        field("By time", this.time), field("Order", this.order), field("Per page", this.limit),
        h("button", { type: "button", class: "quiet price", onclick: actions.price }, "What would it cost?")),
      this.bounds,
      this.wrong,
    );
    this.element.addEventListener("submit", (event) => {
      event.preventDefault();
      actions.search();
    });
    onZone(() => {
      this.from.zoneChanged();
      this.to.zoneChanged();
    });
    this.choose("all");
  }

  /** @param {string} name */
  choose(name) {
    this.range = name;
    this.bounds.hidden = name !== "custom";
    for (const button of this.presets.children) {
      button.setAttribute("aria-pressed", String(/** @type {HTMLElement} */ (button).dataset.range === name));
    }
  }

  /** @param {string[]} names */
  offer(names) {
    this.topics.replaceChildren(...names.map((value) => h("option", { value })));
    if (!this.topic.value && names.length === 1) this.topic.value = names[0];
  }

  /** @returns {Search} */
  read() {
    return {
      topic: this.topic.value.trim(),
      key: this.key.value.trim(),
      tag: this.tag.value.trim(),
      contains: this.contains.read(),
      where: this.where.read(),
      range: this.range,
      from: this.from.read(),
      to: this.to.read(),
      time: value(this.time) === "born" ? "born" : "store",
      order: value(this.order) === "oldest" ? "oldest" : "newest",
      limit: Number(value(this.limit)),
    };
  }

  /** @param {Search} search */
  write(search) {
    this.topic.value = search.topic;
    this.key.value = search.key;
    this.tag.value = search.tag;
    this.contains.write(search.contains);
    this.where.write(search.where);
    this.from.write(search.from);
    this.to.write(search.to);
    setValue(this.time, search.time);
    setValue(this.order, search.order);
    const limit = String(search.limit);
    if (!LIMITS.includes(search.limit) && !this.limit.querySelector(`option[value="${limit}"]`)) {
      this.limit.append(h("option", { value: limit }, limit));
    }
    setValue(this.limit, limit);
    this.choose(search.range);
  }

  /**
   * @param {string} message
   * @param {string} [name]  of the field that is wrong
   */
  complain(message, name = "") {
    this.wrong.textContent = message;
    for (const one of [this.topic, this.from.input, this.to.input, ...this.where.inputs()]) {
      const is = one.name === name && (name !== "where" || message.startsWith(one.value));
      if (is) one.setAttribute("aria-invalid", "true");
      else one.removeAttribute("aria-invalid");
      if (is) one.focus();
    }
  }
}

/** @param {HTMLElement} select */
function value(select) {
  return /** @type {HTMLSelectElement} */ (select).value;
}

/** @param {HTMLElement} select @param {string} to */
function setValue(select, to) {
  /** @type {HTMLSelectElement} */ (select).value = to;
}
