/** Saves all messages of a search, however many pages they are, to a file. */

import { ask } from "../api.js";
import { pathOf } from "./question.js";

/** Messages that the service reads at a time for it. */
const A_READ = 10_000;
const LAST = 1 << 20;

/** @typedef {{name: string, accept: string, ending: string}} Form */

/** @type {Form[]} */
export const FORMS = [
  { name: "NDJSON", accept: "application/x-ndjson", ending: "ndjson" },
  { name: "Parquet", accept: "application/vnd.apache.parquet", ending: "parquet" },
];

/**
 * @param {import("./question.js").Question} question
 * @param {Form} form
 * @param {(bytes: number) => void} progress
 * @param {AbortSignal} signal
 * @returns {Promise<{bytes: number, complete: boolean}>} what was saved, and whether it is all, as far as that can be told
 */
export async function download(question, form, progress, signal) {
  const path = pathOf(question, { all: "true", limit: String(A_READ) });
  const answer = await ask(path, { accept: form.accept, signal });
  const kind = answer.headers.get("content-type") ?? "";
  if (!kind.startsWith(form.accept)) throw new Error(`the service has no ${form.name} of a search`);
  const pieces = /** @type {BlobPart[]} */ ([]);
  let bytes = 0;
  if (answer.body) {
    const reader = answer.body.getReader();
    for (;;) {
      const { done, value } = await reader.read();
      if (done) break;
      pieces.push(value);
      bytes += value.length;
      progress(bytes);
      if (pieces.length > 256) pieces.splice(0, pieces.length, new Blob(pieces)); // the browser may put it on disk
    }
  }
  const whole = new Blob(pieces, { type: form.accept });
  save(whole, fileName(question, form));
  return { bytes, complete: form.ending !== "ndjson" || (await isComplete(whole)) };
}

/**
 * Whether the last line, which tells what was covered, says that everything was.
 * @param {Blob} ndjson
 */
async function isComplete(ndjson) {
  const lines = (await ndjson.slice(-LAST).text()).trimEnd().split("\n");
  try {
    return JSON.parse(lines[lines.length - 1]).coverage.complete === true;
  } catch {
    return false; // the answer broke off
  }
}

/**
 * @param {import("./question.js").Question} question
 * @param {Form} form
 */
function fileName(question, form) {
  const named = [question.topic, question.search.key].filter(Boolean).join("-");
  return `${named.replace(/[^\w.-]+/g, "_").slice(0, 100)}.${form.ending}`;
}

/**
 * @param {Blob} blob
 * @param {string} name
 */
export function save(blob, name) {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(blob);
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 60_000);
}
