/** From a place in the store to a place on the screen: along store time, or along the log. */

import { mark } from "../times.js";
import { bytes } from "../units.js";

/** @typedef {"time" | "log"} Axis */
/** @typedef {{from: number, to: number}} Range */

const TIME_STEPS = [
  1, 10, 100, 1000, 5000, 10_000, 30_000, 60_000, 300_000, 600_000, 1_800_000, 3_600_000, 3 * 3_600_000, 6 * 3_600_000,
  12 * 3_600_000, 86_400_000, 7 * 86_400_000, 30 * 86_400_000, 91 * 86_400_000, 365 * 86_400_000,
];

/** The shortest step of time that people count in and that is no shorter than `ms`. @param {number} ms */
export function niceStep(ms) {
  return TIME_STEPS.find((one) => one >= ms) ?? ms;
}

export class Scale {
  /**
   * @param {Axis} axis
   * @param {Range} range
   * @param {number} left
   * @param {number} width
   */
  constructor(axis, range, left, width) {
    this.axis = axis;
    this.range = range;
    this.left = left;
    this.width = width;
  }

  /** @param {number} value */
  x(value) {
    const share = (value - this.range.from) / (this.range.to - this.range.from);
    return this.left + Math.max(-0.5, Math.min(1.5, share)) * this.width; // what lies far outside stays drawable
  }

  /** @param {number} x */
  value(x) {
    return this.range.from + ((x - this.left) / this.width) * (this.range.to - this.range.from);
  }

  /** Where marks stand, with their texts. */
  marks() {
    const wanted = Math.max(2, this.width / 120);
    const rough = (this.range.to - this.range.from) / wanted;
    const step = this.axis === "time" ? niceStep(rough) : 2 ** Math.ceil(Math.log2(Math.max(1, rough)));
    const found = [];
    for (let at = Math.ceil(this.range.from / step) * step; at <= this.range.to; at += step) {
      found.push({ x: this.x(at), text: this.axis === "time" ? mark(at, step) : bytes(at) });
    }
    return found;
  }
}

/**
 * The range `factor` times as wide around a fixed value, within the whole; null once it is all of it.
 * @param {Range} range
 * @param {Range} whole
 * @param {number} fixed
 * @param {number} factor
 * @returns {Range | null}
 */
export function zoomed(range, whole, fixed, factor) {
  const width = (range.to - range.from) * factor;
  if (width >= whole.to - whole.from) return null;
  const from = fixed - (fixed - range.from) * factor;
  return moved({ from, to: from + Math.max(1, width) }, whole, 0);
}

/**
 * @param {Range} range
 * @param {Range} whole
 * @param {number} by
 * @returns {Range}
 */
export function moved(range, whole, by) {
  const width = range.to - range.from;
  const from = Math.max(whole.from, Math.min(whole.to - width, range.from + by));
  return { from, to: from + width };
}
