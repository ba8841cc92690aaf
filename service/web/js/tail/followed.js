/**
 * The queues of a topic, read as one as messages come in.
 *
 * Browsers open six connections to a host, so no queue has a waiting request of its own: one call a round tells where
 * all queues end, and only those that have moved are read, a few at a time. A round reads a bounded number of messages;
 * what comes faster than that is passed over and counted.
 */

import { askJson } from "../api.js";

/** @typedef {import("../search/message.js").Message} Message */
/** @typedef {{name: string, id: number, store: string | null, least: number, end: number, gaps: [number, number][]}} Queue */

/** Requests at once. */
const AT_ONCE = 4;
/** Messages of a round, of all queues together. */
const A_ROUND = 1000;
/** Messages of a queue that the service looks through for a tag. */
const LOOKED_THROUGH = 10_000;

export class FollowedTopic {
  /**
   * @param {string} topic
   * @param {string} tag  `A || B`, or empty
   * @param {number} last  messages from before the beginning
   */
  constructor(topic, tag, last) {
    this.topic = topic;
    this.tag = tag;
    this.last = last;
    /** Where each queue goes on; null until it has begun. @type {Map<string, number> | null} */
    this.next = null;
    /** Messages that came too fast. */
    this.passed = 0;
    /** What was read by a round that failed: it comes with the next. @type {Message[]} */
    this.found = [];
  }

  get path() {
    return `/v1/topics/${encodeURIComponent(this.topic)}`;
  }

  /**
   * What has come since the round before, in the order of the log; the first round begins.
   * @param {AbortSignal} signal
   * @returns {Promise<Message[]>}
   */
  async round(signal) {
    const queues = await this.queues(signal);
    if (this.next === null) return this.begin(queues, signal);
    const next = this.next;
    const moved = queues.filter((queue) => (next.get(queue.name) ?? queue.least) < queue.end);
    for (const queue of queues) {
      if ((next.get(queue.name) ?? 0) > queue.end) next.set(queue.name, queue.end); // its store came back with less
    }
    const share = Math.max(1, Math.floor(A_ROUND / Math.max(1, moved.length)));
    const left = [...moved];
    const work = async () => {
      for (let queue = left.shift(); queue; queue = left.shift()) this.found.push(...(await this.pull(queue, share, next, signal)));
    };
    const done = await Promise.allSettled(Array.from({ length: AT_ONCE }, work));
    for (const one of done) if (one.status === "rejected") throw one.reason;
    return this.found.splice(0).sort(inOrder);
  }

  /**
   * @param {Queue[]} queues
   * @param {AbortSignal} signal
   */
  async begin(queues, signal) {
    const ends = new Map(queues.map((queue) => [queue.name, queue.end]));
    /** @type {Message[]} */
    let found = [];
    if (this.last > 0) {
      const asked = new URLSearchParams({ order: "newest", limit: String(this.last), ...(this.tag && { tag: this.tag }) });
      found = (await askJson(`${this.path}/messages?${asked}`, { signal })).messages;
    }
    this.next = ends;
    const several = queues.some((queue) => queue.store !== null);
    const before = (/** @type {Message} */ message) => message.queue_offset < (ends.get(nameOf(message.queue_id, several ? message.store_id : null)) ?? 0);
    return found.filter(before).sort(inOrder); // what came in meanwhile comes with the next round
  }

  /**
   * @param {AbortSignal} signal
   * @returns {Promise<Queue[]>}
   */
  async queues(signal) {
    const { offsets } = await askJson(this.path, { signal, quiet: this.next !== null });
    return offsets.map((/** @type {any} */ one) => ({
      name: nameOf(one.queue_id, one.store_id ?? null), id: one.queue_id, store: one.store_id ?? null, least: one.min_offset, end: one.max_offset,
      gaps: one.gaps ?? [], // null while the archive, which knows them, does not answer
    }));
  }

  /**
   * @param {Queue} queue
   * @param {number} share
   * @param {Map<string, number>} next
   * @param {AbortSignal} signal
   * @returns {Promise<Message[]>}
   */
  async pull(queue, share, next, signal) {
    const most = this.tag ? LOOKED_THROUGH : share;
    let offset = next.get(queue.name) ?? queue.least;
    const start = lastOf(queue, most);
    if (offset < start) {
      this.passed += countedIn(queue, offset, start);
      offset = start;
      next.set(queue.name, offset);
    }
    const asked = new URLSearchParams({ offset: String(offset), limit: String(share), ...(this.tag && { tag: this.tag }), ...(queue.store && { store_id: queue.store }) });
    const page = await askJson(`${this.path}/queues/${queue.id}/messages?${asked}`, { signal, quiet: true });
    next.set(queue.name, page.next_offset);
    return page.messages;
  }
}

/**
 * Messages of a queue from an offset up to another, as a restore leaves out ranges of offsets.
 * @param {Queue} queue
 * @param {number} first
 * @param {number} end
 */
function countedIn({ gaps }, first, end) {
  return gaps.reduce((left, [from, to]) => left - Math.max(0, Math.min(to, end) - Math.max(from, first)), end - first);
}

/**
 * Where the last messages of a queue begin.
 * @param {Queue} queue
 * @param {number} count
 */
function lastOf({ gaps, end }, count) {
  let start = end;
  for (const [from, to] of [...gaps].sort((one, other) => other[0] - one[0])) {
    if (start - to >= count) break;
    count -= start - to;
    start = from;
  }
  return start - count;
}

/** @param {number} queueId @param {string | null} store */
function nameOf(queueId, store) {
  return `${store ?? ""}:${queueId}`;
}

/** @param {Message} one @param {Message} other */
function inOrder(one, other) {
  return one.store_ms - other.store_ms || one.physical_offset - other.physical_offset;
}
