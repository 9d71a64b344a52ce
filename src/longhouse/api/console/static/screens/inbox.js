// The inbox: everything that waits for a person, over all conversations, the nearest deadline first.

import { fill, h } from "../dom.js";
import { plainLine } from "../format.js";
import { isAdmin, me, questionsPath } from "../me.js";
import { remember } from "../router.js";
import { walking } from "../shortcuts.js";
import { actButton, button, empty } from "../ui.js";
import { askToNotify, atLeast, FittingQuestions, isCut, isFollowing, isKnown, mayAsk, questions } from "../parts/question_count.js";
import { hold, KINDS, keyOf, questionCard } from "../parts/question_card.js";

/** Milliseconds in which the keyboard decides nothing after the focus has moved by itself: nobody has read that card. */
const UNREAD_FOR = 1000;

export async function inbox(parameters, query) {
  return new Inbox(query).screen();
}

class Inbox {
  constructor({ kind = "", agent = "" }) {
    this.kind = kind;
    this.agent = agent;
    this.cards = new Map();
    this.movedAt = -UNREAD_FOR;
    this.kinds = h("div", { class: "segments", role: "group", "aria-label": "Kind" });
    this.agents = h("select", { "aria-label": "Agent", onchange: () => this.filter({ agent: this.agents.value }) });
    this.line = h("span", { class: "soft small", role: "status" });
    this.list = h("div", { class: "inbox-list" });
    this.more = actButton("More", () => this.fitting.more());
    this.node = h("div", { class: "inbox" }, h("div", { class: "inbox-filters" }, this.kinds, this.agents, this.line), this.list, this.more);
    this.fitting = new FittingQuestions(() => this.draw());
    this.fitting.choose({ kind, agent });
    this.draw();
  }

  screen() {
    const press = (which) => () => {
      if (performance.now() - this.movedAt > UNREAD_FOR) this.focused()?.querySelector(`.question-card.approval ${which}`)?.click();
    };
    return {
      name: "inbox",
      title: "Inbox",
      node: this.node,
      json: questionsPath(),
      tools: mayAsk() ? this.bell() : null,
      keys: {
        ...walking(() => this.items(), (card) => card.querySelector("a.question-talk")?.click()),
        a: ["Approve the chosen call", press(".primary")],
        d: ["Deny the chosen call", press(".danger")],
        r: ["Write an answer or a comment", () => this.focused()?.querySelector("textarea, input")?.focus()],
      },
      close: () => this.fitting.close(),
    };
  }

  bell() {
    const element = button("Notify me", async () => {
      await askToNotify();
      element.remove();
    }, { shape: "bell", title: "Let the browser tell you of new questions" });
    return element;
  }

  items() {
    return [...this.list.querySelectorAll(".question-card")];
  }

  focused() {
    return this.items().find((one) => one.contains(document.activeElement));
  }

  filter(values) {
    Object.assign(this, values);
    remember({ kind: this.kind, agent: this.agent });
    this.fitting.choose({ kind: this.kind, agent: this.agent });
    this.draw();
  }

  draw() {
    const rows = questions();
    this.drawFilters(rows);
    this.line.textContent = isFollowing() ? "" : isKnown() ? "Reconnecting…" : "Loading…";
    const shown = this.fitting.rows;
    this.more.hidden = !this.fitting.hasMore;
    this.drawCards(shown ?? []);
    hold(this.list, !isFollowing());
    if (!shown) fill(this.list, empty("Loading…"));
    else if (!shown.length && isKnown()) fill(this.list, this.nothing(rows.length));
  }

  /** Cards stay while their question is open: what somebody is writing in one must not be lost. */
  drawCards(rows) {
    const wanted = new Map(rows.map((row) => [keyOf(row), row]));
    const at = this.items().indexOf(this.focused());
    const isMine = Boolean(this.focused()?.querySelector(".sent"));
    for (const [key, card] of this.cards) {
      if (wanted.has(key)) continue;
      card.remove();
      this.cards.delete(key);
    }
    this.list.querySelector(".empty")?.remove();
    let before = null;
    for (const [key, row] of wanted) {
      if (!this.cards.has(key)) this.cards.set(key, questionCard(row, { context: talkLine(row) }));
      const card = this.cards.get(key);
      const place = before ? before.nextSibling : this.list.firstChild;
      if (place !== card) this.list.insertBefore(card, place);
      before = card;
    }
    // Whoever decided on a card goes on with the one that took its place; where somebody else did, none is chosen.
    if (isMine && !this.focused()) {
      this.movedAt = performance.now();
      this.items()[Math.min(at, this.items().length - 1)]?.focus();
    }
  }

  drawFilters(rows) {
    // Of more than a page holds only the first are counted: of a kind that is not among them nothing is said.
    const number = (kind) => {
      const found = rows.filter((row) => !kind || row.kind === kind).length;
      return found || !isCut() ? atLeast(found) : "";
    };
    fill(this.kinds, [["", "All"], ...Object.entries(KINDS)].map(([kind, label]) => h("button", {
      type: "button", class: "segment", "aria-pressed": String(kind === this.kind), onclick: () => this.filter({ kind }),
    }, label, h("span", { class: "segment-number" }, number(kind)))));
    const agents = [...new Set([...rows.map((row) => row.agent), this.agent])].filter(Boolean).sort();
    const options = ["", ...agents].map((name) => h("option", { value: name }, name || "All agents"));
    if (options.map((one) => one.value).join() !== [...this.agents.options].map((one) => one.value).join()) fill(this.agents, options);
    this.agents.value = this.agent;
  }

  nothing(others) {
    if (others) return empty("Nothing of this kind waits.", button("Show all", () => this.filter({ kind: "", agent: "" })));
    return empty("Nothing waits for a person.", h("p", { class: "small" }, "Questions, approvals and calls of unknown outcome appear here the moment an agent asks."));
  }
}

function talkLine(row) {
  const root = `/s/${encodeURIComponent(row.root)}`;
  return h("p", { class: "question-talk-line" }, h("a", { class: "question-talk", href: root, dir: "auto" }, plainLine(row.title || "Open the conversation", 100)),
    isAdmin() && !me().is_open ? h("span", { class: "soft small" }, ` of ${plainLine(row.owner, 40)}`) : null,
    row.user && row.user !== row.owner ? h("span", { class: "soft small" }, ` for ${plainLine(row.user, 40)}`) : null);
}
