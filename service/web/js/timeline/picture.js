/** Draws the timeline, and moves what has changed since it was drawn last. */

import { s } from "../dom.js";
import { classOf, identity, rowOf, rowsOf, timesOf } from "./rows.js";

/** @typedef {import("./rows.js").Block} Block */
/** @typedef {import("./scale.js").Scale} Scale */

const GAP = 5;
const TOP = 8;
const BETWEEN = 16;
const AXIS = 22;
const LEAST = 2;

/**
 * @typedef {object} Scene
 * @property {Block[]} blocks
 * @property {any} marks  border, archived_to and others of the answer
 * @property {Scale} scale
 * @property {import("./rows.js").Time} time  along the axis of times
 * @property {import("./scale.js").Range | null} selected  the search's range
 * @property {{hot: import("./scale.js").Range | null, cold: import("./scale.js").Range | null} | null} covered
 * @property {{at: number, tier: "hot" | "cold"}[]} hits
 * @property {boolean} settled  false while a person moves it: then nothing glides
 */

export class Picture {
  constructor() {
    this.bands = s("g", { class: "bands" });
    this.selection = s("rect", { class: "selection", visibility: "hidden" });
    this.axis = s("g", { class: "axis" });
    this.blocks = s("g", { class: "blocks" });
    this.covered = s("g", { class: "covered" });
    this.hits = s("g", { class: "hits" });
    this.lines = s("g", { class: "lines" });
    this.ring = s("rect", { class: "ring", visibility: "hidden", rx: 4 });
    this.svg = s(
      "svg",
      { class: "timeline", tabindex: "0", role: "application", "aria-roledescription": "timeline", "aria-label": "Timeline of the store: arrows go from file to file, Enter searches its time" },
      gradients(),
      this.axis, this.bands, this.selection, this.blocks, this.covered, this.hits, this.lines, this.ring,
    );
    /** @type {Map<string, SVGElement>} */
    this.drawn = new Map();
    /** @type {WeakMap<Element, Block>} */
    this.blockOf = new WeakMap();
    /** @type {Map<string, {y: number, height: number}>} */
    this.rows = new Map();
    this.archivedTo = -1;
    this.height = 0;
  }

  /** @param {Scene} scene */
  draw(scene) {
    this.svg.classList.toggle("held", !scene.settled);
    this.layOut(scene);
    this.drawBlocks(scene);
    this.drawLines(scene);
    this.drawSearch(scene);
    this.archivedTo = scene.marks.archived_to ?? -1;
  }

  /** @param {Scene} scene */
  layOut(scene) {
    const rows = rowsOf(scene.blocks);
    const { left, width } = scene.scale;
    const bands = /** @type {Record<string, {from: number, to: number}>} */ ({});
    this.rows.clear();
    this.bands.replaceChildren();
    let y = TOP;
    let tier = "hot";
    for (const row of rows) {
      if (row.tier !== tier) y += BETWEEN;
      tier = row.tier;
      this.rows.set(row.id, { y, height: row.height });
      bands[tier] = { from: bands[tier]?.from ?? y - GAP, to: y + row.height + GAP };
      if (left > 50) this.bands.append(s("text", { class: "row-label", x: left - 10, y: y + row.height / 2 + 4, "text-anchor": "end" }, row.label));
      y += row.height + GAP;
    }
    for (const [name, band] of Object.entries(bands)) {
      const [from, to] = this.reach(scene, name);
      this.bands.prepend(
        s("rect", { class: "shelf", x: left, y: band.from, width, height: band.to - band.from, rx: 6 }),
        s("rect", { class: `band ${name}`, x: from, y: band.from, width: Math.max(0, to - from), height: band.to - band.from, rx: 6 }),
      );
      if (left > 50) this.bands.append(s("text", { class: `tier-label ${name}`, x: 2, y: band.from + 22 }, name));
    }
    this.bandOf = bands;
    this.height = y + AXIS;
    this.svg.setAttribute("height", String(this.height));
    this.axis.replaceChildren(
      ...scene.scale.marks().flatMap(({ x, text }) => [
        s("line", { class: "tick", x1: x, x2: x, y1: TOP, y2: y }),
        s("text", { class: "tick-label", x, y: y + 15, "text-anchor": x > left + width - 40 ? "end" : x < left + 30 ? "start" : "middle" }, text),
      ]),
    );
  }

  /**
   * From where to where a tier holds something, on the screen.
   * @param {Scene} scene
   * @param {string} tier
   */
  reach(scene, tier) {
    const { left, width } = scene.scale;
    const spans = scene.blocks.filter((block) => block.tier === tier).map((block) => this.span(block, scene)).filter((span) => span !== null);
    const clip = (/** @type {number} */ x) => Math.max(left, Math.min(left + width, x));
    if (!spans.length) return [left, left];
    return [clip(Math.min(...spans.map(([from]) => from)) - 3), clip(Math.max(...spans.map(([, to]) => to)) + 3)];
  }

  /**
   * From where to where a block is drawn; null for one whose times are not known.
   * @param {Block} block
   * @param {Scene} scene
   * @returns {[number, number] | null}
   */
  span(block, scene) {
    const { scale, marks } = scene;
    if (scale.axis === "log") return [scale.x(block.first_offset), scale.x(block.next_offset)];
    const times = timesOf(block, scene.time);
    if (!times && scene.time === "born") return null;
    const [from, to] = times ?? [block.min_store_ms ?? marks.to_ms, block.min_store_ms ?? marks.to_ms];
    return [scale.x(from), scale.x(Math.max(to, from))];
  }

  /** @param {Scene} scene */
  drawBlocks(scene) {
    const border = scene.marks.log_begin;
    const seen = new Set();
    const first = this.drawn.size === 0;
    for (const block of scene.blocks) {
      const id = identity(block);
      const row = this.rows.get(rowOf(block));
      const span = this.span(block, scene);
      if (!row || !span || seen.has(id)) continue;
      seen.add(id);
      const [from, to] = span;
      const share = stored(block);
      const height = row.height * share;
      const name = `block ${classOf(block, border)}`;
      const known = this.drawn.get(id);
      const rect = known ?? s("rect", { rx: 2 });
      this.blockOf.set(rect, block);
      const width = Math.max(LEAST, to - from - (to - from > 6 ? 1.5 : 0));
      set(rect, { x: from, y: row.y + row.height - height, width, height, fill: paint(name), "data-state": name.slice(6) });
      if (known && !known.classList.contains("leaving")) {
        if (known.dataset.name !== name) flash(rect, name);
      } else {
        rect.setAttribute("class", name);
        const fresh = !first && scene.settled && block.tier === "cold" && block.next_offset > this.archivedTo;
        if (fresh) this.fall(rect, block, row.y);
        if (!known) this.blocks.append(rect);
      }
      rect.dataset.name = name;
      this.drawn.set(id, rect);
    }
    for (const [id, rect] of this.drawn) {
      if (seen.has(id)) continue;
      this.drawn.delete(id);
      if (!scene.settled) rect.remove();
      else leave(rect);
    }
  }

  /**
   * What was archived just now falls from where it was hot.
   * @param {SVGElement} rect
   * @param {Block} block
   * @param {number} y
   */
  fall(rect, block, y) {
    const from = this.rows.get(block.kind === "segment" ? "hot-log" : "hot-index");
    rect.style.setProperty("--fall", `${(from?.y ?? y) - y}px`);
    rect.classList.add("falling");
    rect.addEventListener("animationend", () => rect.classList.remove("falling"), { once: true });
  }

  /** @param {Scene} scene */
  drawLines(scene) {
    const { scale, marks } = scene;
    const time = scale.axis === "time";
    const border = time ? marks.border_ms : marks.log_begin;
    const inside = (/** @type {number | null} */ at) => at !== null && at >= scale.range.from && at <= scale.range.to;
    let line = this.lines.querySelector(".border");
    if (!line) {
      line = s("g", { class: "border" }, s("line", { y1: 0 }), s("text", { y: 0 }, "border"));
      this.lines.append(line);
    }
    const moved = /** @type {SVGElement} */ (line);
    const shown = marks.manifest_version !== null && inside(border);
    moved.setAttribute("visibility", shown ? "visible" : "hidden");
    if (!shown) return;
    const x = scale.x(border);
    moved.style.transform = `translateX(${x}px)`;
    const between = (this.bandOf?.hot.to ?? 0) + 3;
    set(moved.children[0], { y1: 1, y2: this.height - AXIS });
    const end = x > scale.left + scale.width - 170;
    const short = scale.width < 480;
    set(moved.children[1], { x: end ? -6 : 6, y: between + 8, "text-anchor": end ? "end" : "start" });
    moved.children[1].textContent = short ? "border" : end ? "border: before it, archive only" : "border: from here on also hot";
  }

  /** @param {Scene} scene */
  drawSearch(scene) {
    const { scale, selected } = scene;
    this.selection.setAttribute("visibility", selected ? "visible" : "hidden");
    if (selected) {
      const from = Math.max(scale.left, scale.x(selected.from));
      const to = Math.min(scale.left + scale.width, scale.x(selected.to));
      set(this.selection, { x: from, y: 0, width: Math.max(LEAST, to - from), height: this.height - AXIS });
    }
    this.covered.replaceChildren();
    this.hits.replaceChildren();
    for (const tier of /** @type {const} */ (["hot", "cold"])) {
      const band = this.bandOf?.[tier];
      if (!band) continue;
      const claim = scene.covered?.[tier];
      if (claim) {
        const from = Math.max(scale.left, scale.x(claim.from));
        const to = Math.min(scale.left + scale.width, scale.x(claim.to));
        if (to > from) this.covered.append(s("rect", { class: "claim", x: from, y: band.to - 1, width: to - from, height: 3, rx: 1.5 }));
      }
      const row = this.rows.get(`${tier}-log`);
      const at = [...new Set(scene.hits.filter((hit) => hit.tier === tier).map((hit) => Math.round(scale.x(hit.at))))];
      const shown = at.filter((x) => x >= scale.left && x <= scale.left + scale.width);
      if (row && shown.length) this.hits.append(s("path", { class: "hit", d: shown.map((x) => `M${x} ${row.y - 3}v${row.height + 6}`).join("") }));
    }
  }

  /** @param {Block | null} block */
  point(block) {
    const rect = block && this.drawn.get(identity(block));
    this.ring.setAttribute("visibility", rect ? "visible" : "hidden");
    if (!rect) return null;
    const [x, y, width, height] = ["x", "y", "width", "height"].map((name) => Number(rect.getAttribute(name)));
    set(this.ring, { x: x - 2.5, y: y - 2.5, width: width + 5, height: height + 5 });
    return { x: x + width / 2, y: y + height };
  }
}

/**
 * How high an archived segment stands: what is stored of what it was.
 * @param {Block} block
 */
function stored(block) {
  if (block.tier !== "cold" || block.kind !== "segment" || block.bytes === null) return 1;
  const raw = block.next_offset - block.first_offset;
  return raw > 0 ? Math.min(1, Math.max(0.22, block.bytes / raw)) : 1;
}

/** @param {string} name */
function paint(name) {
  if (name.includes("both")) return "url(#both-log)";
  return name.includes("uploaded") ? "url(#both-index)" : null;
}

/**
 * @param {Element} element
 * @param {Record<string, string | number | null>} values
 */
function set(element, values) {
  for (const [name, value] of Object.entries(values)) {
    if (value === null) element.removeAttribute(name);
    else element.setAttribute(name, typeof value === "number" ? String(Math.round(value * 100) / 100) : value);
  }
}

/**
 * @param {SVGElement} rect
 * @param {string} name
 */
function flash(rect, name) {
  rect.setAttribute("class", `${name} flashing`);
  rect.addEventListener("animationend", () => rect.classList.remove("flashing"), { once: true });
}

/** @param {SVGElement} rect */
function leave(rect) {
  rect.classList.add("leaving");
  setTimeout(() => rect.remove(), 700);
}

function gradients() {
  const fade = (/** @type {string} */ id) =>
    s("linearGradient", { id, x1: 0, y1: 0, x2: 0, y2: 1 },
      s("stop", { offset: "45%", class: `${id}-top` }), s("stop", { offset: "55%", class: `${id}-bottom` }));
  return s("defs", {}, fade("both-log"), fade("both-index"));
}
