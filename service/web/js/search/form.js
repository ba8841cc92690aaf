/** The search's form: what a person fills in, as a {@link Search} and back. */

import { LIMITS } from "../address.js";
import { h } from "../dom.js";
import { onZone, timeZone } from "../prefs.js";
import { PRESETS, parse, rfc3339, zoneName } from "../times.js";

/** @typedef {import("../address.js").Search} Search */

/**
 * @param {string} name
 * @param {[string, string][]} options
 */
function select(name, options) {
  return h("select", { name, id: `f-${name}` }, ...options.map(([value, label]) => h("option", { value }, label)));
}

/**
 * @param {string} label
 * @param {HTMLElement} control
 * @param {string} [kind]
 */
function field(label, control, kind = "") {
  return h("div", { class: `field ${kind}` }, h("label", { for: control.id }, label), control);
}

export class SearchForm {
  /**
   * @param {{search: () => void, price: () => void}} actions
   */
  constructor(actions) {
    const text = { autocomplete: "off", spellcheck: "false", autocapitalize: "off" };
    this.topics = h("datalist", { id: "topics" });
    this.topic = input({ id: "f-topic", name: "topic", list: "topics", placeholder: "orders", ...text });
    this.key = input({ id: "f-key", name: "key", placeholder: "any", ...text });
    this.from = input({ id: "f-from", name: "from", placeholder: "the beginning", ...text });
    this.to = input({ id: "f-to", name: "to", placeholder: "now", ...text });
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
    this.bounds = h(
      "div",
      { class: "bounds" },
      field("", this.from),
      field("", this.to),
    );
    this.wrong = h("p", { class: "bad wrong", id: "f-wrong", role: "alert" });
    this.element = h(
      "form",
      { class: "search", role: "search", "aria-label": "Messages", novalidate: true },
      h("div", { class: "row" }, field("Topic", this.topic, "wide"), this.topics, field("Key", this.key, "wide"),
        h("button", { type: "submit", class: "primary" }, "Search")),
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
    for (const one of [this.from, this.to]) one.addEventListener("input", () => this.choose("custom"));
    onZone(() => this.zoneChanged());
    this.label();
    this.choose("all");
  }

  label() {
    const [from, to] = this.bounds.querySelectorAll("label");
    from.textContent = `From (${zoneName()})`;
    to.textContent = `To, exclusive (${zoneName()})`;
  }

  /** Times that stand in the form are moments: they stay, and their text follows the zone. */
  zoneChanged() {
    for (const one of [this.from, this.to]) {
      const ms = /(Z|[+-]\d\d:\d\d)$/.test(one.value) ? parse(one.value) : null;
      if (ms !== null && !Number.isNaN(ms)) one.value = rfc3339(ms);
    }
    this.label();
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
      range: this.range,
      from: this.moment(this.from),
      to: this.moment(this.to),
      time: value(this.time) === "born" ? "born" : "store",
      order: value(this.order) === "oldest" ? "oldest" : "newest",
      limit: Number(value(this.limit)),
    };
  }

  /**
   * A text without a zone is one in the zone that is shown: with it, it means the same to everybody.
   * @param {HTMLInputElement} one
   */
  moment(one) {
    const text = one.value.trim();
    const ms = parse(text);
    return ms === null || Number.isNaN(ms) || /^\d+$/.test(text) ? text : rfc3339(ms);
  }

  /** @param {Search} search */
  write(search) {
    this.topic.value = search.topic;
    this.key.value = search.key;
    this.from.value = shown(search.from);
    this.to.value = shown(search.to);
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
    for (const one of [this.topic, this.from, this.to]) {
      const is = one.name === name;
      if (is) one.setAttribute("aria-invalid", "true");
      else one.removeAttribute("aria-invalid");
      if (is) one.focus();
    }
  }
}

/** @param {import("../dom.js").Props} props */
function input(props) {
  return /** @type {HTMLInputElement} */ (h("input", { type: "text", "aria-describedby": "f-wrong", ...props }));
}

/** @param {HTMLElement} select */
function value(select) {
  return /** @type {HTMLSelectElement} */ (select).value;
}

/** @param {HTMLElement} select @param {string} to */
function setValue(select, to) {
  /** @type {HTMLSelectElement} */ (select).value = to;
}

/**
 * A moment of an address in the zone that is shown.
 * @param {string} text
 */
function shown(text) {
  const ms = parse(text);
  return ms === null || Number.isNaN(ms) || (timeZone() === "utc" && /Z$/.test(text)) ? text : rfc3339(ms);
}
