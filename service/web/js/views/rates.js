/** Messages a second, from offsets seen at different times; over about ten seconds, so that bursts do not flicker. */

const WINDOW_MS = 10_000;

export class Rates {
  constructor() {
    /** @type {Map<string, {at: number, total: number}[]>} */
    this.seen = new Map();
  }

  /**
   * @param {string} name
   * @param {number} total  a count that only grows
   * @param {number} at  ms
   */
  add(name, total, at) {
    const seen = this.seen.get(name) ?? [];
    if (seen.length && seen[seen.length - 1].total > total) seen.length = 0; // the store was restarted
    seen.push({ at, total });
    while (seen.length > 2 && at - seen[1].at > WINDOW_MS) seen.shift();
    this.seen.set(name, seen);
  }

  /**
   * @param {string} name
   * @returns {number | null} null: seen only once
   */
  of(name) {
    const seen = this.seen.get(name) ?? [];
    const [first, last] = [seen[0], seen[seen.length - 1]];
    return seen.length < 2 || last.at === first.at ? null : ((last.total - first.total) * 1000) / (last.at - first.at);
  }

  /** Rates between one look and the next, for a small picture. @param {string} name */
  steps(name) {
    const seen = this.seen.get(name) ?? [];
    return seen.slice(1).map((now, at) => ((now.total - seen[at].total) * 1000) / Math.max(1, now.at - seen[at].at));
  }
}
