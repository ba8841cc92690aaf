/** A topic as its messages come in, the newest at the end. */

import { emptySearch, searchFragment, tailFragment } from "../address.js";
import { words } from "../api.js";
import { h, refill, say } from "../dom.js";
import { Poll } from "../poll.js";
import { onZone } from "../prefs.js";
import { field, input } from "../search/fields.js";
import { Results } from "../search/results.js";
import { count, counted } from "../units.js";
import { FollowedTopic } from "./followed.js";

const EVERY_MS = 1000;
/** Messages that stay in the list. */
const MOST = 1000;
/** Pixels from the end within which the list goes on by itself. */
const NEAR = 40;

/** @type {[number, string][]} */
const BEGINS = [[0, "from now on"], [20, "with the last 20"], [100, "with the last 100"], [500, "with the last 500"]];

export class TailView {
  constructor() {
    this.names = h("datalist", { id: "tail-topics" });
    this.topic = input({ id: "f-tail-topic", name: "topic", list: "tail-topics", placeholder: "orders" });
    this.tag = input({ id: "f-tail-tag", name: "tag", placeholder: "any; A || B" });
    this.last = /** @type {HTMLSelectElement} */ (h("select", { id: "f-tail-last", name: "last" }, ...BEGINS.map(([n, label]) => h("option", { value: n }, label))));
    const form = h("form", { class: "search", "aria-label": "Follow a topic", novalidate: true },
      h("div", { class: "row" }, field("Topic", this.topic, "wide"), this.names, field("Tag", this.tag, "wide"), field("Begin", this.last),
        h("button", { type: "submit", class: "primary" }, "Follow")));
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      this.submit();
    });
    this.results = new Results((key) => {
      location.hash = searchFragment({ ...emptySearch(), topic: this.topic.value.trim(), key });
    });
    this.state = h("span", { class: "live-state" });
    this.told = h("span", { class: "muted" });
    this.pauser = h("button", { type: "button", class: "small", onclick: () => this.pause() });
    this.bar = h("div", { class: "live-bar", hidden: true }, this.state, this.told, h("span", { class: "grow" }), this.pauser,
      h("button", { type: "button", class: "quiet small", onclick: () => this.clear() }, "Clear"));
    this.trouble = h("p", { class: "bad", role: "status" });
    this.newer = h("button", { type: "button", class: "small live-newer", hidden: true, onclick: () => this.toEnd() }, "↓ Newest");
    this.empty = h("div", { class: "empty" });
    this.box = h("div", { class: "live-box", tabindex: 0, role: "log", "aria-live": "off", "aria-label": "Messages as they come in", hidden: true },
      this.results.element, this.newer, this.empty);
    this.box.addEventListener("scroll", () => {
      if (this.isAtEnd()) this.newer.hidden = true;
    });
    this.element = h("section", { class: "view", "aria-label": "Live" }, form, this.bar, this.trouble, this.box);
    /** @type {FollowedTopic | null} */
    this.followed = null;
    this.came = 0;
    this.running = new AbortController();
    this.poll = new Poll(EVERY_MS, () => this.round());
    onZone(() => this.results.redraw());
  }

  /** @param {string[]} names */
  offer(names) {
    this.names.replaceChildren(...names.map((value) => h("option", { value })));
    if (!this.topic.value && names.length === 1) this.topic.value = names[0];
  }

  submit() {
    const wanted = tailFragment({ topic: this.topic.value.trim(), tag: this.tag.value.trim(), last: Number(this.last.value) });
    if (wanted === "#/tail") this.topic.focus();
    else if (location.hash === wanted) this.begin();
    else location.hash = wanted;
  }

  /** @param {import("../address.js").Place} place */
  open({ search, asked }) {
    this.topic.value = search.topic || this.topic.value;
    this.tag.value = search.tag;
    this.last.value = asked.get("last") ?? "0";
    if (this.last.selectedIndex < 0) this.last.value = "0";
    this.close();
    this.bar.hidden = this.box.hidden = !search.topic;
    if (search.topic) this.begin();
  }

  begin() {
    this.stop();
    this.followed = new FollowedTopic(this.topic.value.trim(), this.tag.value.trim(), Number(this.last.value));
    this.clear();
    this.trouble.textContent = "";
    this.start();
  }

  close() {
    this.stop();
    this.followed = null;
  }

  start() {
    this.running = new AbortController();
    this.poll.start();
    this.draw();
  }

  stop() {
    this.poll.stop();
    this.running.abort();
  }

  pause() {
    if (!this.followed) return;
    if (this.poll.running) this.stop();
    else this.start();
    this.draw();
    say(this.poll.running ? "live" : "paused");
  }

  clear() {
    this.came = 0;
    if (this.followed) this.followed.passed = 0;
    this.results.begin({ ...emptySearch(), topic: this.topic.value.trim() });
    this.newer.hidden = true;
    this.draw();
  }

  async round() {
    const { followed, running } = this;
    if (!followed) return;
    try {
      const found = await followed.round(running.signal);
      if (this.followed !== followed) return;
      this.trouble.textContent = "";
      this.add(found);
    } catch (error) {
      if (running.signal.aborted) return;
      this.trouble.textContent = words(error);
      throw error;
    }
  }

  /** @param {import("../search/message.js").Message[]} messages */
  add(messages) {
    if (messages.length) {
      const follows = this.isAtEnd();
      this.came += messages.length;
      this.results.add(messages.slice(-MOST));
      this.results.trim(MOST);
      if (follows) this.toEnd();
      else this.newer.hidden = false;
    }
    this.draw();
  }

  isAtEnd() {
    return this.box.scrollHeight - this.box.scrollTop - this.box.clientHeight < NEAR;
  }

  toEnd() {
    this.box.scrollTop = this.box.scrollHeight;
    this.newer.hidden = true;
  }

  draw() {
    const { followed } = this;
    if (!followed) return;
    const on = this.poll.running;
    this.state.classList.toggle("on", on);
    this.state.textContent = on ? "Live" : "Paused";
    this.pauser.textContent = on ? "Pause" : "Resume";
    const kept = this.came > MOST ? `, the last ${count(MOST)} are shown` : "";
    const passed = followed.passed ? `; ${counted(followed.passed, "message")} came too fast and ${followed.passed === 1 ? "was" : "were"} passed over` : "";
    refill(this.told, `${counted(this.came, "message")}${kept}${passed}`);
    refill(this.empty, this.came === 0 && h("p", {}, followed.next === null && on ? "Looking…" : "Waiting for the next message."));
    this.empty.hidden = this.came > 0;
  }
}
