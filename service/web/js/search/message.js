/** What is inside a message when it is opened. */

import { messageFragment } from "../address.js";
import { h, refill, say } from "../dom.js";
import { moment } from "../times.js";
import { bytes, count } from "../units.js";
import { bodyBytes, hexDump, isJson, plainText, prettyJson } from "./body.js";

/**
 * @typedef {object} Message  as the service gives it
 * @property {string} message_id
 * @property {string} store_id
 * @property {number} physical_offset
 * @property {string} topic
 * @property {number} queue_id
 * @property {number} queue_offset
 * @property {string[]} keys
 * @property {string} tag
 * @property {Record<string, string>} properties
 * @property {number} born_ms
 * @property {number} store_ms
 * @property {"hot" | "cold"} tier
 * @property {number} size_bytes
 * @property {string} [body]
 * @property {string} [body_base64]
 * @property {boolean} [body_compressed]
 * @property {number} [reconsume_times]
 * @property {string} [born_host]
 */

/**
 * @param {string} label
 * @param {() => string} text
 */
export function copyButton(label, text) {
  const button = h("button", { type: "button", class: "quiet small" }, label);
  button.addEventListener("click", async () => {
    try {
      await navigator.clipboard.writeText(text());
      button.textContent = "Copied";
      say(`${label}: copied`);
    } catch {
      button.textContent = "Not allowed";
      say("the browser does not allow copying here");
    }
    setTimeout(() => {
      button.textContent = label;
    }, 1500);
  });
  return button;
}

/**
 * @param {Message} message
 * @param {string[]} sought  texts to mark in the body
 * @param {(key: string) => void} searchKey
 */
export function messageDetails(message, sought, searchKey) {
  const text = message.body;
  const ways = /** @type {[string, () => Node][]} */ ([
    ...(text === undefined ? [] : [["Text", () => plainText(text, sought)]]),
    ...(isJson(text) ? [["JSON", () => prettyJson(text ?? "")]] : []),
    ["Hex", () => hexDump(bodyBytes(message))],
  ]);
  const first = ways.some(([name]) => name === "JSON") ? "JSON" : ways[0][0];
  const shown = h("pre", { class: "body", tabindex: "0", "aria-label": "Body" });
  const tabs = h("div", { class: "segmented", role: "group", "aria-label": "How to show the body" });
  const choose = (/** @type {string} */ chosen) => {
    for (const tab of tabs.children) tab.setAttribute("aria-pressed", String(tab.textContent === chosen));
    const way = ways.find(([name]) => name === chosen);
    if (way) refill(shown, way[1]());
  };
  for (const [name] of ways) {
    tabs.append(h("button", { type: "button", class: "small", onclick: () => choose(name) }, name));
  }
  choose(first);
  const link = messageFragment(message);
  return h(
    "div",
    { class: "details" },
    h(
      "div",
      { class: "details-bar" },
      tabs,
      h("span", { class: "muted" }, `${bytes(bodyBytes(message).length)} of body`),
      message.body_compressed && h("span", { class: "bad" }, "compressed, and could not be inflated"),
      h("span", { class: "grow" }),
      location.hash !== link && h("a", { href: link, title: "This message alone" }, "Permalink"),
      copyButton("Copy link", () => new URL(link, location.href).href),
      copyButton("Copy body", () => message.body ?? message.body_base64 ?? ""),
      copyButton("Copy id", () => message.message_id),
      copyButton("Copy as JSON", () => JSON.stringify(message, null, 2)),
    ),
    shown,
    h("div", { class: "facts-and-properties" }, facts(message, searchKey), properties(message)),
  );
}

/**
 * @param {Message} message
 * @param {(key: string) => void} searchKey
 */
function facts(message, searchKey) {
  const keys = message.keys.map((key) =>
    h("button", { type: "button", class: "chip", title: "Search this key", onclick: () => searchKey(key) }, key),
  );
  const rows = /** @type {[string, (Node | string)[]][]} */ ([
    ["Keys", keys.length ? keys : ["none"]],
    ["Tag", [message.tag || "none"]],
    ["Stored", [moment(message.store_ms)]],
    ["Born", [moment(message.born_ms)]],
    ...(message.born_host ? [["Sent from", [message.born_host]]] : []),
    ...(message.reconsume_times ? [["Consumed again", [count(message.reconsume_times)]]] : []),
    ["Tier", [message.tier === "hot" ? "hot, on this service's disk" : "cold, in the archive"]],
    ["Queue and offset", [`${message.queue_id} : ${count(message.queue_offset)}`]],
    ["Message id", [message.message_id]],
    ["Place in the log", [`${count(message.physical_offset)} (${bytes(message.size_bytes)})`]],
    ["Store", [message.store_id]],
  ]);
  return h("dl", { class: "facts" }, ...rows.map(([name, value]) => [h("dt", {}, name), h("dd", {}, ...value)]).flat());
}

/** @param {Message} message */
function properties(message) {
  const found = Object.entries(message.properties);
  return h(
    "table",
    { class: "properties" },
    h("caption", {}, found.length ? `Properties (${found.length})` : "No properties"),
    h("tbody", {}, ...found.map(([name, value]) => h("tr", {}, h("th", { scope: "row" }, name), h("td", {}, value)))),
  );
}
