/** Schemas of an OpenAPI document: in a few words, as lists of fields, and as an example. */

import { h } from "../dom.js";
import { prose } from "./prose.js";

/** @typedef {Record<string, any>} Schema */

/** Fields inside fields that are set out; what lies deeper is named. */
const DEEPEST = 5;

export class Schemas {
  /** @param {any} document */
  constructor(document) {
    this.document = document;
  }

  /**
   * What a reference leads to, with what stands beside the reference.
   * @param {Schema | undefined} schema
   * @returns {Schema}
   */
  resolve(schema) {
    if (!schema?.$ref) return schema ?? {};
    const { $ref, ...beside } = schema;
    const found = String($ref).split("/").slice(1).reduce((at, name) => at?.[name.replaceAll("~1", "/").replaceAll("~0", "~")], this.document);
    return { title: String($ref).split("/").pop(), ...this.resolve(found), ...beside };
  }

  /**
   * The kinds that a value may be of, without null, and whether it may be null.
   * @param {Schema} schema
   */
  kinds(schema) {
    const found = this.resolve(schema);
    const all = (found.properties ? [found] : found.anyOf ?? found.oneOf ?? [found]).map((/** @type {Schema} */ one) => this.resolve(one));
    const some = all.filter((/** @type {Schema} */ one) => one.type !== "null");
    return { kinds: /** @type {Schema[]} */ (some), nullable: some.length < all.length };
  }

  /**
   * `integer, 1 to 1,024, or null`
   * @param {Schema} schema
   * @returns {string}
   */
  words(schema) {
    const { kinds, nullable } = this.kinds(schema);
    const all = kinds.map((kind) => this.kindWords(kind));
    if (nullable) all.push("null");
    return [...new Set(all)].join(" or ") || "anything";
  }

  /** @param {Schema} kind */
  kindWords(kind) {
    if (kind.const !== undefined) return JSON.stringify(kind.const);
    if (kind.enum) return kind.enum.map((/** @type {any} */ one) => JSON.stringify(one)).join(" or ");
    if (kind.type === "array") {
      const many = kind.prefixItems ? `[${kind.prefixItems.map((/** @type {Schema} */ one) => this.words(one)).join(", ")}]` : `list of ${this.words(kind.items ?? {})}`;
      return many + between(kind.minItems, kind.maxItems);
    }
    if (kind.type === "object" || kind.properties) return kind.title ?? (kind.additionalProperties ? `map to ${this.words(kind.additionalProperties === true ? {} : kind.additionalProperties)}` : "object");
    const format = kind.format ?? kind.contentEncoding;
    if (kind.type === "string" && format === "binary") return "bytes";
    return `${kind.type ?? "anything"}${format ? ` (${format})` : ""}${between(kind.minimum, kind.maximum ?? less(kind.exclusiveMaximum))}`;
  }

  /**
   * The fields of an object, also of the objects in a list or of one of several kinds; null if there are none.
   * @param {Schema} schema
   * @param {boolean} sent  to the service, or answered by it
   * @param {string[]} [above]  titles of the objects around it
   * @returns {HTMLElement | null}
   */
  fields(schema, sent, above = []) {
    const found = this.kinds(schema).kinds.map((kind) => this.objectIn(kind)).filter((kind) => kind !== null);
    const lists = found.filter((kind) => above.length < DEEPEST && !above.includes(kind.title ?? "")).map((kind) => {
      const required = new Set(kind.required ?? []);
      const inside = [...above, kind.title ?? ""];
      return h("ul", { class: "fields" }, ...Object.entries(kind.properties ?? {}).map(([name, field]) => this.field(name, /** @type {Schema} */ (field), required.has(name), sent, inside)));
    });
    return lists.length > 1 ? h("div", { class: "kinds" }, ...lists.flatMap((list, at) => (at ? [h("p", { class: "muted" }, "or"), list] : [list]))) : lists[0] ?? null;
  }

  /**
   * @param {Schema} kind
   * @returns {Schema | null}
   */
  objectIn(kind) {
    if (kind.properties) return kind;
    const inside = kind.type === "array" ? kind.items : kind.additionalProperties;
    if (!inside || inside === true) return null;
    return this.kinds(inside).kinds.map((one) => this.objectIn(one)).find((one) => one !== null) ?? null;
  }

  /**
   * @param {string} name
   * @param {Schema} schema
   * @param {boolean} required
   * @param {boolean} sent
   * @param {string[]} above
   */
  field(name, schema, required, sent, above) {
    const known = this.resolve(schema);
    const inner = this.fields(schema, sent, above);
    return h("li", {},
      h("div", { class: "field-line" }, h("code", { class: "name" }, name), h("span", { class: "type" }, this.words(schema)),
        sent && required && h("span", { class: "needed" }, "needed"),
        !sent && !required && h("span", { class: "muted" }, "not always there"),
        known.default !== undefined && known.default !== null && h("span", { class: "muted" }, "else ", h("code", {}, JSON.stringify(known.default)))),
      prose(schema.description ?? ""),
      inner && h("details", {}, h("summary", {}, "Fields"), inner));
  }

  /**
   * A value that would be taken, or could be answered.
   * @param {Schema} schema
   * @param {boolean} whole  with the fields that need not be there
   * @param {string[]} [above]
   * @returns {any}
   */
  example(schema, whole, above = []) {
    const found = this.resolve(schema);
    if (found.example !== undefined) return found.example;
    if (found.examples?.length) return found.examples[0];
    if (found.default !== undefined && found.default !== null) return found.default;
    const kind = this.kinds(found).kinds[0];
    if (!kind) return null;
    if (kind !== found && kind.examples?.length) return kind.examples[0];
    if (kind.const !== undefined) return kind.const;
    if (kind.enum) return kind.enum[0];
    if (kind.type === "array") {
      if (kind.prefixItems) return kind.prefixItems.map((/** @type {Schema} */ one) => this.example(one, whole, above));
      return above.length < DEEPEST ? [this.example(kind.items ?? {}, whole, above)] : [];
    }
    if (kind.properties) {
      if (above.includes(kind.title ?? "-")) return {};
      const inside = [...above, kind.title ?? ""];
      const wanted = Object.entries(kind.properties).filter(([name, field]) => whole || kind.required?.includes(name) || this.resolve(/** @type {Schema} */ (field)).examples);
      return Object.fromEntries(wanted.map(([name, field]) => [name, this.example(/** @type {Schema} */ (field), whole, inside)]));
    }
    if (kind.type === "object") return {};
    if (kind.type === "integer" || kind.type === "number") return kind.minimum ?? 0;
    if (kind.type === "boolean") return true;
    return kind.format === "date-time" ? "2026-03-01T06:00:00Z" : kind.contentEncoding === "base64" ? "AAEC" : "…";
  }
}

const COUNT = new Intl.NumberFormat("en");

/** @param {number | undefined} bound */
function less(bound) {
  return bound === undefined ? undefined : bound - 1;
}

/**
 * @param {number | undefined} least
 * @param {number | undefined} most
 */
function between(least, most) {
  if (least === undefined && most === undefined) return "";
  if (most === undefined) return `, ${COUNT.format(least ?? 0)} or more`;
  return least === undefined ? `, at most ${COUNT.format(most)}` : `, ${COUNT.format(least)} to ${COUNT.format(most)}`;
}
