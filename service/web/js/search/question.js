/** What a search asks the service for: a relative range is fixed once, so that all pages ask the same. */

import { PRESETS, parse } from "../times.js";

/**
 * @typedef {object} Question
 * @property {string} topic
 * @property {URLSearchParams} asked  parameters but the cursor
 * @property {number | null} from_ms
 * @property {number | null} to_ms
 * @property {import("../address.js").Search} search
 */

/** A search that cannot be asked, with the field that is wrong. */
export class WrongSearch extends Error {
  /**
   * @param {string} field
   * @param {string} message
   */
  constructor(field, message) {
    super(message);
    this.field = field;
  }
}

/**
 * @param {import("../address.js").Search} search
 * @param {number} now
 * @returns {Question}
 */
export function questionOf(search, now) {
  if (!search.topic) throw new WrongSearch("topic", "Which topic? Type its name, or choose one.");
  let from = null;
  let to = null;
  if (search.range === "custom") {
    from = bound("from", search.from, now);
    to = bound("to", search.to, now);
    if (from !== null && to !== null && from >= to) throw new WrongSearch("to", "The range ends before it begins.");
  } else {
    const back = PRESETS.find((preset) => preset.name === search.range)?.ms ?? null;
    if (back !== null) from = now - back;
  }
  const asked = new URLSearchParams({ time: search.time, order: search.order, limit: String(search.limit) });
  if (search.key) asked.set("key", search.key);
  if (search.tag) asked.set("tag", search.tag);
  for (const text of search.contains) asked.append("contains", text);
  for (const text of search.where) {
    if (!/^[^=]+=/.test(text)) throw new WrongSearch("where", `${text} is no condition: name=value, of a property or of a field of JSON.`);
    asked.append("where", text);
  }
  if (from !== null) asked.set("from", String(from));
  if (to !== null) asked.set("to", String(to));
  return { topic: search.topic, asked, from_ms: from, to_ms: to, search: { ...search } };
}

/**
 * @param {string} field
 * @param {string} text
 * @param {number} now
 */
function bound(field, text, now) {
  const ms = parse(text, now);
  if (Number.isNaN(ms)) {
    throw new WrongSearch(field, `${text} is no time: 2h (ago), yesterday, 2026-03-01 06:00, RFC 3339, or ms since 1970.`);
  }
  return ms;
}

/**
 * Whether a search is about some of the messages that its topic, key and range have.
 * @param {import("../address.js").Search} search
 */
export function hasFilters(search) {
  return Boolean(search.tag || search.contains.length || search.where.length);
}

/**
 * Texts that a message of the answer is likely to show, to be marked there.
 * @param {import("../address.js").Search} search
 */
export function soughtTexts(search) {
  return [search.key, ...search.contains, ...search.where.map((text) => text.slice(text.indexOf("=") + 1))].filter(Boolean);
}

/**
 * @param {Question} question
 * @param {Record<string, string>} [more]
 */
export function pathOf(question, more = {}) {
  const asked = new URLSearchParams(question.asked);
  for (const [name, value] of Object.entries(more)) asked.set(name, value);
  return `/v1/topics/${encodeURIComponent(question.topic)}/messages?${asked}`;
}
