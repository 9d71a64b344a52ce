// The conversations beside the talk: title, agent, a dot for the state, and whether something waits for a person.

import { get } from "../api.js";
import { fill, h, icon, ICONS } from "../dom.js";
import { ago, plainLine } from "../format.js";
import { isAdmin, me, sessionsPath } from "../me.js";
import { stateWords } from "../states.js";
import { errorBox, toneOf } from "../ui.js";
import { onQuestions, questions } from "./question_count.js";

const PAGE = 40;
const REFRESH_EVERY = 10_000;

/** One list for the whole visit: going from one conversation to another must not make it anew. */
let list = null;

document.addEventListener("signed-out", () => {
  list?.close();
  list = null;
});

export function conversations() {
  list ??= new Conversations();
  return list;
}

class Conversations {
  constructor() {
    this.rows = [];
    this.next = null;
    this.here = null;
    this.wanted = "";
    this.search = h("input", { type: "search", data: { search: "" }, "aria-label": "Search conversations", placeholder: "Search", oninput: () => this.searched() });
    this.place = h("div", { class: "conversation-rows" });
    this.more = h("button", { type: "button", class: "button plain", hidden: true, onclick: () => this.load(this.next) }, "Show more");
    this.node = h("aside", { class: "conversations", id: "conversations", "aria-label": "Conversations" },
      h("div", { class: "conversations-head" }, h("a", { class: "button new-chat", href: "/", title: "New conversation (n)" }, icon(ICONS.plus), "New"), this.search),
      this.place, this.more);
    this.stopHearing = onQuestions(() => this.draw());
    this.timer = setInterval(() => this.refresh(), REFRESH_EVERY);
    this.load();
  }

  close() {
    this.stopHearing();
    clearInterval(this.timer);
  }

  items() {
    return [...this.place.querySelectorAll("a")];
  }

  /** Marks the conversation that is open. */
  show(id) {
    this.here = id;
    this.draw();
  }

  searched() {
    clearTimeout(this.typing);
    this.typing = setTimeout(() => {
      this.wanted = this.search.value.trim();
      this.load();
    }, 200);
  }

  /** Reads the first page again, where somebody looks at it. */
  refresh() {
    if (document.hidden || !this.node.isConnected || this.rows.length > PAGE) return;
    this.load();
  }

  async load(before = null) {
    const asked = this.wanted;
    try {
      const owner = isAdmin() ? me().owner : null;
      const page = await get(sessionsPath(), { limit: PAGE, before, q: asked, owner });
      if (asked !== this.wanted) return;
      const rows = page.data.filter((row) => !row.parent);
      this.rows = before ? [...this.rows, ...rows] : rows;
      this.next = page.next ?? null;
      this.draw();
    } catch (error) {
      if (!this.rows.length) fill(this.place, errorBox(error));
    }
  }

  draw() {
    this.more.hidden = !this.next;
    const waiting = new Map();
    for (const row of questions()) waiting.set(row.root, [...(waiting.get(row.root) ?? []), row]);
    if (!this.rows.length) {
      fill(this.place, h("p", { class: "soft small conversations-none" }, this.wanted ? "Nothing found." : "Your conversations will be here."));
      return;
    }
    const focused = this.place.contains(document.activeElement) ? document.activeElement.dataset.id : null;
    fill(this.place, this.rows.map((row) => conversation(row, row.session_id === this.here, waiting.get(row.session_id) ?? [])));
    if (focused) this.place.querySelector(`a[data-id="${CSS.escape(focused)}"]`)?.focus();
  }
}

function conversation(row, isHere, asked) {
  const waiting = asked.length || row.questions || 0;
  const state = stateWords(row.state, asked);
  const title = plainLine(row.title || row.task || "Untitled", 90);
  return h("a", { class: "conversation", href: `/s/${encodeURIComponent(row.session_id)}`, data: { id: row.session_id }, "aria-current": isHere ? "page" : null },
    h("span", { class: ["mark", waiting ? "wait" : toneOf(row.state)], role: "img", "aria-label": state, title: state }),
    h("span", { class: "conversation-words" }, h("span", { class: "conversation-title", dir: "auto" }, title),
      h("span", { class: "soft small conversation-line" }, h("span", {}, plainLine(row.template, 40)), h("span", {}, ago(row.updated_at)))),
    waiting ? h("span", { class: "count", title: "Waits for a person", "aria-label": `${waiting} open` }, waiting) : null);
}
