/** Puts the parts together: the address says which view is shown and what is searched. */

import { askJson } from "./api.js";
import { parsePlace, searchFragment } from "./address.js";
import { byId } from "./dom.js";
import { connectKeys, showHelp } from "./keys.js";
import { connectSwitches, switchZone } from "./prefs.js";
import { SearchView } from "./search/view.js";
import { rfc3339 } from "./times.js";
import { Glance } from "./timeline/glance.js";
import { onToken } from "./token.js";
import { GroupsView } from "./views/groups.js";
import { StoreView } from "./views/store.js";
import { TopicsView } from "./views/topics.js";

/** @typedef {import("./address.js").Search} Search */

const search = new SearchView({ go, found: (question, messages, coverage) => glance.showSearch(question, messages, coverage) });
const topics = new TopicsView();
const groups = new GroupsView();
const store = new StoreView(byId("banners"));
const glance = new Glance(byId("glance"), (from, to) => {
  go({ ...search.form.read(), range: "custom", from: rfc3339(from), to: rfc3339(to), time: "store" });
});
const views = /** @type {Record<string, {element: HTMLElement, open: (search: Search) => unknown, close?: () => void}>} */ ({ search, topics, groups, store });
let shown = "";
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
      if (tab.getAttribute("data-view") === shown) tab.setAttribute("aria-current", "page");
      else tab.removeAttribute("aria-current");
    }
    if (shown !== "search") views[shown].open(place.search);
  }
  document.title = place.view === "search" ? [place.search.key, place.search.topic, "tierlog"].filter(Boolean).join(" · ") : `${shown} · tierlog`;
  const fragment = searchFragment(place.search);
  if (shown === "search" && ran !== fragment) {
    ran = fragment;
    search.open(place.search);
  }
}

async function offerTopics() {
  try {
    const found = await askJson("/v1/topics");
    search.form.offer(found.topics.map((/** @type {any} */ topic) => topic.topic));
  } catch {
    // the search itself says what is wrong
  }
}

/** @param {string} view */
const to = (view) => () => {
  location.hash = `#/${view}`;
};

connectSwitches(byId("zone"), byId("theme"));
byId("help").addEventListener("click", showHelp);
connectKeys({
  "/": () => {
    if (shown !== "search") location.hash = "#/search";
    requestAnimationFrame(() => search.form.key.focus());
  },
  j: () => void search.results.move(1),
  k: () => void search.results.move(-1),
  m: () => void search.next(),
  t: switchZone,
  d: () => byId("theme").click(),
  "?": showHelp,
  "g s": to("search"),
  "g t": to("topics"),
  "g g": to("groups"),
  "g o": to("store"),
});
addEventListener("popstate", follow);
addEventListener("hashchange", follow);
search.form.topic.addEventListener("focus", offerTopics);
onToken(() => {
  offerTopics();
  glance.poll.now();
  store.poll.now();
});
follow();
await offerTopics();
glance.poll.start();
store.poll.start();
