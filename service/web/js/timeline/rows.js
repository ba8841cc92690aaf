/** Which row a block stands in, what it is called, and how it is described. */

import { moment } from "../times.js";
import { bytes, count, counted } from "../units.js";

/**
 * @typedef {object} Block  as `GET /v1/timeline` gives it
 * @property {"segment" | "index" | "classic index"} kind
 * @property {"hot" | "cold"} tier
 * @property {string} state
 * @property {number | null} level
 * @property {string | null} name
 * @property {number} count
 * @property {number} first_offset
 * @property {number} next_offset
 * @property {number | null} bytes
 * @property {number | null} min_store_ms
 * @property {number | null} max_store_ms
 * @property {number | null} min_born_ms
 * @property {number | null} max_born_ms
 * @property {number | null} records
 */

/** @typedef {{id: string, tier: "hot" | "cold", label: string, height: number}} Row */

/** States in the order in which a file goes through them: [class, words]. */
export const STATES = /** @type {[string, string, string][]} */ ([
  ["segment active", "active", "Log segments"],
  ["segment rolled", "rolled", "Log segments"],
  ["segment both", "hot and archived", "Log segments"],
  ["segment cold", "archive only", "Log segments"],
  ["index writing", "writing", "Index files"],
  ["index sealed", "sealed", "Index files"],
  ["index compacted", "compacted", "Index files"],
  ["index uploaded", "uploaded", "Index files"],
  ["index cold", "in the archive", "Index files"],
  ["index merged", "merged", "Index files"],
  ["classic", "RocketMQ's own", "Index files"],
]);

const LEVELS = ["index", "index, days", "index, months", "index, years"];

/** @typedef {"store" | "born"} Time */

/**
 * From when to when a block is, if that is known.
 * @param {Block} block
 * @param {Time} time
 * @returns {[number, number] | null}
 */
export function timesOf(block, time) {
  const [least, most] = time === "born" ? [block.min_born_ms, block.max_born_ms] : [block.min_store_ms, block.max_store_ms];
  return least === null || most === null ? null : [least, most];
}

/**
 * The class that says what a block is; cold segments that are still hot are drawn as such in both rows.
 * @param {Block} block
 * @param {number} border
 */
export function classOf(block, border) {
  if (block.kind === "classic index") return "classic";
  if (block.kind === "segment") {
    if (block.tier === "cold") return block.next_offset <= border ? "segment cold" : "segment cold still-hot";
    return block.state === "archived" ? "segment both" : `segment ${block.state}`;
  }
  if (block.tier === "cold") return (block.level ?? 0) > 0 ? "index merged" : "index cold";
  return `index ${block.state}`;
}

/** @param {Block} block */
export function rowOf(block) {
  if (block.kind === "segment") return `${block.tier}-log`;
  if (block.kind === "classic index") return "hot-classic";
  return block.tier === "hot" ? "hot-index" : `cold-index-${block.level ?? 0}`;
}

/**
 * Rows from the top, those of levels and kinds that are there.
 * @param {Block[]} blocks
 * @returns {Row[]}
 */
export function rowsOf(blocks) {
  const there = new Set(blocks.map(rowOf));
  /** @type {Row[]} */
  const rows = [
    { id: "hot-log", tier: "hot", label: "log", height: 30 },
    { id: "hot-index", tier: "hot", label: "index", height: 14 },
  ];
  if (there.has("hot-classic")) rows.push({ id: "hot-classic", tier: "hot", label: "classic index", height: 10 });
  rows.push({ id: "cold-log", tier: "cold", label: "log", height: 30 });
  LEVELS.forEach((label, level) => {
    if (level === 0 || there.has(`cold-index-${level}`)) {
      rows.push({ id: `cold-index-${level}`, tier: "cold", label, height: 14 });
    }
  });
  return rows;
}

/**
 * What a block has the same name by from one answer to the next.
 * @param {Block} block
 */
export function identity(block) {
  return `${block.tier} ${block.kind} ${block.level ?? "-"} ${block.first_offset} ${block.count > 1 ? block.next_offset : ""}${block.kind === "index" && block.tier === "cold" ? block.name ?? "" : ""}`;
}

/**
 * How many files are in each state.
 * @param {Block[]} blocks
 * @param {number} border
 */
export function census(blocks, border) {
  const found = new Map(STATES.map(([name]) => [name, 0]));
  for (const block of blocks) {
    const name = classOf(block, border);
    if (name === "segment cold still-hot") continue; // counted as hot and archived
    found.set(name, (found.get(name) ?? 0) + block.count);
  }
  return found;
}

/**
 * Lines about a block for a person.
 * @param {Block} block
 * @param {number} border
 * @returns {[string, string][]}
 */
export function describe(block, border) {
  const kind = block.kind === "segment" ? "segment" : block.tier === "cold" ? "index object" : "index file";
  const name = classOf(block, border);
  const state = name === "segment cold still-hot" ? "hot and archived" : (STATES.find(([one]) => one === name) ?? ["", block.state])[1];
  const lines = /** @type {[string, string][]} */ ([
    [block.count > 1 ? counted(block.count, kind) : kind, `${block.tier}: ${state}${block.level ? `, level ${block.level}` : ""}`],
    ["stored from", moment(block.min_store_ms)],
    ["to", moment(block.max_store_ms)],
    ...(timesOf(block, "born") ? /** @type {[string, string][]} */ ([["born from", moment(block.min_born_ms)], ["to", moment(block.max_born_ms)]]) : []),
    ["log", `${count(block.first_offset)} to ${count(block.next_offset)}`],
  ]);
  const span = block.next_offset - block.first_offset;
  if (block.bytes !== null) {
    const saved = block.kind === "segment" && block.tier === "cold" && block.bytes > 0 ? ` for ${bytes(span)} of log` : "";
    lines.push(["size", bytes(block.bytes) + saved]);
  } else {
    lines.push(["log covered", bytes(span)]);
  }
  if (block.records !== null) lines.push([block.kind === "segment" ? "records" : "items", count(block.records)]);
  if (block.name) lines.push(["name", block.name]);
  return lines;
}
