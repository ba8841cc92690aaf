/** Times as text and back. One switch says whether all of them are UTC or local; each is labelled with its zone. */

import { timeZone } from "./prefs.js";

const MINUTE = 60_000;
const DAY = 24 * 60 * MINUTE;
/** @type {Record<string, number>} */
const UNITS = { ms: 1, s: 1000, m: MINUTE, h: 60 * MINUTE, d: DAY, w: 7 * DAY };
const AGO = /^(\d{1,15})\s*(ms|s|m|h|d|w)$/i;
const FROM_NOW = /^(now|today|yesterday)(?:\s*([+-])\s*(\d{1,15})\s*(ms|s|m|h|d|w))?$/i;

/** @param {number} n @param {number} [width] */
const pad = (n, width = 2) => String(n).padStart(width, "0");

/**
 * `+02:00` of a moment in this browser's zone; zones change their offset in the course of the year.
 * @param {number} ms
 */
function localOffset(ms) {
  const minutes = -new Date(ms).getTimezoneOffset();
  const abs = Math.abs(minutes);
  return `${minutes < 0 ? "-" : "+"}${pad(Math.trunc(abs / 60))}:${pad(abs % 60)}`;
}

/** The label of the zone in which times are shown now. */
export function zoneName() {
  return timeZone() === "utc" ? "UTC" : `local, ${Intl.DateTimeFormat().resolvedOptions().timeZone}`;
}

/**
 * Date and time of day apart, and the label of their zone.
 * @param {number} ms
 */
export function parts(ms) {
  const utc = timeZone() === "utc";
  const at = new Date(utc ? ms : ms - new Date(ms).getTimezoneOffset() * MINUTE);
  if (Number.isNaN(at.getTime())) return { date: String(ms), time: "", zone: "ms" };
  const [date, time] = at.toISOString().split("T");
  return { date, time: time.replace("Z", ""), zone: utc ? "UTC" : localOffset(ms) };
}

/**
 * `2026-03-01 06:00:00.123 UTC`
 * @param {number | null | undefined} ms
 */
export function moment(ms) {
  if (ms === null || ms === undefined) return "–";
  const found = parts(ms);
  return `${found.date} ${found.time} ${found.zone}`;
}

/**
 * As short as a scale of this step allows.
 * @param {number} ms
 * @param {number} step ms between two marks
 */
export function mark(ms, step) {
  const { date, time } = parts(ms);
  if (step >= 86_400_000) return date;
  const day = time.startsWith("00:00:00");
  if (step >= MINUTE) return day ? date : time.slice(0, 5);
  return step >= 1000 ? time.slice(0, 8) : time;
}

/**
 * What the service takes, RFC 3339 with its zone; readable in an address.
 * @param {number} ms
 */
export function rfc3339(ms) {
  const found = parts(ms);
  return `${found.date}T${found.time}${timeZone() === "utc" ? "Z" : found.zone}`;
}

/**
 * Whether a text is a time that moves with the moment it is read at: `2h`, `now-2h`, `today`, `yesterday+8h`.
 * @param {string} text
 */
export function isRelative(text) {
  return AGO.test(text.trim()) || FROM_NOW.test(text.trim());
}

/**
 * @param {string} text
 * @param {number} now
 * @returns {number | null} null for a text that is no relative time
 */
function parseRelative(text, now) {
  const ago = AGO.exec(text);
  if (ago) return Math.max(0, now - Number(ago[1]) * UNITS[ago[2].toLowerCase()]);
  const found = FROM_NOW.exec(text);
  if (!found) return null;
  const [, name, sign, n, unit] = found;
  const begin = /^now$/i.test(name) ? now : midnight(now, /^today$/i.test(name) ? 0 : 1);
  return sign ? Math.max(0, begin + Number(n) * UNITS[unit.toLowerCase()] * (sign === "-" ? -1 : 1)) : begin;
}

/**
 * The beginning of a day in the zone shown.
 * @param {number} now
 * @param {number} back  days before the one of `now`
 */
function midnight(now, back) {
  if (timeZone() === "utc") return Math.floor(now / DAY) * DAY - back * DAY;
  const at = new Date(now);
  return new Date(at.getFullYear(), at.getMonth(), at.getDate() - back).getTime();
}

/**
 * What a person typed, as ms: ms since the epoch, RFC 3339, a date with or without a time in the zone shown, a time of
 * today, or a relative time. Null for an empty text, NaN for one that is none of them.
 * @param {string} text
 * @param {number} [now]  what relative times are counted from
 * @returns {number | null}
 */
export function parse(text, now = Date.now()) {
  const asked = text.trim();
  if (asked === "") return null;
  if (/^\d{1,15}$/.test(asked)) return Number(asked);
  const relative = parseRelative(asked, now);
  if (relative !== null) return relative;
  const dated = /^\d\d:\d\d/.test(asked) ? `${parts(now).date} ${asked}` : asked;
  const found = /^(\d{4}-\d\d-\d\d)(?:[T ](\d\d:\d\d(?::\d\d(?:[.,]\d{1,9})?)?))?\s*(Z|UTC|[+-]\d\d:\d\d)?$/i.exec(dated);
  if (!found) return Number.NaN;
  const [, date, time = "00:00", zone] = found;
  const wall = `${date}T${(time.length === 5 ? `${time}:00` : time).replace(",", ".")}`;
  if (zone) return Date.parse(wall + (/^(z|utc)$/i.test(zone) ? "Z" : zone));
  return Date.parse(wall + (timeZone() === "utc" ? "Z" : ""));
}

/**
 * As a browser's own field for dates and times has it, in the zone shown and without naming it.
 * @param {number} ms
 */
export function wallClock(ms) {
  const { date, time } = parts(ms);
  return time ? `${date}T${time.slice(0, 8)}` : "";
}

/**
 * @typedef {object} Preset
 * @property {string} name  as it stands in the address
 * @property {string} label
 * @property {number | null} ms  how far back from now; null: everything
 */

/** @type {Preset[]} */
export const PRESETS = [
  { name: "15m", label: "15 min", ms: 15 * MINUTE },
  { name: "1h", label: "1 h", ms: 60 * MINUTE },
  { name: "24h", label: "24 h", ms: DAY },
  { name: "7d", label: "7 d", ms: 7 * DAY },
  { name: "30d", label: "30 d", ms: 30 * DAY },
  { name: "all", label: "All", ms: null },
];
