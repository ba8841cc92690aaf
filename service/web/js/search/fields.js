/** Fields of forms that are more than an input: one that can be repeated, and one for a time. */

import { h, refill } from "../dom.js";
import { timeZone } from "../prefs.js";
import { isRelative, moment, parse, rfc3339, wallClock, zoneName } from "../times.js";

const PLAIN = { type: "text", autocomplete: "off", spellcheck: "false", autocapitalize: "off" };

/** @param {import("../dom.js").Props} props */
export function input(props) {
  return /** @type {HTMLInputElement} */ (h("input", { ...PLAIN, ...props }));
}

/**
 * @param {string} label
 * @param {HTMLElement} control
 * @param {string} [kind]
 */
export function field(label, control, kind = "") {
  return h("div", { class: `field ${kind}` }, h("label", { for: control.id }, label), control);
}

/** Any number of texts, of which there is always a field for one. */
export class RepeatedField {
  /**
   * @param {string} name
   * @param {string} label
   * @param {import("../dom.js").Props} props  of each input
   */
  constructor(name, label, props) {
    this.name = name;
    this.label = label;
    this.props = props;
    this.more = h("button", { type: "button", class: "quiet tiny", "aria-label": `${label}: one more`, title: "One more", onclick: () => this.add("").focus() }, "+");
    this.lines = h("div", { class: "repeated" });
    this.element = h("div", { class: "field wide" },
      h("div", { class: "field-head" }, h("label", { for: `f-${name}-1` }, label), this.more), this.lines);
    this.write([]);
  }

  /** @param {string} text */
  add(text) {
    const at = this.lines.children.length + 1;
    const one = input({ ...this.props, name: this.name, id: `f-${this.name}-${at}`, "aria-label": at > 1 && `${this.label}, ${at}` });
    one.value = text;
    const line = h("div", { class: "repeated-line" }, one,
      at > 1 && h("button", { type: "button", class: "quiet tiny", "aria-label": `${this.label}, ${at}: remove`, title: "Remove", onclick: () => this.remove(line) }, "×"));
    this.lines.append(line);
    return one;
  }

  /** @param {HTMLElement} line */
  remove(line) {
    const rest = this.inputs().filter((one) => !line.contains(one)).map((one) => one.value);
    this.write(rest);
    this.inputs().at(-1)?.focus();
  }

  /** @returns {HTMLInputElement[]} */
  inputs() {
    return [...this.lines.querySelectorAll("input")];
  }

  read() {
    return this.inputs().map((one) => one.value.trim()).filter(Boolean);
  }

  /** @param {string[]} texts */
  write(texts) {
    this.lines.replaceChildren();
    for (const text of texts.length ? texts : [""]) this.add(text);
  }
}

/** A time: typed in any way that the page takes, or picked; what it means is shown below. */
export class TimeField {
  /**
   * @param {string} name
   * @param {string} label
   * @param {string} placeholder
   * @param {() => void} changed  by a person
   */
  constructor(name, label, placeholder, changed) {
    this.label = label;
    this.changed = changed;
    this.input = input({ name, id: `f-${name}`, placeholder, "aria-describedby": `f-${name}-means f-wrong` });
    this.means = h("output", { class: "means", id: `f-${name}-means`, for: this.input.id });
    this.picker = /** @type {HTMLInputElement} */ (h("input", { type: "datetime-local", step: 1, class: "picker", tabindex: -1, "aria-label": `Picked: ${label}` }));
    this.name = h("label", { for: this.input.id });
    this.element = h("div", { class: "field" }, this.name,
      h("div", { class: "with-picker" }, this.input, this.picker,
        h("button", { type: "button", class: "quiet", title: "Pick a date and a time", "aria-label": `Pick a date and a time: ${label}`, onclick: () => this.pick() },
          h("span", { class: "calendar", "aria-hidden": "true" }))),
      this.means);
    this.input.addEventListener("input", () => {
      this.tell();
      changed();
    });
    this.picker.addEventListener("input", () => this.picked());
    this.zoneChanged();
  }

  pick() {
    const now = parse(this.input.value);
    this.picker.value = wallClock(now === null || Number.isNaN(now) ? Date.now() : now);
    try {
      this.picker.showPicker();
    } catch {
      this.picker.focus(); // a browser that opens none by a script
    }
  }

  picked() {
    const ms = parse(this.picker.value);
    if (ms === null || Number.isNaN(ms)) return;
    this.input.value = rfc3339(ms);
    this.tell();
    this.changed();
  }

  /** Say what a text means that does not say it itself. */
  tell() {
    const text = this.input.value.trim();
    const ms = parse(text);
    const saysItself = /^\d{4}-\d\d-\d\dT/.test(text) && ms !== null && text.endsWith(rfc3339(ms).slice("2026-03-01T06:00:00.000".length));
    refill(this.means, ms !== null && !Number.isNaN(ms) && !saysItself && `= ${moment(ms)}`);
  }

  /** Times that stand in the field are moments: they stay, and their text follows the zone. */
  zoneChanged() {
    this.name.textContent = `${this.label} (${zoneName()})`;
    if (/(Z|[+-]\d\d:\d\d)$/.test(this.input.value)) this.write(this.input.value);
    this.tell();
  }

  /**
   * A text without a zone is one in the zone that is shown: with it, it means the same to everybody. A relative time
   * stays as it is, and moves on.
   */
  read() {
    this.tell();
    const text = this.input.value.trim();
    const ms = parse(text);
    return ms === null || Number.isNaN(ms) || /^\d+$/.test(text) || isRelative(text) ? text : rfc3339(ms);
  }

  /** @param {string} text  of an address; a moment is shown in the zone of now */
  write(text) {
    const ms = parse(text);
    const stays = ms === null || Number.isNaN(ms) || isRelative(text) || (timeZone() === "utc" && /Z$/.test(text));
    this.input.value = stays ? text : rfc3339(ms);
    this.tell();
  }
}
