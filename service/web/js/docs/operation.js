/** One call: what it does, what it takes, what it answers, and how it is made. */

import { h } from "../dom.js";
import { prettyJson } from "../search/body.js";
import { inline, prose } from "./prose.js";

/** @typedef {import("./schema.js").Schemas} Schemas */
/** @typedef {{path: string, method: string, tag: string, call: any}} Operation */

/**
 * All calls in the order of the document.
 * @param {any} document
 * @returns {Operation[]}
 */
export function operationsOf(document) {
  return Object.entries(document.paths).flatMap(([path, methods]) =>
    Object.entries(/** @type {Record<string, any>} */ (methods)).map(([method, call]) => ({ path, method: method.toUpperCase(), tag: call.tags?.[0] ?? "other", call })));
}

/** @param {Operation} operation */
export function operationLine({ path, method }) {
  return [h("span", { class: `method ${method.toLowerCase()}` }, method), h("code", { class: "path" }, ...path.split(/(?=\/)/).flatMap((part) => [h("wbr"), part]))];
}

/**
 * @param {Operation} operation
 * @param {Schemas} schemas
 */
export function operationArticle(operation, schemas) {
  const { call } = operation;
  const id = call.operationId;
  return h("article", { id, class: "card call", "aria-labelledby": `${id}-title` },
    h("h3", { id: `${id}-title` }, h("a", { class: "call-link", href: `#${id}` }, ...operationLine(operation))),
    h("p", { class: "muted call-id" }, id, call.security ? ", needs a token" : ""),
    prose(call.description ?? call.summary ?? ""),
    parameters(call.parameters ?? [], schemas),
    body(call.requestBody, schemas),
    answers(call.responses, schemas),
    h("h4", {}, "Example"),
    h("pre", { class: "body", tabindex: 0, "aria-label": `Example of ${id}` }, h("code", {}, curl(operation, schemas))));
}

/** @type {Record<string, string>} */
const PLACES = { path: "path", query: "argument", header: "header", cookie: "cookie" };

/**
 * @param {any[]} found
 * @param {Schemas} schemas
 */
function parameters(found, schemas) {
  if (!found.length) return null;
  return [h("h4", {}, "Parameters"),
    h("ul", { class: "fields" }, ...found.map((one) => {
      const schema = schemas.resolve(one.schema);
      return h("li", { "data-parameter": one.name },
        h("div", { class: "field-line" }, h("code", { class: "name" }, one.name), h("span", { class: "place" }, PLACES[one.in] ?? one.in), h("span", { class: "type" }, schemas.words(one.schema)),
          one.required && h("span", { class: "needed" }, "needed"),
          schema.default !== undefined && schema.default !== null && h("span", { class: "muted" }, "else ", h("code", {}, JSON.stringify(schema.default)))),
        prose(one.description ?? schema.description ?? ""));
    }))];
}

/**
 * @param {any} found
 * @param {Schemas} schemas
 */
function body(found, schemas) {
  if (!found) return null;
  return [h("h4", {}, "Body"), ...Object.entries(found.content).map(([type, form]) => media(type, /** @type {any} */ (form), schemas, false))];
}

/**
 * @param {string} type
 * @param {any} form
 * @param {Schemas} schemas
 * @param {boolean} answered
 */
function media(type, form, schemas, answered) {
  const schema = schemas.resolve(form.schema);
  const fields = schemas.fields(form.schema ?? {}, !answered);
  const shown = form.example ?? (fields ? schemas.example(form.schema, answered) : undefined);
  return h("div", { class: "media" },
    h("div", { class: "field-line" }, h("code", { class: "name" }, type), h("span", { class: "type" }, schemas.words(form.schema ?? {}))),
    prose(schema.description ?? ""),
    fields && h("details", { open: !answered }, h("summary", {}, "Fields"), fields),
    shown !== undefined && h("details", {}, h("summary", {}, "Example"),
      h("pre", { class: "body", tabindex: 0 }, typeof shown === "string" ? h("code", {}, shown) : prettyJson(JSON.stringify(shown)))));
}

/**
 * @param {Record<string, any>} found
 * @param {Schemas} schemas
 */
function answers(found, schemas) {
  return [h("h4", {}, "Answers"),
    h("ul", { class: "answers" }, ...Object.entries(found).map(([status, one]) => {
      const answer = schemas.resolve(one);
      const good = status.startsWith("2");
      return h("li", { "data-status": status }, h("span", { class: `status-code ${good ? "good" : ""}` }, status), " ", ...inline(answer.description ?? ""),
        good && Object.entries(answer.content ?? {}).map(([type, form]) => media(type, /** @type {any} */ (form), schemas, true)));
    }))];
}

/**
 * The call as a command for a shell.
 * @param {Operation} operation
 * @param {Schemas} schemas
 */
function curl({ path, method, call }, schemas) {
  const given = call.parameters ?? [];
  const value = (/** @type {any} */ one) => encodeURIComponent(String(schemas.example(one.schema, false)));
  const place = path.replace(/\{([^{}]+)\}/g, (all, name) => {
    const one = given.find((/** @type {any} */ parameter) => parameter.in === "path" && parameter.name === name);
    const found = one ? value(one) : "";
    return found && found !== encodeURIComponent("…") ? found : name.toUpperCase();
  });
  const asked = given.filter((/** @type {any} */ one) => one.in === "query" && one.required).map((/** @type {any} */ one) => `${one.name}=${value(one)}`);
  const words = ["curl", ...(method === "GET" ? [] : ["-X", method]), quoted(`${location.origin}${place}${asked.length ? `?${asked.join("&")}` : ""}`)];
  if (call.security) words.push("\\\n    -H", quoted("Authorization: Bearer TOKEN"));
  const [type, form] = Object.entries(call.requestBody?.content ?? {})[0] ?? [];
  if (type) words.push("\\\n    -H", quoted(`Content-Type: ${type}`), "\\\n    -d", quoted(JSON.stringify(schemas.example(/** @type {any} */ (form).schema, false))));
  return words.join(" ");
}

/** @param {string} text */
function quoted(text) {
  return `'${text.replaceAll("'", "'\\''")}'`;
}
