/** The store in numbers, and banners for what is wrong, in plain words. */

import { ApiError, askJson, words } from "../api.js";
import { h, refill, s } from "../dom.js";
import { Poll } from "../poll.js";
import { onZone } from "../prefs.js";
import { moment } from "../times.js";
import { bytes, count, duration, rate } from "../units.js";
import { Rates } from "./rates.js";

const FAR_BEHIND_MS = 60_000;
/** States of a followed broker in which nothing is wrong. */
const FOLLOWS = ["following", "promoted"];

export class StoreView {
  /** @param {HTMLElement} banners */
  constructor(banners) {
    this.banners = banners;
    this.shownBanners = "";
    this.tiles = h("div", { class: "numbers" });
    this.element = h("section", { class: "view", "aria-labelledby": "store-title" },
      h("div", { class: "view-head" }, h("h2", { id: "store-title" }, "Store")), this.tiles);
    this.rates = new Rates();
    /** @type {any} */
    this.stats = null;
    this.poll = new Poll(2000, () => this.ask());
    onZone(() => this.draw());
  }

  open() {
    this.draw();
  }

  close() {
    // banners are for every view: its numbers are asked for all the time
  }

  async ask() {
    try {
      this.stats = await askJson("/v1/stats", { quiet: true });
      const at = performance.now();
      this.rates.add("messages", this.stats.appended_messages, at);
      this.rates.add("bytes", this.stats.appended_bytes, at);
      this.warn(troubles(this.stats));
      this.draw();
    } catch (error) {
      const status = error instanceof ApiError ? error.status : 0;
      const text = status === 401 ? "" : status === 403 ? "Your token has no right to see the store's numbers." : words(error);
      this.warn(text ? [text] : []);
      throw error;
    }
  }

  /** @param {string[]} texts */
  warn(texts) {
    if (this.shownBanners === texts.join("\n")) return;
    this.shownBanners = texts.join("\n");
    refill(this.banners, ...texts.map((text) => h("p", { class: "banner", role: "alert" }, text)));
  }

  draw() {
    const stats = this.stats;
    if (!stats || !this.element.isConnected) return;
    refill(this.tiles, ...groupsOf(stats, this.rates).map(([title, rows]) =>
      h("article", { class: "card" }, h("h3", {}, title),
        title === "Coming in" && spark(this.rates.steps("messages")),
        title === "Disk" && usage(stats),
        h("dl", { class: "facts" }, ...rows.flatMap(([name, value]) => [h("dt", {}, name), h("dd", {}, value)])))));
  }
}

/** @param {any} stats @returns {string[]} */
function troubles(stats) {
  const found = [];
  if (stats.read_only_reason) found.push(`The store takes no messages: ${stats.read_only_reason}.`);
  if (stats.cold_error) found.push(`The archive does not answer: ${stats.cold_error}. What is hot can be read and written; what is only archived may be missing from answers.`);
  if (stats.index_error) found.push(`The key index does not follow the log: ${stats.index_error}. Searches by key may miss the newest messages.`);
  for (const [name, broker] of followed(stats)) {
    if (!FOLLOWS.includes(broker.state)) found.push(`Broker ${name}: ${broker.state.replace("_", " ")}${broker.error ? `: ${broker.error}` : ""}. What is here is answered from.`);
  }
  if (stats.clock_behind_ms > FAR_BEHIND_MS) found.push(`This machine's clock is ${duration(stats.clock_behind_ms)} behind the newest message.`);
  return found;
}

/**
 * The brokers that the process follows, by name.
 * @param {any} stats
 * @returns {[string, any][]}
 */
function followed(stats) {
  return Object.entries(stats.followed || {});
}

/**
 * @param {any} broker
 * @returns {[string, string][]}
 */
function brokerFacts(broker) {
  return [
    ["State", broker.state.replace("_", " ")],
    ["Behind", `${bytes(broker.lag_bytes)}, ${duration(broker.lag_ms)}`],
    ["Until it may delete", broker.margin_ms === null ? "–" : duration(broker.margin_ms)],
    ["Lost in gaps", bytes(broker.gap_bytes)],
    ["Where", broker.address || "–"],
    ["Store", broker.store_id],
  ];
}

/**
 * @param {any} stats
 * @param {Rates} rates
 * @returns {[string, [string, string][]][]}
 */
function groupsOf(stats, rates) {
  /** @type {[string, [string, string][]][]} */
  const brokers = followed(stats).map(([name, broker]) => [`Broker ${name}`, brokerFacts(broker)]);
  if (stats.role === "querier") {
    return [...brokers, ["Stores", [
      ["Archives", stats.archives.join(", ") || "–"],
      ["Services", count(stats.services.length)],
      ["Of these silent", count(stats.silent)],
    ]]];
  }
  const perSecond = rates.of("bytes");
  /** @type {[string, [string, string][]][]} */
  const found = [
    ["Coming in", [
      ["Rate", rate(rates.of("messages"))],
      ["Bytes", perSecond === null ? "–" : `${bytes(perSecond)}/s`],
      ["Since the start", `${count(stats.appended_messages)} messages, ${bytes(stats.appended_bytes)}`],
      ["Newest message", moment(stats.last_store_ms > 0 ? stats.last_store_ms : null)],
    ]],
    ["Durable", [
      ["Not flushed yet", bytes(stats.unflushed_bytes)],
      ["Flushes", count(stats.flushes)],
      ["Not in queues or index yet", bytes(stats.index_behind_bytes)],
      ["Index files waiting", count(stats.index_files_waiting)],
    ]],
    ["Disk", [
      ["Hot log", bytes(stats.hot_bytes)],
      ["Free", `${bytes(stats.disk_free_bytes)} of ${bytes(stats.disk_total_bytes)}`],
    ]],
  ];
  if (stats.cold_url) {
    found.push(["Archive", [
      ["Where", stats.cold_url],
      ["Not archived yet", bytes(stats.unarchived_bytes)],
      ["Manifest", `version ${count(stats.manifest_version)}`],
      ["Requests", `${count(stats.archive_requests)}, ${count(stats.archive_failures)} failed`],
      ["Read, written", `${bytes(stats.archive_bytes_read)}, ${bytes(stats.archive_bytes_written)}`],
      ["Erasures under way", count(stats.open_erasures)],
    ]]);
  }
  found.push(...brokers, ["Identity", [["Store", stats.store_id], ["Volume", stats.volume_id], ["Topics", count(stats.topics)]]]);
  return found;
}

/** @param {number[]} steps */
function spark(steps) {
  const most = Math.max(1, ...steps);
  const points = steps.map((value, at) => `${(at / Math.max(1, steps.length - 1)) * 100},${30 - (value / most) * 28}`);
  return s("svg", { class: "spark", viewBox: "0 0 100 31", preserveAspectRatio: "none", "aria-hidden": "true" },
    points.length > 1 && s("polyline", { points: points.join(" ") }));
}

/** @param {any} stats */
function usage(stats) {
  const used = stats.disk_total_bytes - stats.disk_free_bytes;
  return h("meter", { class: "usage", min: 0, max: stats.disk_total_bytes, high: stats.disk_total_bytes * 0.85, value: used, "aria-label": `disk, ${bytes(used)} used` });
}
