/** The store at a glance: asks for the timeline, follows it, and lets people move in it. */

import { ApiError, askJson, words } from "../api.js";
import { h, refill, say } from "../dom.js";
import { Poll } from "../poll.js";
import { onZone } from "../prefs.js";
import { zoneName } from "../times.js";
import { count, counted } from "../units.js";
import { Picture } from "./picture.js";
import { STATES, census, describe, identity, rowOf, timesOf } from "./rows.js";
import { Scale, moved, zoomed } from "./scale.js";

/** @typedef {import("./rows.js").Block} Block */
/** @typedef {import("./scale.js").Range} Range */

const EVERY_MS = 2000;
const PADDING = 16;
const FOREVER = 253_402_300_000_000;

/** @type {["store" | "born" | "log", string, string][]} */
const AXES = [
  ["store", "Stored", "Along the time when messages were stored"],
  ["born", "Born", "Along the time that senders say"],
  ["log", "Log", "Along the bytes of the log"],
];

export class Glance {
  /**
   * @param {HTMLElement} element
   * @param {(from: number, to: number, time: import("./rows.js").Time) => void} choose  a range of times for the search
   */
  constructor(element, choose) {
    this.choose = choose;
    this.picture = new Picture();
    this.tip = h("div", { class: "tip", hidden: true });
    this.frame = h("div", { class: "frame" }, this.picture.svg, this.tip);
    this.frame.classList.add("waiting");
    this.legend = h("ul", { class: "legend states" });
    this.trouble = h("p", { class: "bad", role: "status" });
    this.axisSwitch = h("div", { class: "segmented", role: "group", "aria-label": "Along" },
      ...AXES.map(([name, label, title]) => h("button", { type: "button", class: "small", "data-axis": name, title, onclick: () => this.along(name) }, label)));
    this.zone = h("span", { class: "muted zone-note" });
    refill(
      element,
      h("div", { class: "glance-head" },
        h("h2", { id: "glance-title" }, "The store at a glance"), this.zone, h("span", { class: "grow" }), this.axisSwitch,
        h("div", { class: "segmented", role: "group", "aria-label": "Zoom" },
          h("button", { type: "button", class: "small", "aria-label": "Closer", onclick: () => this.zoom(0.5) }, "+"),
          h("button", { type: "button", class: "small", "aria-label": "Wider", onclick: () => this.zoom(2) }, "−"),
          h("button", { type: "button", class: "small", onclick: () => this.show(null) }, "All"))),
      this.frame, this.legend, this.trouble,
    );
    /** @type {"time" | "log"} */
    this.axis = "time";
    /** @type {import("./rows.js").Time} */
    this.time = "store";
    /** @type {Range | null} */
    this.window = null;
    /** @type {any} */
    this.data = null;
    this.asked = "";
    /** @type {Block | null} */
    this.pointed = null;
    /** @type {Pick<import("./picture.js").Scene, "selected" | "covered" | "hits"> & {time: import("./rows.js").Time, found: any[]}} */
    this.search = { selected: null, covered: null, hits: [], time: "store", found: [] };
    this.poll = new Poll(EVERY_MS, () => this.ask());
    new ResizeObserver(() => this.draw(false)).observe(this.frame);
    onZone(() => this.draw(false));
    this.listen();
  }

  async ask() {
    const query = this.query();
    const known = query === this.asked && this.data && !this.data.cold_error ? this.data.manifest_version : null;
    try {
      const data = await askJson(`/v1/timeline?${query}${known === null ? "" : `&known_version=${known}`}`, { quiet: true });
      if (query !== this.query()) return void this.poll.now();
      if (data.cold === null) data.cold = this.data?.cold ?? [];
      const settled = query === this.asked;
      this.data = data;
      this.asked = query;
      this.trouble.textContent = data.cold_error ? `The archive's list of objects could not be read in full: ${data.cold_error}` : "";
      this.draw(settled);
    } catch (error) {
      this.trouble.textContent = error instanceof ApiError && error.status === 0 ? "" : words(error);
      throw error;
    }
  }

  query() {
    const asked = new URLSearchParams({ blocks: String(Math.max(50, Math.round(this.frame.clientWidth / 3))) });
    if (this.axis === "time" && this.time === "born") asked.set("time", "born");
    if (this.window) {
      const ends = this.axis === "time" ? ["from", "to"] : ["from_offset", "to_offset"];
      asked.set(ends[0], String(Math.max(0, Math.floor(this.window.from))));
      asked.set(ends[1], String(Math.ceil(this.window.to) + 1));
    }
    return asked.toString();
  }

  /** @returns {Range | null} */
  whole() {
    const data = this.data;
    if (!data) return null;
    if (this.axis === "log") return { from: Math.min(data.cold_min ?? data.log_begin, data.log_begin), to: Math.max(data.log_end, data.log_begin + 1) };
    if (data.from_ms === null || data.time !== this.time) return null;
    const width = Math.max(1000, data.to_ms - data.from_ms);
    return { from: data.from_ms, to: data.from_ms + width * 1.01 };
  }

  scale() {
    const whole = this.whole();
    if (!whole) return null;
    const width = this.frame.clientWidth - PADDING;
    const left = width < 560 ? 2 : 112;
    return new Scale(this.axis, this.window ?? whole, left, Math.max(50, width - left - 2));
  }

  /** @param {boolean} settled */
  draw(settled) {
    const scale = this.scale();
    this.frame.classList.toggle("waiting", !this.data);
    const answered = Boolean(this.data) && (this.axis === "log" || this.data.time === this.time);
    this.frame.classList.toggle("nothing", answered && !scale);
    this.frame.classList.toggle("unborn", answered && !scale && this.time === "born");
    const along = this.axis === "time" ? this.time : this.axis;
    this.zone.textContent = along === "log" ? "offsets in the log" : `${along} time, ${zoneName()}`;
    for (const button of this.axisSwitch.children) button.setAttribute("aria-pressed", String(/** @type {HTMLElement} */ (button).dataset.axis === along));
    if (!this.data) return;
    const blocks = this.blocks();
    this.count(blocks);
    if (!scale) return;
    const { selected, covered, time, found } = this.search;
    const place = { store: "store_ms", born: "born_ms", log: "physical_offset" }[along];
    const hits = found.map((message) => ({ at: message[place], tier: message.tier }));
    this.picture.draw({
      blocks, marks: this.data, scale, settled, hits, time: this.time,
      selected: along === time ? selected : null, covered: along === time ? covered : null,
    });
    const pointed = this.pointed && identity(this.pointed);
    this.point(blocks.find((block) => identity(block) === pointed) ?? null);
  }

  /** @returns {Block[]} */
  blocks() {
    return [...this.data.hot, ...this.data.cold];
  }

  /** @param {Block[]} blocks */
  count(blocks) {
    const found = census(blocks, this.data.log_begin);
    const groups = new Map(STATES.map(([, , group]) => [group, /** @type {Node[]} */ ([])]));
    for (const [name, words, group] of STATES) {
      const n = found.get(name) ?? 0;
      if (n === 0 && (name === "classic" || name === "index merged")) continue;
      groups.get(group)?.push(h("span", { class: `state${n ? "" : " none"}`, "data-name": name, "data-count": n },
        h("span", { class: `key ${name}`, "aria-hidden": "true" }), h("b", {}, count(n)), ` ${words}`));
    }
    refill(this.legend, ...[...groups].map(([group, items]) => h("li", {}, h("span", { class: "muted" }, group), ...items)),
      this.window && h("li", { class: "muted" }, "in this part of the store"),
      this.unknown(blocks));
  }

  /**
   * How many files are not drawn, because nobody knows when their messages were born.
   * @param {Block[]} blocks
   */
  unknown(blocks) {
    if (this.axis !== "time" || this.time !== "born") return null;
    const n = blocks.filter((block) => timesOf(block, "born") === null).reduce((sum, block) => sum + block.count, 0);
    return n > 0 && h("li", { class: "muted unknown" }, `Not drawn: ${counted(n, "file")} whose born times are not known, as of segments before they are archived`);
  }

  /**
   * What the search asks and has found, drawn on the store.
   * @param {import("../search/question.js").Question | null} question
   * @param {any[]} messages
   * @param {any} coverage
   */
  showSearch(question, messages, coverage) {
    const bounded = question !== null && (question.from_ms !== null || question.to_ms !== null);
    const claims = (/** @type {"hot" | "cold"} */ tier) => {
      const found = (coverage?.stores ?? []).map((/** @type {any} */ store) => store[tier]).find(Boolean);
      return found ? { from: found.from_ms, to: Math.min(found.to_ms, FOREVER) } : null;
    };
    this.search = {
      selected: bounded ? { from: question.from_ms ?? 0, to: question.to_ms ?? FOREVER } : null,
      covered: coverage ? { hot: claims("hot"), cold: claims("cold") } : null,
      time: question?.search.time === "born" ? "born" : "store",
      hits: [],
      found: messages,
    };
    this.draw(true);
  }

  /** @param {"store" | "born" | "log"} along */
  along(along) {
    this.axis = along === "log" ? "log" : "time";
    if (along !== "log") this.time = along;
    this.show(null);
  }

  /** @param {Range | null} window */
  show(window) {
    this.window = window;
    this.draw(false);
    this.poll.now();
  }

  /**
   * @param {number} factor
   * @param {number} [at]  what stays where it is
   */
  zoom(factor, at) {
    const whole = this.whole();
    const range = this.window ?? whole;
    if (!range || !whole) return;
    this.show(zoomed(range, whole, at ?? (range.from + range.to) / 2, factor));
  }

  /** @param {number} share of what is shown */
  move(share) {
    const whole = this.whole();
    if (this.window && whole) this.show(moved(this.window, whole, (this.window.to - this.window.from) * share));
  }

  /** @param {Block | null} block */
  point(block) {
    this.pointed = block;
    const place = this.picture.point(block);
    this.tip.hidden = !place || !block;
    if (!place || !block) return;
    const lines = describe(block, this.data.log_begin);
    refill(this.tip, h("strong", {}, `${lines[0][0]}, ${lines[0][1]}`),
      h("dl", {}, ...lines.slice(1).flatMap(([name, value]) => [h("dt", {}, name), h("dd", {}, value)])),
      timesOf(block, this.time) && h("p", { class: "muted" }, "Click or Enter: search this time"));
    const room = this.frame.clientWidth - this.tip.offsetWidth;
    this.tip.style.left = `${Math.max(0, Math.min(room, place.x - this.tip.offsetWidth / 2))}px`;
    this.tip.style.top = `${place.y + 8}px`;
  }

  /** @param {Block | null} block */
  take(block) {
    const times = block && timesOf(block, this.time);
    if (times) this.choose(times[0], times[1] + 1, this.time);
  }

  listen() {
    const svg = this.picture.svg;
    /** @type {{x: number, window: Range, far: boolean} | null} */
    let drag = null;
    const blockAt = (/** @type {Event} */ event) => this.picture.blockOf.get(/** @type {Element} */ (event.target)) ?? null;
    svg.addEventListener("pointermove", (event) => {
      const scale = this.scale();
      const whole = this.whole();
      if (drag && scale && whole) {
        const by = scale.value(drag.x) - scale.value(event.clientX);
        drag.far ||= Math.abs(event.clientX - drag.x) > 4;
        if (drag.far && this.window) {
          this.window = moved(drag.window, whole, by);
          this.point(null);
          this.draw(false);
        }
      } else {
        const block = blockAt(event);
        if (block !== this.pointed) this.point(block);
      }
    });
    svg.addEventListener("pointerleave", () => drag || this.point(null));
    svg.addEventListener("pointerdown", (event) => {
      const range = this.window ?? this.whole();
      if (event.button === 0 && range) drag = { x: event.clientX, window: range, far: false };
    });
    window.addEventListener("pointerup", () => {
      if (drag?.far) this.poll.now();
      setTimeout(() => (drag = null)); // after the click that this may be
    });
    svg.addEventListener("click", (event) => drag?.far || this.take(blockAt(event)));
    svg.addEventListener("wheel", (event) => {
      const scale = this.scale();
      const sideways = Math.abs(event.deltaX) > Math.abs(event.deltaY);
      const zooms = event.ctrlKey || event.metaKey || document.activeElement === svg;
      if (!scale || !(sideways || zooms)) return; // else the page scrolls
      event.preventDefault();
      if (sideways) this.move(event.deltaX / 1000);
      else this.zoom(2 ** (event.deltaY / 300), scale.value(event.clientX - svg.getBoundingClientRect().left));
    }, { passive: false });
    svg.addEventListener("keydown", (event) => this.onKey(/** @type {KeyboardEvent} */ (event)));
    svg.addEventListener("blur", () => this.point(null));
  }

  /** @param {KeyboardEvent} event */
  onKey(event) {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const steps = /** @type {Record<string, [number, number]>} */ ({ ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] });
    const step = steps[event.key];
    if (step && event.shiftKey && step[0]) this.move(step[0] / 4);
    else if (step) this.pointNext(...step);
    else if (event.key === "+" || event.key === "=") this.zoom(0.5, this.middle());
    else if (event.key === "-") this.zoom(2, this.middle());
    else if (event.key === "0") this.show(null);
    else if (event.key === "Enter" && this.pointed) this.take(this.pointed);
    else if (event.key === "Escape") this.point(null);
    else return;
    event.preventDefault();
    event.stopPropagation();
  }

  /** Where the block that is pointed to lies, if one is. */
  middle() {
    const block = this.pointed;
    if (!block) return undefined;
    if (this.axis === "log") return (block.first_offset + block.next_offset) / 2;
    const times = timesOf(block, this.time);
    return times ? (times[0] + times[1]) / 2 : undefined;
  }

  /**
   * @param {number} along
   * @param {number} across
   */
  pointNext(along, across) {
    if (!this.data) return;
    const rows = [...this.picture.rows.keys()];
    const blocks = this.blocks().filter((block) => this.picture.drawn.has(identity(block))).sort((one, other) => one.first_offset - other.first_offset);
    const now = this.pointed ?? blocks.filter((block) => rowOf(block) === "hot-log").at(-1) ?? blocks[0];
    if (!now) return;
    let next = now;
    if (this.pointed && along) {
      const row = blocks.filter((block) => rowOf(block) === rowOf(now));
      next = row[row.indexOf(now) + along] ?? now;
    } else if (this.pointed) {
      for (let at = rows.indexOf(rowOf(now)) + across; rows[at]; at += across) {
        const row = blocks.filter((block) => rowOf(block) === rows[at]);
        const near = row.find((block) => block.next_offset > now.first_offset) ?? row.at(-1);
        if (near) {
          next = near;
          break;
        }
      }
    }
    this.point(next);
    say(describe(next, this.data.log_begin).map((line) => line.join(" ")).join(", "));
  }
}
