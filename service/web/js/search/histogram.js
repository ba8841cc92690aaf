/** How many messages there are from one moment to the next, over the range of a question; a part of it can be chosen. */

import { ApiError, askJson, words } from "../api.js";
import { h, refill, s, say } from "../dom.js";
import { onZone } from "../prefs.js";
import { Scale, niceStep } from "../timeline/scale.js";
import { moment } from "../times.js";
import { count, counted, duration } from "../units.js";
import { hasFilters } from "./question.js";

/** @typedef {import("./question.js").Question} Question */
/** @typedef {{from: number, to: number, messages: number}} Bar */
/** @typedef {{from: number, to: number, interval: number, bars: Bar[], words: string}} Counted */

const HEIGHT = 84;
const TOP = 12;
const AXIS = 18;
const LEAST = 2;
/** Pixels from bar to bar, about. */
const PITCH = 12;

export class Histogram {
  /** @param {(from: number, to: number) => void} narrow  to a part of the range */
  constructor(narrow) {
    this.narrow = narrow;
    this.told = h("span", { class: "muted" });
    this.bars = s("g");
    this.axis = s("g");
    this.most = s("text", { class: "tick-label", x: 4, y: 10 });
    this.chosen = s("rect", { class: "chosen", y: 0, height: HEIGHT - AXIS, visibility: "hidden" });
    this.svg = s("svg", { class: "bars", height: HEIGHT, tabindex: 0, role: "application",
      "aria-label": "Messages over time. Arrow keys go from bar to bar, with Shift they choose several, Enter narrows the search to what is chosen." },
      this.axis, this.chosen, this.bars, this.most);
    this.element = h("section", { class: "histogram", "aria-label": "Messages over time", hidden: true },
      h("div", { class: "histogram-head" }, h("h3", {}, "Messages over time"), this.told), this.svg);
    /** @type {Question | null} */
    this.question = null;
    /** @type {Counted | null} */
    this.counted = null;
    /** Index of the bar where a choice began, and of the one where it ends. @type {[number, number] | null} */
    this.choice = null;
    /** @type {AbortController | null} */
    this.running = null;
    new ResizeObserver(() => this.draw()).observe(this.element);
    onZone(() => this.draw());
    this.listen();
  }

  /** @param {Question | null} question */
  begin(question) {
    this.running?.abort();
    this.question = question;
    this.show(null);
    if (question && !isFiltered(question)) this.ask(question);
  }

  /** @param {Question} question */
  async ask(question) {
    const running = new AbortController();
    this.running = running;
    this.element.hidden = false;
    refill(this.told, "Counting…");
    const asked = new URLSearchParams({ time: question.search.time, buckets: String(this.room()) });
    if (question.from_ms !== null) asked.set("from", String(question.from_ms));
    if (question.to_ms !== null) asked.set("to", String(question.to_ms));
    try {
      const found = await askJson(`/v1/topics/${encodeURIComponent(question.topic)}/counts?${asked}`, { signal: running.signal });
      const interval = Math.max(1, found.interval_ms);
      const bars = found.counts.map((/** @type {any} */ one) => ({ from: one.from_ms, to: one.from_ms + interval, messages: one.messages }));
      const total = `${found.exact ? "" : "about "}${counted(found.total, "message")}`;
      this.show(found.total > 0 ? { from: found.from_ms, to: found.to_ms, interval, bars, words: total } : null);
    } catch (error) {
      if (running.signal.aborted) return;
      this.show(null);
      if (error instanceof ApiError && (error.status === 404 || error.status === 0)) return; // the search says so itself
      this.element.hidden = false;
      refill(this.told, `They could not be counted: ${words(error)}`);
    }
  }

  /**
   * The messages that are loaded: all that can be counted of a question with a key or a filter.
   * @param {any[]} messages
   */
  loaded(messages) {
    const question = this.question;
    if (!question || !isFiltered(question) || messages.length < 2) return;
    const times = messages.map((message) => (question.search.time === "born" ? message.born_ms : message.store_ms));
    const [least, most] = [Math.min(...times), Math.max(...times)];
    const step = niceStep(Math.max(1, (most - least) / this.room()));
    const from = Math.floor(least / step) * step;
    const found = new Map();
    for (const at of times) found.set(Math.floor((at - from) / step), (found.get(Math.floor((at - from) / step)) ?? 0) + 1);
    const bars = [...found].sort(([one], [other]) => one - other).map(([at, n]) => ({ from: from + at * step, to: from + (at + 1) * step, messages: n }));
    this.show({ from, to: bars.at(-1)?.to ?? most + 1, interval: step, bars, words: `of the ${counted(messages.length, "message")} loaded` });
  }

  /** How many bars fit. */
  room() {
    const width = this.element.clientWidth || this.element.parentElement?.clientWidth || 600;
    return Math.max(10, Math.min(200, Math.floor(width / PITCH)));
  }

  /** @param {Counted | null} data */
  show(data) {
    this.counted = data;
    this.choice = null;
    this.element.hidden = data === null;
    this.draw();
  }

  scale() {
    const data = this.counted;
    const width = this.svg.clientWidth;
    return data && width > 0 ? new Scale("time", { from: data.from, to: Math.max(data.to, data.from + 1) }, 1, width - 2) : null;
  }

  draw() {
    const scale = this.scale();
    const data = this.counted;
    this.bars.replaceChildren();
    this.axis.replaceChildren();
    this.most.textContent = "";
    if (!scale || !data) return void this.drawChoice();
    const high = Math.max(1, ...data.bars.map((bar) => bar.messages));
    const room = HEIGHT - AXIS - TOP;
    for (const { x, text } of scale.marks()) {
      this.axis.append(s("line", { class: "tick", x1: x, x2: x, y1: 0, y2: HEIGHT - AXIS }));
      const end = x > scale.width - 60;
      if (x > 30) this.axis.append(s("text", { class: "tick-label", x: Math.min(x, scale.width), y: HEIGHT - 4, "text-anchor": end ? "end" : "middle" }, text));
    }
    for (const bar of data.bars) {
      if (bar.messages === 0) continue;
      const [from, to] = [scale.x(Math.max(bar.from, data.from)), scale.x(Math.min(bar.to, data.to))];
      const height = Math.max(LEAST, (bar.messages / high) * room);
      this.bars.append(s("rect", { class: "bar", x: from, y: HEIGHT - AXIS - height, width: Math.max(1, to - from - (to - from > 4 ? 1 : 0)), height, rx: 1 }));
    }
    this.most.textContent = count(high);
    this.drawChoice();
  }

  drawChoice() {
    const scale = this.scale();
    const range = this.range();
    this.chosen.setAttribute("visibility", scale && range ? "visible" : "hidden");
    const data = this.counted;
    if (data) refill(this.told, range ? this.describe(range) : `${data.words}, a bar is ${duration(data.interval)}`);
    if (!scale || !range) return;
    const x = scale.x(range.from);
    this.chosen.setAttribute("x", String(x));
    this.chosen.setAttribute("width", String(Math.max(2, scale.x(range.to) - x)));
  }

  /** What is chosen, in whole intervals. */
  range() {
    const data = this.counted;
    if (!data || !this.choice) return null;
    const first = data.bars[0].from;
    const [least, most] = [Math.min(...this.choice), Math.max(...this.choice)];
    return { from: Math.max(data.from, first + least * data.interval), to: Math.min(data.to, first + (most + 1) * data.interval) };
  }

  /** @param {{from: number, to: number}} range */
  describe(range) {
    const inside = (this.counted?.bars ?? []).filter((bar) => bar.from < range.to && bar.to > range.from);
    const n = inside.reduce((sum, bar) => sum + bar.messages, 0);
    return `${moment(range.from)} to ${moment(range.to)}: ${counted(n, "message")}`;
  }

  /** Number of the interval at a place of the screen. @param {number} clientX */
  at(clientX) {
    const scale = this.scale();
    const data = this.counted;
    if (!scale || !data) return null;
    const value = scale.value(clientX - this.svg.getBoundingClientRect().left);
    return Math.max(0, Math.min(this.last(), Math.floor((value - data.bars[0].from) / data.interval)));
  }

  last() {
    const data = this.counted;
    return data ? Math.max(0, Math.ceil((data.to - data.bars[0].from) / data.interval) - 1) : 0;
  }

  take() {
    const range = this.range();
    if (range && range.to > range.from) this.narrow(range.from, range.to);
  }

  listen() {
    /** @type {number | null} */
    let start = null;
    this.svg.addEventListener("pointerdown", (event) => {
      if (event.button !== 0) return;
      start = this.at(event.clientX);
      if (start !== null) this.svg.setPointerCapture(event.pointerId);
    });
    this.svg.addEventListener("pointermove", (event) => {
      const now = this.at(event.clientX);
      this.choice = now === null ? null : [start ?? now, now];
      this.drawChoice();
    });
    this.svg.addEventListener("pointerup", (event) => {
      const now = this.at(event.clientX);
      if (start === null || now === null) return;
      this.choice = [start, now];
      start = null;
      this.take();
    });
    const forget = () => {
      start = null;
      this.choice = null;
      this.drawChoice();
    };
    this.svg.addEventListener("pointercancel", forget);
    this.svg.addEventListener("pointerleave", () => start === null && forget());
    this.svg.addEventListener("blur", forget);
    this.svg.addEventListener("keydown", (event) => this.onKey(/** @type {KeyboardEvent} */ (event)));
  }

  /** @param {KeyboardEvent} event */
  onKey(event) {
    if (event.ctrlKey || event.metaKey || event.altKey || !this.counted) return;
    const by = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (by) {
      const [start, now] = this.choice ?? [by < 0 ? this.last() + 1 : -1, by < 0 ? this.last() + 1 : -1];
      const next = Math.max(0, Math.min(this.last(), now + by));
      this.choice = [event.shiftKey && this.choice ? start : next, next];
      this.drawChoice();
      const range = this.range();
      if (range) say(this.describe(range));
    } else if (event.key === "Enter" && this.choice) this.take();
    else if (event.key === "Escape" && this.choice) {
      this.choice = null;
      this.drawChoice();
    } else return;
    event.preventDefault();
    event.stopPropagation();
  }
}

/** Whether a question is about some messages of its topic and range only. @param {Question} question */
function isFiltered({ search }) {
  return Boolean(search.key) || hasFilters(search);
}
