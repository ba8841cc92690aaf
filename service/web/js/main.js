/** Puts the parts together: the address says which view is shown and what is searched. */

import { askJson } from "./api.js";
import { parsePlace, searchFragment } from "./address.js";
import { byId } from "./dom.js";
import { connectKeys, showHelp } from "./keys.js";
import { connectTheme, connectZone, switchZone } from "./prefs.js";
import { SearchView } from "./search/view.js";
import { TailView } from "./tail/view.js";
import { rfc3339 } from "./times.js";
import { Glance } from "./timeline/glance.js";
import { onToken } from "./token.js";
import { GroupsView } from "./views/groups.js";
import { MessageView } from "./views/message.js";
import { StoreView } from "./views/store.js";
import { TopicsView } from "./views/topics.js";

/** @typedef {import("./address.js").Search} Search */

const search = new SearchView({ go, found: (question, messages, coverage) => glance.showSearch(question, messages, coverage) });
const tail = new TailView();
const topics = new TopicsView();
const groups = new GroupsView();
const message = new MessageView();
const store = new StoreView(byId("banners"));
const glance = new Glance(byId("glance"), (from, to, time) => {
  go({ ...search.form.read(), range: "custom", from: rfc3339(from), to: rfc3339(to), time });
});
/** @typedef {{element: HTMLElement, open: (place: import("./address.js").Place) => unknown, close?: () => void}} View */
const views = /** @type {Record<string, View>} */ ({ search, tail, message, topics, groups, store });
let shown = "";
let opened = "";
let ran = "";

/** @param {Search} wanted */
function go(wanted) {
  const fragment = searchFragment(wanted);
  if (location.hash !== fragment) history.pushState(null, "", fragment);
  ran = "";
  follow();
}

/** Show what the address says; a search that is shown already is not asked again. */
function follow() {
  const place = parsePlace(location.hash);
  if (place.view !== shown) {
    views[shown]?.close?.();
    byId("main").replaceChildren(views[place.view].element);
    shown = place.view;
    for (const tab of document.querySelectorAll(".tabs a")) {
      if (tab.getAttribute("data-view") !== shown) tab.removeAttribute("aria-current");
      else {
        tab.setAttribute("aria-current", "page");
        const bar = /** @type {HTMLElement} */ (tab.parentElement);
        bar.scrollLeft = /** @type {HTMLElement} */ (tab).offsetLeft - bar.offsetLeft - 24; // it may be wider than the screen
      }
    }
    opened = "";
  }
  const named = place.view === "search" ? [place.search.key, place.search.topic] : [place.rest, place.search.topic, shown];
  document.title = [...named, "tierlog"].filter(Boolean).join(" · ");
  const fragment = searchFragment(place.search);
  if (shown === "search" ? ran !== fragment : opened !== location.hash) {
    if (shown === "search") ran = fragment;
    opened = location.hash;
    views[shown].open(place);
  }
}

async function offerTopics() {
  try {
    const found = await askJson("/v1/topics");
    const names = found.topics.map((/** @type {any} */ topic) => topic.topic);
    search.form.offer(names);
    tail.offer(names);
  } catch {
    // the search itself says what is wrong
  }
}

/** The list of messages that is shown. */
function results() {
  return shown === "tail" ? tail.results : search.results;
}

/** @param {string} view */
const to = (view) => () => {
  location.hash = `#/${view}`;
};

connectZone(byId("zone"));
connectTheme(byId("theme"));
byId("help").addEventListener("click", showHelp);
connectKeys({
  "/": () => {
    if (shown !== "search") location.hash = "#/search";
    requestAnimationFrame(() => search.form.key.focus());
  },
  j: () => void results().move(1),
  k: () => void results().move(-1),
  m: () => void search.next(),
  p: () => void (shown === "tail" && tail.pause()),
  t: switchZone,
  d: () => byId("theme").click(),
  "?": showHelp,
  "g s": to("search"),
  "g l": to("tail"),
  "g m": to("message"),
  "g t": to("topics"),
  "g g": to("groups"),
  "g o": to("store"),
});
addEventListener("popstate", follow);
addEventListener("hashchange", follow);
for (const field of [search.form.topic, tail.topic]) field.addEventListener("focus", offerTopics);
onToken(() => {
  offerTopics();
  glance.poll.now();
  store.poll.now();
});
follow();
await offerTopics();
glance.poll.start();
store.poll.start();
