/** Asks the service, with the token of this tab if there is one. */

import { askForToken, token } from "./token.js";

/** An answer that is an error, with the words of its problem document. */
export class ApiError extends Error {
  /**
   * @param {number} status  HTTP status; 0 if there was no answer
   * @param {string} message
   * @param {string} [hint]
   */
  constructor(status, message, hint = "") {
    super(message);
    this.status = status;
    this.hint = hint;
  }
}

/**
 * @typedef {object} Asked
 * @property {string} [accept]
 * @property {AbortSignal} [signal]
 * @property {boolean} [quiet]  a poll, which opens no dialog
 * @property {"GET" | "POST" | "DELETE"} [method]
 * @property {unknown} [json]  sent as the body
 */

/**
 * @param {Response} answer
 * @returns {Promise<ApiError>}
 */
async function errorOf(answer) {
  const words = { 401: "the service asks for a token", 403: "your token has no right to this" };
  let message = words[/** @type {401 | 403} */ (answer.status)] ?? `the service answered ${answer.status}`;
  let hint = "";
  try {
    const problem = await answer.json();
    message = String(problem.detail ?? problem.title ?? message);
    hint = String(problem.hint ?? "");
  } catch {
    // no problem document: something before the service answered
  }
  return new ApiError(answer.status, message, hint);
}

/**
 * @param {string} path
 * @param {Asked} [options]
 * @returns {Promise<Response>} an answer with status 200
 */
export async function ask(path, options = {}) {
  const { accept = "application/json", signal, quiet = false, method = "GET", json } = options;
  const body = json === undefined ? undefined : JSON.stringify(json);
  for (;;) {
    const used = token();
    /** @type {Record<string, string>} */
    const headers = { Accept: accept };
    if (used) headers.Authorization = `Bearer ${used}`;
    if (body !== undefined) headers["Content-Type"] = "application/json";
    let answer;
    try {
      answer = await fetch(path, { method, headers, body, signal, cache: "no-store" });
    } catch (error) {
      if (signal?.aborted) throw error;
      throw new ApiError(0, "the service does not answer", "it may be starting or stopped; the page goes on trying");
    }
    if (answer.ok) return answer;
    const problem = await errorOf(answer);
    if (answer.status !== 401 || quiet || !(await askForToken(used ? problem.message : ""))) throw problem;
  }
}

/**
 * @param {string} path
 * @param {Asked} [options]
 * @returns {Promise<any>}
 */
export async function askJson(path, options = {}) {
  return (await ask(path, options)).json();
}

/**
 * What went wrong, in one sentence a person can read.
 * @param {unknown} error
 */
export function words(error) {
  if (error instanceof ApiError) return error.hint ? `${error.message} (${error.hint})` : error.message;
  return error instanceof Error ? error.message : String(error);
}
