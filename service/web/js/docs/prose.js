/** Texts of the document: paragraphs, and code between backticks. */

import { h } from "../dom.js";

/**
 * @param {string} text
 * @returns {HTMLElement[]}
 */
export function prose(text) {
  return text.split(/\n\s*\n/).filter((part) => part.trim()).map((part) => h("p", {}, ...inline(part)));
}

/**
 * @param {string} text
 * @returns {(Node | string)[]}
 */
export function inline(text) {
  return text.replace(/\s+/g, " ").split(/(``[^`]+``|`[^`]+`)/).map((part) => (part.startsWith("`") ? h("code", {}, part.replace(/^`+|`+$/g, "")) : part));
}
