/** The search: asks, shows pages as they come, and what was covered. */

import { askJson, words } from "../api.js";
import { h, refill, say } from "../dom.js";
import { onZone } from "../prefs.js";
import { rfc3339 } from "../times.js";
import { bytes, count, counted } from "../units.js";
import { coveragePanel, estimatePanel, isCut, verdict } from "./coverage.js";
import { FORMS, download } from "./download.js";
import { SearchForm } from "./form.js";
import { Histogram } from "./histogram.js";
import { WrongSearch, pathOf, questionOf } from "./question.js";
import { Results } from "./results.js";

/** @typedef {import("../address.js").Search} Search */
/** @typedef {import("./question.js").Question} Question */

export class SearchView {
  /**
   * @param {object} around
   * @param {(search: Search) => void} around.go  put a search into the address, which runs it
   * @param {(question: Question | null, messages: import("./message.js").Message[], coverage: any) => void} around.found
   */
  constructor(around) {
    this.around = around;
    this.form = new SearchForm({ search: () => this.submit(), price: () => this.price() });
    this.histogram = new Histogram((from, to) => this.narrow(from, to));
    this.results = new Results((key) => this.searchKey(key));
    this.status = h("div", { class: "status" });
    this.extra = h("div");
    this.covered = h("div");
    this.more = h("button", { type: "button", class: "more", hidden: true, onclick: () => this.next() });
    this.saving = h("div", { class: "saving", role: "group", "aria-label": "Download all", hidden: true });
    this.element = h(
      "section",
      { class: "view search-view", "aria-label": "Search" },
      this.form.element, this.extra, this.histogram.element, this.status, this.covered, this.saving, this.results.element, this.more,
    );
    /** @type {Question | null} */
    this.question = null;
    /** @type {string | null} */
    this.cursor = null;
    /** @type {AbortController | null} */
    this.running = null;
    /** @type {any} */
    this.coverage = null;
    /** @type {{time: "store" | "born", detail: string} | null} */
    this.hint = null;
    onZone(() => {
      this.results.redraw();
      this.showCoverage();
    });
  }

  submit() {
    const search = this.form.read();
    try {
      questionOf(search, Date.now());
    } catch (error) {
      if (!(error instanceof WrongSearch)) throw error;
      this.form.complain(error.message, error.field);
      return;
    }
    this.around.go(search);
  }

  /** @param {string} key */
  searchKey(key) {
    this.around.go({ ...(this.question?.search ?? this.form.read()), key });
  }

  /**
   * Ask the same of a part of the range.
   * @param {number} from
   * @param {number} to
   */
  narrow(from, to) {
    const search = this.question?.search;
    if (search) this.around.go({ ...search, range: "custom", from: rfc3339(from), to: rfc3339(to) });
  }

  /**
   * Take a search from the address; without a topic there is nothing to ask yet.
   * @param {import("../address.js").Place} place
   */
  async open({ search }) {
    this.form.write(search);
    this.form.complain("");
    this.stop();
    this.extra.replaceChildren();
    this.question = null;
    this.coverage = null;
    this.hint = null;
    this.results.begin(search);
    this.covered.replaceChildren();
    this.saving.hidden = true;
    this.more.hidden = true;
    this.around.found(null, [], null);
    this.histogram.begin(null);
    if (!search.topic) {
      refill(this.status, empty("Find a message", "Choose a topic; with a key only messages that carry it are found, wherever they are."));
      return;
    }
    try {
      this.question = questionOf(search, Date.now());
    } catch (error) {
      if (!(error instanceof WrongSearch)) throw error;
      this.form.complain(error.message, error.field);
      this.status.replaceChildren();
      return;
    }
    this.histogram.begin(this.question);
    await this.page(null);
  }

  stop() {
    this.running?.abort();
    this.running = null;
  }

  async next() {
    if (this.cursor) await this.page(this.cursor);
  }

  /** @param {string | null} cursor */
  async page(cursor) {
    const question = this.question;
    if (!question) return;
    this.stop();
    const running = new AbortController();
    this.running = running;
    this.more.disabled = true;
    if (!cursor) refill(this.status, h("div", { class: "loading", role: "progressbar", "aria-label": "Searching" }));
    this.element.setAttribute("aria-busy", "true");
    try {
      const page = await askJson(pathOf(question, cursor ? { cursor } : {}), { signal: running.signal });
      this.show(question, page);
    } catch (error) {
      if (running.signal.aborted) return;
      refill(this.status, h("p", { class: "trouble", role: "alert" }, words(error)));
      this.more.hidden = !this.cursor;
    } finally {
      if (this.running === running) {
        this.running = null;
        this.more.disabled = false;
        this.element.removeAttribute("aria-busy");
      }
    }
  }

  /**
   * @param {Question} question
   * @param {any} page
   */
  show(question, page) {
    const before = this.results.messages.length;
    this.results.add(page.messages);
    this.cursor = page.next_cursor;
    this.coverage = page.coverage;
    const all = this.results.messages.length;
    this.hint = (all === 0 && page.hint) || null;
    refill(this.status, all === 0 && this.nothing(question, page));
    this.more.hidden = !this.cursor;
    this.more.textContent = isCut(page.coverage, Boolean(this.cursor)) ? "Go on searching" : question.search.order === "newest" ? "Older messages" : "Newer messages";
    this.showCoverage();
    this.offerDownload();
    this.around.found(question, this.results.messages, page.coverage);
    this.histogram.loaded(this.results.messages);
    if (before) /** @type {HTMLElement | null} */ (this.results.list.children[before]?.querySelector(".line"))?.focus();
    say(`${counted(all, "message")} shown. ${verdict(page.coverage, Boolean(this.cursor))}.`);
  }

  /**
   * What is said where no message is.
   * @param {Question} question
   * @param {any} page
   */
  nothing(question, page) {
    const hint = this.hint;
    if (hint) {
      const again = () => this.around.go({ ...question.search, time: hint.time });
      return empty(`No message found by ${timeWords(question.search.time)}`, sentence(hint.detail),
        h("button", { type: "button", class: "primary", onclick: again }, `Search by ${timeWords(hint.time)}`));
    }
    if (page.coverage.complete) {
      return empty(this.cursor ? "No message found so far" : "No message found",
        this.cursor ? "There is more to search." : `Nothing in topic ${question.topic} matches, in either tier.`);
    }
    return empty("No message found so far", isCut(page.coverage, Boolean(this.cursor))
      ? "Not everything was searched yet. Going on continues where this stopped."
      : "But not everything was searched: see below what could not be.");
  }

  showCoverage() {
    if (!this.question || !this.coverage) return;
    refill(this.covered, coveragePanel(this.coverage, this.question, Boolean(this.cursor), this.hint !== null));
  }

  offerDownload() {
    const shown = this.results.messages.length;
    this.saving.hidden = shown === 0;
    refill(
      this.saving,
      h("span", { class: "shown" }, `${counted(shown, "message")} shown${this.cursor ? ", there are more" : ""}`),
      h("span", { class: "grow" }),
      h("span", { class: "muted" }, "Download all"),
      FORMS.map((form) => h("button", { type: "button", class: "quiet small", onclick: () => this.save(form) }, form.name)),
    );
  }

  /** @param {import("./download.js").Form} form */
  async save(form) {
    const question = this.question;
    if (!question) return;
    const stop = new AbortController();
    const progress = h("span", { role: "status" }, `${form.name}: 0 B`);
    refill(this.saving, progress, h("button", { type: "button", class: "quiet small", onclick: () => stop.abort() }, "Stop"));
    try {
      const saved = await download(question, form, (n) => refill(progress, `${form.name}: ${bytes(n)}`), stop.signal);
      this.offerDownload();
      this.saving.prepend(saved.complete
        ? h("span", { class: "done", role: "status" }, `Saved ${bytes(saved.bytes)} of ${form.name}.`)
        : h("span", { class: "bad", role: "alert" }, `Saved ${bytes(saved.bytes)}, but it is not all: a part of the store could not be searched.`));
    } catch (error) {
      this.offerDownload();
      if (!stop.signal.aborted) this.saving.prepend(h("span", { class: "bad", role: "alert" }, words(error)));
    }
  }

  async price() {
    const search = this.form.read();
    try {
      const question = questionOf(search, Date.now());
      this.form.complain("");
      refill(this.extra, h("div", { class: "loading", role: "progressbar", "aria-label": "Estimating" }));
      const page = await askJson(pathOf(question, { dry_run: "true" }));
      refill(this.extra, estimatePanel(page.estimate));
      say(`likely ${count(page.estimate.requests.likely)} requests`);
    } catch (error) {
      this.extra.replaceChildren();
      this.form.complain(words(error), error instanceof WrongSearch ? error.field : "");
    }
  }
}

/** @param {string} text  as the service words it */
function sentence(text) {
  return `${text.charAt(0).toUpperCase()}${text.slice(1)}${/[.!?]$/.test(text) ? "" : "."}`;
}

/** @param {"store" | "born"} axis */
function timeWords(axis) {
  return axis === "born" ? "born time" : "store time";
}

/**
 * @param {string} title
 * @param {string} text
 * @param {HTMLElement | null} [action]
 */
function empty(title, text, action = null) {
  return h("div", { class: "empty" }, h("h2", {}, title), h("p", {}, text), action);
}
