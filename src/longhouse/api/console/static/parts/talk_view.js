// Draws a talk. Only entries that changed are made anew, and of a long talk only the end is in the page at first.

import { fill, h, icon, ICONS } from "../dom.js";
import { count, dateAndTime, duration, hasNames, jsonOf, plainLine, pretty, secondsBetween, visible } from "../format.js";
import { markdown } from "../markdown.js";
import { sessionPath } from "../me.js";
import { copy, fold, runningClock, valueTable } from "../ui.js";
import { agentCard, longText } from "./agent_card.js";
import { questionCard } from "./question_card.js";
import { isThinking, kindOfQuestion, worksSince } from "./talk.js";
import { fileLink, toolCard } from "./tool_card.js";
import { WritingText } from "./writing.js";

const AT_FIRST = 40;
/** Few at a time, so that scrolling up never halts. */
const MORE = 10;
const MOST = 120;
const NEAR_THE_END = 120;
const NEAR_AN_EDGE = 1500;

/**
 * The view of one talk: `node`, and `toLatest`, a button for beside it. `waits(session)`: does this sub-agent wait for a
 * person? The entries from `first` up to `last` are in the page, and never more than `MOST`.
 */
export class TalkView {
  constructor(talk, { waits }) {
    this.talk = talk;
    this.waits = waits;
    this.drawn = new Map();
    this.first = 0;
    this.last = 0;
    this.drawnUpto = 0;
    this.list = h("div", { class: "entries" });
    this.earlier = h("button", { type: "button", class: "button earlier", hidden: true, onclick: () => this.showEarlier() }, "Earlier");
    this.writing = new WritingText();
    this.thinking = h("div", { class: "thinking", hidden: true }, h("span", { class: "dots", "aria-hidden": "true" }, h("i"), h("i"), h("i")));
    this.pending = h("div", { class: "pending" });
    this.others = h("div", { class: "others" });
    this.below = h("div", { class: "below" }, this.writing.node, this.thinking, this.pending, this.others);
    this.toLatest = h("button", { type: "button", class: "button round to-latest", hidden: true, "aria-label": "To the latest", title: "To the latest", onclick: () => this.toEnd() },
      icon(ICONS.down));
    this.node = h("div", { class: "talk", tabindex: "0", role: "log", "aria-label": "Conversation", "aria-live": "off" },
      h("div", { class: "talk-inner" }, this.earlier, this.list, this.below));
    this.node.addEventListener("scroll", () => this.scrolled(), { passive: true });
    this.isAtEnd = true;
    this.top = 0;
    this.growth = new ResizeObserver(() => { if (this.isAtEnd) this.node.scrollTop = this.node.scrollHeight; });
    this.growth.observe(this.node.firstChild);
  }

  close() {
    this.growth.disconnect();
  }

  /** Draws what has changed since the last time. */
  update() {
    const { talk } = this;
    const wasWhole = this.isWhole;
    if (this.isPendingOver) this.dropPending();
    for (const key of talk.changed) this.redraw(key);
    talk.changed.clear();
    if (wasWhole) this.drawEnd();
    this.drawnUpto = talk.entries.length;
    this.showEdges();
  }

  /** Is the end of what was drawn in the page? What came since is drawn with the next frame. */
  get isWhole() {
    return this.last === this.drawnUpto;
  }

  /** Draws an entry anew, if it is in the page. */
  redraw(key) {
    const old = this.drawn.get(key);
    if (!old) return;
    const node = this.made(this.talk.byKey.get(key));
    for (const was of old.querySelectorAll("details[data-fold]")) keepFold(was, node);
    old.replaceWith(node);
  }

  /** Draws the end of the talk: what is new, or all of it where much is new. Who reads further up keeps what is there. */
  drawEnd() {
    const { entries } = this.talk;
    if (this.isAtEnd && entries.length - this.last > AT_FIRST) {
      this.drawn.clear();
      fill(this.list);
      this.first = this.last = entries.length - AT_FIRST;
    }
    this.list.append(...entries.slice(this.last).map((entry) => this.made(entry)));
    this.last = this.drawnUpto = entries.length;
    while (this.isAtEnd && this.last - this.first > MOST) this.drop(this.first++);
  }

  /** What stands below the entries belongs to the end of the talk. */
  showEdges() {
    const { talk } = this;
    const isEnd = this.isWhole;
    this.earlier.hidden = this.first === 0;
    this.below.hidden = !isEnd;
    this.toLatest.hidden = isEnd && this.isAtEnd;
    this.writing.show(talk.draft);
    this.showThinking();
  }

  drop(nth) {
    const { key } = this.talk.entries[nth];
    this.drawn.get(key)?.remove();
    this.drawn.delete(key);
  }

  made(entry) {
    const node = h("div", { class: ["entry", entry.kind], data: { key: entry.key } }, NODES[entry.kind](entry, this.talk, this.waits));
    this.drawn.set(entry.key, node);
    return node;
  }

  /** Draws every card of a sub-agent anew, as when one begins to wait for a person. */
  redrawAgents() {
    for (const entry of this.talk.entries) if (entry.child?.status === "open") this.redraw(entry.key);
  }

  /** Draws some entries before the first one, and takes the last ones out of the page if there are too many. */
  showEarlier() {
    const from = Math.max(0, this.first - MORE);
    const height = this.node.scrollHeight;
    this.list.prepend(...this.talk.entries.slice(from, this.first).map((entry) => this.made(entry)));
    this.first = from;
    this.node.scrollTop += this.node.scrollHeight - height;
    while (this.last - this.first > MOST) this.drop(--this.last);
    this.showEdges();
  }

  showLater() {
    const upto = Math.min(this.drawnUpto, this.last + MORE);
    this.list.append(...this.talk.entries.slice(this.last, upto).map((entry) => this.made(entry)));
    this.last = upto;
    const height = this.node.scrollHeight;
    while (this.last - this.first > MOST) this.drop(this.first++);
    this.node.scrollTop -= height - this.node.scrollHeight;
    this.showEdges();
  }

  showThinking() {
    const { talk } = this;
    const isShown = isThinking(talk);
    this.thinking.hidden = !isShown;
    if (!isShown) return;
    const [text, from] = [thinkingText(talk), worksSince(talk)];
    const key = [text, from, talk.retry].join();
    if (key === this.thinkingKey) return;
    this.thinkingKey = key;
    const why = talk.retry ? h("span", { class: "soft", dir: "auto" }, ` · ${plainLine(talk.retry, 200)}`) : null;
    fill(this.thinking, this.thinking.firstChild, h("span", {}, text), " ", runningClock(from), why);
  }

  /** Shows what was sent and is not in the journal yet. */
  showPending(text, images) {
    this.isPendingOver = false;
    fill(this.pending, h("div", { class: "entry prompt" }, bubble([{ text }, ...images.map((address) => ({ address }))], { note: "sending…" })));
    this.toEnd();
  }

  /** What was sent is in the journal: it leaves with the drawing that shows it there, so that the page never shrinks. */
  endPending() {
    this.isPendingOver = true;
  }

  dropPending() {
    this.isPendingOver = false;
    if (this.pending.hasChildNodes()) fill(this.pending);
  }

  scrolled() {
    const { scrollTop, scrollHeight, clientHeight } = this.node;
    const below = scrollHeight - scrollTop - clientHeight;
    const { isWhole } = this;
    // Who is at the end leaves it by going up alone: what grows below is followed.
    const wentUp = scrollTop < this.top;
    this.top = scrollTop;
    this.isAtEnd = isWhole && (below < NEAR_THE_END || (this.isAtEnd && !wentUp));
    this.toLatest.hidden = this.isAtEnd;
    if (scrollTop < NEAR_AN_EDGE && this.first > 0 && !this.isAtEnd) this.soon(() => this.showEarlier());
    else if (below < NEAR_AN_EDGE && !isWhole) this.soon(() => this.showLater());
  }

  soon(work) {
    this.coming ??= requestAnimationFrame(() => {
      this.coming = null;
      work();
    });
  }

  toEnd() {
    this.isAtEnd = true;
    this.drawEnd();
    this.showEdges();
    this.node.scrollTop = this.node.scrollHeight;
  }
}

function keepFold(was, node) {
  const now = node.querySelector(`details[data-fold="${CSS.escape(was.dataset.fold)}"]`);
  if (now && was.dataset.touched) {
    now.open = was.open;
    now.dataset.touched = "yes";
  }
}

// What somebody has opened or closed stays so when its card is drawn anew.
document.addEventListener("click", (event) => {
  const details = event.target.closest?.("summary")?.parentElement;
  if (details?.dataset.fold) details.dataset.touched = "yes";
});

function thinkingText(talk) {
  const isQueued = !talk.turn || talk.turn.endedAt;
  return isQueued ? "Waiting for a worker" : `${plainLine(talk.agent, 60)} is thinking`;
}

const NODES = {
  prior: (entry) => fold(`${entry.messages.length} messages from before this conversation`, () => entry.messages.map(priorMessage)),
  prompt: (entry, talk) => bubble(entry.parts, { note: promptNote(entry), session: talk.id, sender: entry.sender, at: entry.at }),
  reply: (entry, talk) => [markdown(entry.text), entry.isAnswer ? answerFoot(entry, talk) : null],
  unkept: (entry) => [markdown(entry.text), h("div", { class: "soft small" }, "Stopped here; this was not kept.")],
  aside: (entry) => markdown(entry.text),
  thought: (entry) => thoughtFold(entry),
  call: (entry, talk, waits) => callNode(entry, talk, waits),
  question: (entry, talk) => questionNode(entry, talk),
  note: (entry) => noteLine(entry),
  file: (entry, talk) => h("div", { class: "links" }, fileLink(entry.file, talk.id)),
  failure: (entry) => h("div", { class: "failure", role: "alert" }, icon(ICONS.warning),
    h("div", {}, h("strong", {}, "This turn failed."), h("p", { dir: "auto" }, visible(entry.text)), h("p", { class: "soft small" }, "Send a message to go on from here."))),
};

function priorMessage(message) {
  const content = typeof message.content === "string" ? message.content : pretty(message.content);
  return h("div", { class: "prior-message" }, h("span", { class: "label" }, message.role ?? message.kind ?? ""), longText(content));
}

function bubble(parts, { note = "", session = "", sender = "user", at = null }) {
  const isPerson = sender === "user";
  return [
    isPerson ? null : h("span", { class: "label" }, `${plainLine(sender, 60)} asks`),
    h("div", { class: "bubble", title: at ? dateAndTime(at) : "" }, parts.map((part) => (part.text === undefined ? image(part, session) : longText(part.text)))),
    note ? h("div", { class: "soft small bubble-note" }, note) : null,
  ];
}

function image({ image: digest, address }, session) {
  const source = address ?? sessionPath(session, `/images/${encodeURIComponent(digest)}`);
  return h("img", { class: "sent-image", src: source, alt: "Image sent with this message", loading: "lazy" });
}

function promptNote(entry) {
  if (entry.isCancelled) return "stopped before it began";
  if (entry.isAside) return entry.isRead ? "read together with the decision" : "the agent reads it once the call is decided";
  return entry.isWaiting ? "waits for its turn" : "";
}

function answerFoot({ text, facts, at }, talk) {
  const seconds = facts ? secondsBetween(facts.beganAt, facts.endedAt) - facts.waited : null;
  const words = [
    facts?.steps ? `${facts.steps} ${facts.steps === 1 ? "step" : "steps"}` : "", seconds === null ? "" : `${duration(seconds)} of work`,
    facts?.waited > 1 ? `waited ${duration(facts.waited)} for you` : "",
    facts?.tokens ? `${count(facts.tokens)} tokens` : "",
  ].filter(Boolean).join(" · ");
  return h("footer", { class: "answer-foot" },
    h("button", { type: "button", class: "button plain small", onclick: () => copy(text) }, icon(ICONS.copy), "Copy"),
    h("a", { class: "soft", href: `/sessions/${encodeURIComponent(talk.id)}`, title: `${dateAndTime(at)}: what happened, step by step` }, words || "Details"));
}

function thoughtFold(entry) {
  const thought = jsonOf(entry.text);
  const isTable = hasNames(thought);
  const short = isTable ? Object.values(thought).find((one) => typeof one === "string" && one) ?? "" : entry.text;
  const element = fold([icon(ICONS.thought), h("span", {}, "Thought"), h("span", { class: "tool-short", dir: "auto" }, plainLine(short, 110))],
    () => (isTable ? valueTable(thought) : markdown(entry.text)));
  element.dataset.fold = entry.key;
  return element;
}

function callNode(entry, talk, waits) {
  const kind = kindOfQuestion(entry);
  if (kind) return questionCard(rowOf(entry, talk, kind));
  return entry.isAgent ? agentCard(entry, talk.id, waits) : toolCard(entry, talk.id);
}

function questionNode(entry, talk) {
  if (kindOfQuestion(entry)) return questionCard(rowOf(entry, talk, "clarification"));
  return [
    markdown(entry.text || "A question."),
    entry.result === null ? h("div", { class: "soft small" }, "Not answered.") : h("div", { class: "prompt answered" }, bubble([{ text: entry.result }], { at: entry.endedAt })),
  ];
}

/** An open call of the session itself as a row of `/v1/questions`. */
function rowOf(entry, talk, kind) {
  return {
    root: talk.id, session_id: talk.id, call_id: entry.call, name: entry.call, kind, agent: talk.agent, tool: entry.tool,
    arguments: entry.arguments, text: kind === "unknown_outcome" ? entry.doubt : entry.text,
    deadline: entry.approveBy ?? entry.deadline, opened_at: entry.at,
  };
}

function noteLine(entry) {
  const text = h("span", { dir: "auto" }, visible(entry.text));
  const head = [h("span", { class: ["mark", entry.tone ?? "quiet"], "aria-hidden": "true" }), text, h("time", { class: "soft", datetime: entry.at }, new Date(entry.at).toLocaleTimeString([], { hour12: false }))];
  if (!entry.more) return h("div", { class: "note-line" }, head);
  const element = fold(head, () => longText(entry.more));
  element.classList.add("note-line");
  return element;
}
