/**
 * The page's address holds the view and all of a search, so that it can be shared, and back and forward work. It is in
 * the fragment, which browsers send to nobody: keys that are searched for stand in no log on the way.
 */

/**
 * @typedef {object} Search
 * @property {string} topic
 * @property {string} key
 * @property {string} tag  one tag, or several as `A || B`
 * @property {string[]} contains  texts that the body has, all of them
 * @property {string[]} where  `name=value`, all of them
 * @property {string} range  name of a preset, or "custom"
 * @property {string} from  RFC 3339, ms or a relative time such as `2h`, of a custom range; empty: no bound
 * @property {string} to
 * @property {"store" | "born"} time
 * @property {"newest" | "oldest"} order
 * @property {number} limit
 */

/**
 * @typedef {object} Place
 * @property {string} view
 * @property {string} rest  of the path behind the view: the id of a message
 * @property {URLSearchParams} asked
 * @property {Search} search  what of it is a search
 */

export const VIEWS = ["search", "tail", "message", "topics", "groups", "store"];
export const LIMITS = [32, 100, 500, 1000];

/** @returns {Search} */
export function emptySearch() {
  return { topic: "", key: "", tag: "", contains: [], where: [], range: "all", from: "", to: "", time: "store", order: "newest", limit: 32 };
}

/**
 * @param {string} fragment  with or without its `#`
 * @returns {Place}
 */
export function parsePlace(fragment) {
  const [path, query = ""] = fragment.replace(/^#?\/?/, "").split("?", 2);
  const [view, rest = ""] = path.split("/", 2);
  const asked = new URLSearchParams(query);
  const search = emptySearch();
  search.topic = asked.get("topic") ?? "";
  search.key = asked.get("key") ?? "";
  search.tag = asked.get("tag") ?? "";
  search.contains = asked.getAll("contains").filter(Boolean);
  search.where = asked.getAll("where").filter(Boolean);
  search.from = asked.get("from") ?? "";
  search.to = asked.get("to") ?? "";
  search.range = asked.get("range") ?? (search.from || search.to ? "custom" : "all");
  search.time = asked.get("time") === "born" ? "born" : "store";
  search.order = asked.get("order") === "oldest" ? "oldest" : "newest";
  const limit = Number(asked.get("limit"));
  if (Number.isInteger(limit) && limit >= 1 && limit <= 10_000) search.limit = limit;
  return { view: VIEWS.includes(view) ? view : "search", rest: decoded(rest), asked, search };
}

/** @param {string} text */
function decoded(text) {
  try {
    return decodeURIComponent(text);
  } catch {
    return text; // a lone % is one
  }
}

/**
 * @param {{message_id: string, store_id: string}} message
 * @returns {string} the fragment of one message
 */
export function messageFragment(message) {
  const store = message.store_id ? `?store_id=${encodeURIComponent(message.store_id)}` : "";
  return `#/message/${encodeURIComponent(message.message_id)}${store}`;
}

/**
 * @param {{topic: string, tag?: string, last?: number}} followed
 * @returns {string} the fragment of a topic that is followed
 */
export function tailFragment({ topic, tag = "", last = 0 }) {
  const asked = new URLSearchParams({ topic, ...(tag && { tag }), ...(last && { last: String(last) }) });
  return topic ? `#/tail?${asked}` : "#/tail";
}

/**
 * @param {Search} search
 * @returns {string} the fragment of the search view
 */
export function searchFragment(search) {
  const asked = new URLSearchParams();
  const plain = emptySearch();
  if (search.topic) asked.set("topic", search.topic);
  if (search.key) asked.set("key", search.key);
  if (search.tag) asked.set("tag", search.tag);
  for (const text of search.contains) asked.append("contains", text);
  for (const text of search.where) asked.append("where", text);
  if (search.range === "custom") {
    if (search.from) asked.set("from", search.from);
    if (search.to) asked.set("to", search.to);
  } else if (search.range !== plain.range) {
    asked.set("range", search.range);
  }
  for (const name of /** @type {const} */ (["time", "order", "limit"])) {
    if (search[name] !== plain[name]) asked.set(name, String(search[name]));
  }
  const query = asked.toString();
  return query ? `#/search?${query}` : "#/search";
}
