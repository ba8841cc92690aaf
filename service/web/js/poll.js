/** Asks again and again while somebody looks: not while the tab is hidden, and more slowly after failures. */

const SLOWEST_MS = 30_000;

export class Poll {
  /**
   * @param {number} everyMs
   * @param {() => Promise<void>} ask  may fail
   */
  constructor(everyMs, ask) {
    this.everyMs = everyMs;
    this.ask = ask;
    this.failures = 0;
    this.running = false;
    this.asking = false;
    /** @type {number | undefined} */
    this.timer = undefined;
    document.addEventListener("visibilitychange", () => this.now());
  }

  start() {
    if (this.running) return;
    this.running = true;
    this.now();
  }

  stop() {
    this.running = false;
    clearTimeout(this.timer);
  }

  /** Ask at once, if anybody looks. */
  async now() {
    clearTimeout(this.timer);
    if (!this.running || document.hidden || this.asking) return;
    this.asking = true;
    try {
      await this.ask();
      this.failures = 0;
    } catch {
      this.failures += 1; // whoever asks has shown it
    }
    this.asking = false;
    clearTimeout(this.timer);
    const wait = Math.min(SLOWEST_MS, this.everyMs * 2 ** Math.min(this.failures, 5));
    this.timer = setTimeout(() => this.now(), wait);
  }
}
