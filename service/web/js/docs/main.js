/** The API for people, from the document that programs read: `/openapi.json` of this service. */

import { askJson, words } from "../api.js";
import { byId, h, refill, say } from "../dom.js";
import { connectTheme } from "../prefs.js";
import { counted } from "../units.js";
import { operationArticle, operationLine, operationsOf } from "./operation.js";
import { prose } from "./prose.js";
import { Schemas } from "./schema.js";

/** @typedef {import("./operation.js").Operation} Operation */

/** @param {any} document */
function show(document) {
  const schemas = new Schemas(document);
  const operations = operationsOf(document);
  const known = (document.tags ?? []).map((/** @type {any} */ tag) => tag.name);
  const tags = [...new Set([...known, ...operations.map((one) => one.tag)])].map((name) => ({
    name,
    description: (document.tags ?? []).find((/** @type {any} */ tag) => tag.name === name)?.description ?? "",
    operations: operations.filter((one) => one.tag === name),
  })).filter((tag) => tag.operations.length);

  const filter = /** @type {HTMLInputElement} */ (h("input", { type: "search", placeholder: "Filter calls", "aria-label": "Filter calls" }));
  const note = h("p", { class: "muted", role: "status" });
  refill(byId("contents"), filter, note, ...tags.map((tag) =>
    h("section", {}, h("h2", {}, tag.name),
      h("ul", { class: "plain" }, ...tag.operations.map((one) => h("li", { "data-call": one.call.operationId }, h("a", { href: `#${one.call.operationId}` }, ...operationLine(one))))))));
  refill(byId("main"),
    h("section", { class: "intro" },
      h("h1", {}, `${document.info.title} `, h("span", { class: "muted" }, document.info.version)),
      prose(document.info.description ?? ""),
      h("p", {}, "For programs, the same is in ", h("a", { href: "/openapi.json" }, "/openapi.json"), ` (OpenAPI ${document.openapi}).`)),
    ...tags.map((tag) => h("section", { class: "tag-section", "aria-label": tag.name }, h("h2", { id: `tag-${tag.name}` }, tag.name), prose(tag.description),
      ...tag.operations.map((one) => operationArticle(one, schemas)))),
    failures(document, schemas));

  filter.addEventListener("input", () => {
    const wanted = filter.value.trim().toLowerCase();
    const shown = new Set(operations.filter((one) => matches(one, wanted)).map((one) => one.call.operationId));
    for (const entry of /** @type {NodeListOf<HTMLElement>} */ (byId("contents").querySelectorAll("[data-call]"))) entry.hidden = !shown.has(entry.dataset.call);
    for (const article of /** @type {NodeListOf<HTMLElement>} */ (byId("main").querySelectorAll(".call"))) article.hidden = !shown.has(article.id);
    for (const part of /** @type {NodeListOf<HTMLElement>} */ (globalThis.document.querySelectorAll("#contents section, .tag-section"))) {
      part.hidden = !part.querySelector("[data-call]:not([hidden]), .call:not([hidden])");
    }
    refill(note, wanted && counted(shown.size, "call"));
  });
}

/**
 * @param {Operation} operation
 * @param {string} wanted
 */
function matches({ path, method, call }, wanted) {
  return `${method} ${path} ${call.operationId} ${call.description ?? ""}`.toLowerCase().includes(wanted);
}

/**
 * What every failure looks like.
 * @param {any} document
 * @param {Schemas} schemas
 */
function failures(document, schemas) {
  const problem = document.components?.schemas?.Problem;
  if (!problem) return null;
  return h("section", { "aria-label": "failures" }, h("h2", { id: "failures" }, "Failures"), prose(problem.description ?? ""),
    h("div", { class: "card" }, schemas.fields(problem, false)));
}

/** The call that the address names; an address that names none, like `#%`, leaves the page where it is. */
function toCall() {
  const named = document.getElementById(decoded(location.hash.slice(1)));
  for (const link of document.querySelectorAll("#contents a")) {
    if (link.getAttribute("href") === location.hash) link.setAttribute("aria-current", "true");
    else link.removeAttribute("aria-current");
  }
  if (named) named.scrollIntoView();
}

/** @param {string} text */
function decoded(text) {
  try {
    return decodeURIComponent(text);
  } catch {
    return text; // not what an encoder makes
  }
}

connectTheme(byId("theme"));
refill(byId("main"), h("div", { class: "loading", role: "progressbar", "aria-label": "Loading" }));
try {
  show(await askJson("/openapi.json", { quiet: true }));
  toCall();
  addEventListener("hashchange", toCall);
} catch (error) {
  refill(byId("main"), h("p", { class: "trouble", role: "alert" }, words(error)));
  say("the document could not be loaded");
}
