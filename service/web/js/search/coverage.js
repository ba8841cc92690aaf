/** Says plainly what was searched for an answer, what was not, and what it took. */

import { h, s } from "../dom.js";
import { moment } from "../times.js";
import { bytes, cost, count, counted } from "../units.js";
import { hasFilters } from "./question.js";

/** Times beyond this are "no bound" (the year 9999). */
const FOREVER = 253_402_300_000_000;

/** Whether an answer ends where its limits did, and goes on from there. @param {any} coverage @param {boolean} more */
export function isCut(coverage, more) {
  return more && (coverage.cut_by === "budget" || coverage.cut_by === "timeout");
}

/** @param {any} coverage @param {boolean} more whether there is a next page */
export function verdict(coverage, more) {
  if (coverage.complete) {
    return more ? "Everything was searched as far as this page goes" : "Everything asked for was searched";
  }
  const lost = coverage.failures.length || coverage.index_files.unreachable || coverage.segments.unreachable;
  const yet = isCut(coverage, more) ? "Not everything was searched yet" : "Not everything was searched";
  if (coverage.cut_by === "budget") return `${yet}: the limit of requests was reached`;
  if (coverage.cut_by === "timeout") return `${yet}: the time was over`;
  if (lost || coverage.stores.some((/** @type {any} */ store) => store.error)) {
    return "Not everything was searched: a part of the store could not be read";
  }
  return `Not everything was searched${coverage.cut_by ? `: cut by ${coverage.cut_by}` : ""}`;
}

/**
 * @param {any} coverage
 * @param {import("./question.js").Question} question
 * @param {boolean} more
 * @param {boolean} doubtful  everything was searched, but the question may not be the one that was meant
 */
export function coveragePanel(coverage, question, more, doubtful) {
  const good = coverage.complete;
  const kind = good ? (doubtful ? "doubtful" : "good") : "poor";
  const sign = { good: "✓ ", doubtful: "", poor: "! " }[kind];
  const words = doubtful ? `${verdict(coverage, more)}, by ${question.search.time === "born" ? "born" : "store"} time` : verdict(coverage, more);
  return h(
    "details",
    { class: `coverage ${kind}`, open: !good && !isCut(coverage, more) },
    h(
      "summary",
      {},
      h("span", { class: "verdict" }, h("span", { "aria-hidden": "true" }, sign), words),
      h("span", { class: "sum" }, summary(coverage, question)),
    ),
    h(
      "div",
      { class: "coverage-body" },
      ...coverage.stores.map((/** @type {any} */ store) => intervals(store, question)),
      indexFiles(coverage),
      numbers(coverage, question),
      failures(coverage),
    ),
  );
}

/**
 * @param {any} coverage
 * @param {import("./question.js").Question} question
 */
function summary(coverage, question) {
  const asked = counted(coverage.requests, "request");
  const took = coverage.requests === 0 ? "no request to the archive" : `${asked} to the archive, ${bytes(coverage.bytes)}, ${cost(coverage.cost_usd)}`;
  return hasFilters(question.search) ? `${counted(coverage.messages.read, "message")} read, ${count(coverage.messages.matched)} matched; ${took}` : took;
}

/** @param {number} ms @param {"from" | "to"} end */
function bound(ms, end) {
  if (end === "from" && ms <= 0) return "the beginning";
  return end === "to" && ms >= FOREVER ? "now" : moment(ms);
}

/**
 * One store: what was searched in each tier, in words and drawn on the range asked for.
 * @param {any} store
 * @param {import("./question.js").Question} question
 */
function intervals(store, question) {
  const tiers = /** @type {const} */ (["cold", "hot"]);
  const rows = tiers.map((tier) => {
    const found = store[tier];
    const text = found
      ? `from ${bound(found.from_ms, "from")} to ${bound(found.to_ms, "to")}`
      : tier === "cold"
        ? "nothing searched here: not needed for this page, or nothing there"
        : "nothing searched here";
    return h("li", {}, h("span", { class: `badge ${tier}` }, tier), " ", text,
      found?.manifest_version && h("span", { class: "muted" }, `, archive at version ${count(found.manifest_version)}`));
  });
  return h(
    "section",
    {},
    h("h3", {}, "Searched ", h("span", { class: "muted" }, `in store ${store.store_id}`)),
    strip(store, question),
    h("ul", { class: "plain" }, ...rows),
    store.error && h("p", { class: "bad" }, store.error),
  );
}

/**
 * @param {any} store
 * @param {import("./question.js").Question} question
 */
function strip(store, question) {
  const claims = [store.cold, store.hot].filter(Boolean);
  const inner = claims.flatMap((claim) => [claim.from_ms, claim.to_ms]).filter((ms) => ms > 0 && ms < FOREVER);
  const from = question.from_ms ?? Math.min(...inner, Date.now()) - 1;
  const to = question.to_ms ?? Math.max(...inner, Math.min(Date.now(), FOREVER));
  if (!(to > from)) return null;
  const x = (/** @type {number} */ ms) => (1000 * (Math.min(to, Math.max(from, ms)) - from)) / (to - from);
  const bar = (/** @type {any} */ claim, /** @type {string} */ tier, /** @type {number} */ y) =>
    claim && s("rect", { class: `strip-${tier}`, x: x(claim.from_ms), y, width: Math.max(4, x(claim.to_ms) - x(claim.from_ms)), height: 8, rx: 2 });
  return s(
    "svg",
    { class: "strip", viewBox: "0 0 1000 24", preserveAspectRatio: "none", "aria-hidden": "true" },
    s("rect", { class: "strip-asked", x: 0, y: 1, width: 1000, height: 22, rx: 3 }),
    bar(store.hot, "hot", 3),
    bar(store.cold, "cold", 13),
  );
}

/** @param {any} coverage */
function indexFiles(coverage) {
  const files = coverage.index_files;
  const kinds = /** @type {const} */ ([
    ["searched", "searched"],
    ["filtered", "ruled out by a key filter"],
    ["skipped", "not needed"],
    ["expired", "expired"],
    ["unreachable", "unreachable"],
  ]);
  const shown = kinds.filter(([name]) => files[name] > 0);
  return h(
    "section",
    {},
    h("h3", {}, "Index files ", h("span", { class: "muted" }, `${count(files.considered)} overlap the range`)),
    files.considered > 0 &&
      s(
        "svg",
        { class: "share", viewBox: `0 0 ${Math.max(1, files.considered)} 1`, preserveAspectRatio: "none", "aria-hidden": "true" },
        ...shares(shown.map(([name]) => [name, files[name]])),
      ),
    h("ul", { class: "plain legend" },
      ...shown.map(([name, text]) => h("li", {}, h("span", { class: `key share-${name}` }), `${count(files[name])} ${text}`))),
  );
}

/** @param {[string, number][]} pieces */
function shares(pieces) {
  let at = 0;
  return pieces.map(([name, width]) => {
    const piece = s("rect", { class: `share-${name}`, x: at, y: 0, width, height: 1 });
    at += width;
    return piece;
  });
}

/**
 * @param {any} coverage
 * @param {import("./question.js").Question} question
 */
function numbers(coverage, question) {
  const segments = coverage.segments;
  const tiles = /** @type {[string, string][]} */ ([
    [count(coverage.requests), coverage.requests === 1 ? "request" : "requests"],
    [bytes(coverage.bytes), "read"],
    [count(coverage.round_trips), coverage.round_trips === 1 ? "round trip" : "round trips"],
    [cost(coverage.cost_usd), "cost"],
    [count(segments.read), segments.read === 1 ? "segment read" : "segments read"],
  ]);
  if (hasFilters(question.search)) tiles.push([count(coverage.messages.read), "messages read"], [count(coverage.messages.matched), "matched"]);
  for (const name of ["expired", "erased", "unreachable"]) {
    if (segments[name]) tiles.push([count(segments[name]), `segments ${name}`]);
  }
  return h(
    "section",
    {},
    h("h3", {}, "What it took of the archive"),
    h("div", { class: "tiles" }, ...tiles.map(([value, label]) => h("div", { class: "tile" }, h("b", {}, value), label))),
    coverage.examined_to_ms !== null && h("p", { class: "muted" }, `Messages were examined as far as ${moment(coverage.examined_to_ms)}; what follows goes on there.`),
  );
}

/** @param {any} coverage */
function failures(coverage) {
  if (!coverage.failures.length) return null;
  return h(
    "section",
    {},
    h("h3", {}, "What could not be read"),
    h("ul", { class: "failures" },
      ...coverage.failures.map((/** @type {any} */ one) => h("li", {}, h("code", {}, one.object), " ", one.error))),
  );
}

/**
 * What a search would take, from a dry run.
 * @param {any} estimate
 */
export function estimatePanel(estimate) {
  const { least, likely, most } = estimate.requests;
  const range = least === most ? count(most) : `${count(least)} to ${count(most)}, likely ${count(likely)}`;
  const tiles = /** @type {[string, string][]} */ ([
    [range, most === 1 ? "request to the archive" : "requests to the archive"],
    [bytes(estimate.bytes), "likely read"],
    [count(estimate.round_trips), estimate.round_trips === 1 ? "round trip" : "round trips"],
    [cost(estimate.cost_usd.likely), "likely"],
    [cost(estimate.cost_usd.most), "at most"],
  ]);
  return h(
    "section",
    { class: "estimate", "aria-label": "Estimate" },
    h("h3", {}, "What the first page would cost, beside what is in memory now"),
    h("div", { class: "tiles" }, ...tiles.map(([value, label]) => h("div", { class: "tile" }, h("b", {}, value), label))),
    estimate.notes.map((/** @type {string} */ note) => h("p", { class: "muted" }, note)),
    !estimate.is_whole && h("p", { class: "bad" }, "The archive's list of objects could not be read in full: there may be more."),
  );
}
