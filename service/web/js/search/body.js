/** Three ways to show the bytes of a body: text, JSON set out in lines, hexadecimal. */

import { h } from "../dom.js";
import { bytes as bytesText } from "../units.js";

const TOKEN = /"(?:\\.|[^"\\])*"|-?\d[\d.eE+-]*|true|false|null|[{}[\],:]/g;
const MOST_JSON = 512 * 1024;
const MOST_TEXT = 256 * 1024;
const HEX_ROWS = 512;

/**
 * @param {{body?: string, body_base64?: string}} message
 * @returns {Uint8Array}
 */
export function bodyBytes(message) {
  if (typeof message.body === "string") return new TextEncoder().encode(message.body);
  return Uint8Array.from(atob(message.body_base64 ?? ""), (letter) => letter.charCodeAt(0));
}

/**
 * Whether a text is an object or an array of JSON.
 * @param {string | undefined} text
 */
export function isJson(text) {
  if (text === undefined || text.length > MOST_JSON || !/^\s*[[{]/.test(text)) return false;
  try {
    JSON.parse(text);
    return true;
  } catch {
    return false;
  }
}

/**
 * JSON in lines, token by token: numbers stay as they were written, however long.
 * @param {string} text  sound JSON
 */
export function prettyJson(text) {
  const out = h("code", { class: "json" });
  let depth = 0;
  const tokens = text.match(TOKEN) ?? [];
  const line = () => out.append(`\n${"  ".repeat(depth)}`);
  tokens.forEach((token, at) => {
    const next = tokens[at + 1];
    if (token === "{" || token === "[") {
      out.append(token);
      depth += 1;
      if (next !== "}" && next !== "]") line();
    } else if (token === "}" || token === "]") {
      depth -= 1;
      const before = tokens[at - 1];
      if (before !== "{" && before !== "[") line();
      out.append(token);
    } else if (token === ",") {
      out.append(token);
      line();
    } else if (token === ":") {
      out.append(": ");
    } else {
      out.append(h("span", { class: kindOf(token, next) }, token));
    }
  });
  return out;
}

/**
 * @param {string} token
 * @param {string | undefined} next
 */
function kindOf(token, next) {
  if (token.startsWith('"')) return next === ":" ? "json-name" : "json-text";
  return /^[tfn]/.test(token) ? "json-word" : "json-number";
}

/**
 * @param {string} text
 * @param {string[]} sought  marked where they stand
 */
export function plainText(text, sought) {
  const shown = text.length > MOST_TEXT ? text.slice(0, MOST_TEXT) : text;
  const rest = text.length - shown.length;
  return h("code", {}, marked(shown, sought), rest > 0 && `\n… ${bytesText(rest)} more; copy or download for all`);
}

/**
 * A text in pieces, with every place of a text that was sought in a `mark`.
 * @param {string} text
 * @param {string[]} sought  none of them empty
 * @returns {(Node | string)[]}
 */
export function marked(text, sought) {
  if (sought.length === 0) return [text];
  const longestFirst = [...sought].sort((one, other) => other.length - one.length);
  const any = new RegExp(`(${longestFirst.map((one) => one.replace(/[\\^$.*+?()[\]{}|]/g, "\\$&")).join("|")})`);
  return text.split(any).map((piece, at) => (at % 2 ? h("mark", {}, piece) : piece));
}

/** @param {Uint8Array} data */
export function hexDump(data) {
  const lines = [];
  for (let at = 0; at < data.length && lines.length < HEX_ROWS; at += 16) {
    const row = data.subarray(at, at + 16);
    const hex = Array.from(row, (byte) => byte.toString(16).padStart(2, "0"));
    const letters = Array.from(row, (byte) => (byte >= 0x20 && byte < 0x7f ? String.fromCharCode(byte) : "·"));
    const halves = `${hex.slice(0, 8).join(" ").padEnd(23)}  ${hex.slice(8).join(" ").padEnd(23)}`;
    lines.push(`${at.toString(16).padStart(8, "0")}  ${halves}  ${letters.join("")}`);
  }
  const rest = data.length - HEX_ROWS * 16;
  if (rest > 0) lines.push(`… ${bytesText(rest)} more`);
  return h("code", { class: "hex" }, lines.join("\n") || "no bytes");
}
