// The chat: conversations, one talk that follows its journal, and the composer.

import { get, post, stream } from "../api.js";
import { at } from "../base.js";
import { fill, h, icon, ICONS } from "../dom.js";
import { plainLine, straight } from "../format.js";
import { isAdmin, me, sessionPath } from "../me.js";
import { go, moveTo } from "../router.js";
import { walking } from "../shortcuts.js";
import { setTitle } from "../title.js";
import { button, empty, say } from "../ui.js";
import { composer } from "../parts/composer.js";
import { conversations } from "../parts/conversations.js";
import { examplePrompts } from "../parts/first_run.js";
import { followInPlace } from "../parts/page_lines.js";
import { hold, keyOf, questionCard } from "../parts/question_card.js";
import { isFollowing, onQuestions, questions } from "../parts/question_count.js";
import { add, addAside, isRunning, kindOfQuestion, newTalk, openQuestions, titleOf } from "../parts/talk.js";
import { TalkView } from "../parts/talk_view.js";

/** Milliseconds without an event after which what was in the journal has been read, and how long that is waited for. */
const QUIET = 40;
const READ_WITHIN = 400;
/** Milliseconds in which the keyboard does not approve what has just appeared. */
const UNREAD_FOR = 1000;

export async function chat({ id = null }, query) {
  const agents = id ? [] : (await get("/v1/models")).data;
  return new Chat(id, agents, query).screen();
}

class Chat {
  constructor(id, agents, query) {
    this.id = id;
    this.agents = agents;
    this.list = conversations();
    this.strip = h("div", { class: "line-state", role: "status", hidden: true });
    this.place = h("div", { class: "talk-place" });
    this.composer = composer({
      agents: id ? null : agents, chosen: query.agent ?? localStorage.getItem("agent"),
      onSend: (text, images, agent) => this.send(text, images, agent), onStop: () => this.stop(),
    });
    this.node = h("div", { class: "chat" }, this.list.node, h("section", { class: "chat-main", "aria-label": "Talk" }, this.strip, this.place, this.composer.node));
    this.stopHearing = onQuestions(() => this.showOthers());
    this.list.show(id);
    if (id) this.openTalk(id);
    else fill(this.place, this.welcome());
  }

  screen() {
    return {
      name: "chat",
      title: this.id ? "Conversation" : "New conversation",
      node: this.node,
      json: this.id ? sessionPath(this.id) : null,
      tools: this.tools(),
      keys: {
        ...walking(() => this.list.items(), (row) => row.click()),
        n: ["New conversation", () => go("/")],
        c: ["Write a message", () => this.composer.focus()],
        Escape: ["Stop the running turn", () => this.talk && isRunning(this.talk) && this.stop()],
        a: ["Approve the first call that waits", () => this.approveFirst()],
      },
      shown: () => this.shown(),
      close: () => this.close(),
    };
  }

  /** A card that has only just come may have taken the place of another one: nobody has read it. */
  approveFirst() {
    const card = this.node.querySelector(".question-card.approval");
    if (card && performance.now() - card.shownAt > UNREAD_FOR) card.querySelector(".primary").click();
  }

  tools() {
    const listButton = button("Conversations", () => this.toggleList(), { tone: "plain only-narrow", shape: "sessions" });
    listButton.setAttribute("aria-controls", "conversations");
    this.details = h("a", { class: "button plain", hidden: !this.id, href: `/sessions/${encodeURIComponent(this.id ?? "")}` }, icon(ICONS.operations), h("span", {}, "Timeline"));
    return [listButton, this.details];
  }

  toggleList() {
    this.node.classList.toggle("list-open");
    if (this.node.classList.contains("list-open")) this.list.search.focus();
  }

  shown() {
    this.view?.toEnd();
    this.focusComposer();
  }

  /** On a telephone a focus opens the keyboard, which takes half of the screen. */
  focusComposer() {
    if (!matchMedia("(pointer: coarse)").matches) this.composer.focus();
  }

  close() {
    this.isClosed = true;
    this.line?.stop();
    this.asking?.abort();
    this.view?.close();
    this.stopHearing();
  }

  welcome() {
    const isDemo = Boolean(me()?.is_demo);
    const examples = isDemo ? examplePrompts(this.agents, (one) => this.tryPrompt(one)) : null;
    return h("div", { class: "welcome" },
      h("h2", {}, examples ? "Welcome to Longhouse" : "What shall we work on?"),
      h("p", { class: "soft" }, examples
        ? "Agents that live long and forget nothing. Try one of these; each shows something that survives a restart of the server."
        : "Choose an agent below, or let “auto” find the one that fits."), examples);
  }

  tryPrompt(prompt) {
    this.composer.write(prompt.text, prompt.agent);
    this.composer.submit();
    this.focusComposer();
  }

  /* The talk */

  openTalk(id) {
    this.id = id;
    this.talk = newTalk(id);
    this.view = new TalkView(this.talk, { waits: (session) => questions().some((row) => row.session_id === session) });
    fill(this.place, this.view.node, this.view.toLatest);
    this.line?.stop();
    this.line = followInPlace(sessionPath(this.id, "/events"), {
      parameters: { tree: "true", until: "never" },
      onEvent: (event) => this.hear(event),
      onState: (state) => this.showLine(state),
      onError: (error) => this.refused(error),
    });
  }

  /** Adds an event at once and draws at the next frame, so that a thousand events are one drawing. */
  hear(event) {
    if (event.event === "error") {
      this.ended(event.data?.error?.message ?? "The stream ended.");
      return;
    }
    if (PENDING_ENDS.has(event.event)) this.view.endPending();
    if (DECIDES.has(event.event)) this.asking?.abort();
    add(this.talk, event);
    if (this.isDrawn) this.drawing ??= requestAnimationFrame(() => this.draw());
    else this.drawOnceRead();
  }

  /** Draws for the first time when what is in the journal already has come: of a long talk its end alone is drawn. */
  drawOnceRead() {
    this.readingSince ??= performance.now();
    clearTimeout(this.drawing);
    const isLong = performance.now() - this.readingSince > READ_WITHIN;
    this.drawing = setTimeout(() => this.draw(), isLong ? 0 : QUIET);
  }

  draw() {
    this.drawing = null;
    this.isDrawn = true;
    if (this.isClosed) return;
    const { talk } = this;
    this.showAside();
    this.view.update();
    hold(this.view.list, this.lineIs !== "open");
    this.composer.setRunning(isRunning(talk));
    if (talk.agent && talk.agent !== this.named) this.nameAgent();
    this.showPlaceholder();
    const title = plainLine(titleOf(talk), 70) || "Conversation";
    if (title !== this.title) {
      this.title = title;
      setTitle(title);
    }
    if (this.wasRunning !== isRunning(talk)) {
      this.wasRunning = isRunning(talk);
      this.list.refresh();
    }
    this.showOthers();
  }

  nameAgent() {
    const { talk } = this;
    this.named = talk.agent;
    this.composer.setAgent(talk.agent);
    if (talk.side === "external") this.composer.close("These are interactions that were added from elsewhere. Nobody answers here.");
    else if (isAdmin() && talk.owner !== me().owner) this.composer.close(`This conversation belongs to ${talk.owner}: you can answer what waits, and stop it, but not write in it.`);
    else if (talk.side === "sub") this.closeSub();
  }

  closeSub() {
    const { parent } = this.talk;
    this.composer.close("A sub-agent works here for another agent. You can answer what it asks. ",
      parent ? h("a", { href: `/s/${encodeURIComponent(parent)}` }, "To the conversation that asked it") : null);
  }

  showPlaceholder() {
    this.composer.setPlaceholder(placeholder(this.talk, this.ofOthers()));
  }

  /** What sub-agents of this conversation ask. */
  ofOthers() {
    return questions().filter((row) => row.root === this.id && row.session_id !== this.id);
  }

  /** What sub-agents ask stands below the talk: the conversation waits for it as for a question of its own. */
  showOthers() {
    if (!this.view) return;
    const rows = this.ofOthers();
    hold(this.view.others, !isFollowing());
    const key = rows.map(keyOf).join();
    if (key === this.othersKey) return;
    this.othersKey = key;
    const there = new Map([...this.view.others.children].map((node) => [node.dataset.question, node]));
    fill(this.view.others, rows.map((row) => there.get(keyOf(row)) ?? questionCard(row)));
    hold(this.view.others, !isFollowing());
    this.view.redrawAgents();
    this.showPlaceholder();
  }

  showLine(state) {
    this.lineIs = state;
    hold(this.view.list, state !== "open");
    this.strip.hidden = !(state in LINES);
    if (state in LINES) fill(this.strip, h("span", { class: "mark wait", "aria-hidden": "true" }), LINES[state]);
  }

  /** The server ended the line, as without its database; the line is tried again, so it is said once. */
  ended(message) {
    if (message !== this.trouble) say(message, "bad");
    this.trouble = message;
  }

  refused(error) {
    if (this.talk.entries.length) say(error.message, "bad");
    else {
      fill(this.place, empty(error.message, h("a", { class: "button", href: "/" }, "New conversation")));
      this.composer.close("Nothing can be written here.");
    }
  }

  /* What the person does */

  async send(text, images, agent) {
    const model = this.id ?? agent ?? "auto";
    if (this.view) this.view.showPending(text, images.map((one) => one.preview));
    else fill(this.place, h("div", { class: "talk" }, h("div", { class: "talk-inner" }, h("div", { class: "entry prompt" }, h("div", { class: "bubble" }, straight(text))))));
    try {
      const session = await this.prompt(model, contentOf(text, images));
      if (!this.id) this.begin(session);
    } catch (error) {
      if (this.view) this.view.dropPending();
      else fill(this.place, this.welcome());
      throw error;
    }
  }

  /** Sends a prompt; resolves with its session as soon as it is in the journal, which tells the rest. */
  async prompt(model, content) {
    const leave = new AbortController();
    const asked = { model, stream: true, user: me().owner, messages: [{ role: "user", content }] };
    const asides = this.asides();
    const chunks = stream("/v1/chat/completions", asked, leave.signal);
    const { value } = await chunks.next();
    if (!value) throw new Error("The server closed the line before it took the message. Please send it again.");
    const first = JSON.parse(value.data);
    if (first.error) throw new Error(first.error.message);
    // While calls wait for a decision, a message that decides none of them is answered at once, outside of the journal.
    if (this.talk && this.undecided()) this.readAside(chunks, leave, asides);
    else leave.abort();
    return first.model;
  }

  undecided() {
    const others = ["question", "clarification", "client"];  // a message answers these, or goes on without them
    return [...openQuestions(this.talk), ...this.ofOthers()].some((one) => !others.includes(one.kind) && one.callKind !== "client");
  }

  /** How many messages were written beside open calls. */
  asides() {
    return this.talk ? [...this.talk.prompts.values()].filter((one) => one.isAside).length : 0;
  }

  /** Reads what the server answers to a message that decides nothing; a decision ends that, and the journal goes on. */
  async readAside(chunks, leave, before) {
    this.asking?.abort();
    this.asking = leave;
    this.answer = null;
    let text = "";
    try {
      for await (const { data } of chunks) {
        if (data !== "[DONE]") text += JSON.parse(data).choices?.[0]?.delta?.content ?? "";
      }
    } catch (error) {
      if (!leave.signal.aborted) say(error.message, "bad");
    }
    if (leave.signal.aborted || !text.trim()) return;
    this.answer = { before, text };
    this.draw();
  }

  /** Shows that answer below its message, once the journal has told that it decided nothing. */
  showAside() {
    if (!this.answer || this.asides() <= this.answer.before) return;
    addAside(this.talk, this.answer.text);
    this.answer = null;
  }

  begin(session) {
    this.openTalk(session);
    if (this.isClosed) return;
    moveTo(`/s/${encodeURIComponent(session)}`, sessionPath(session));
    this.details.hidden = false;
    this.details.href = at(`/sessions/${encodeURIComponent(session)}`);
    this.list.show(session);
    this.list.load();
  }

  async stop() {
    try {
      await post(sessionPath(this.id, "/cancel"));
    } catch (error) {
      say(error.message, "bad");
    }
  }
}

function placeholder(talk, others) {
  const open = openQuestions(talk);
  if (open.some((one) => one.kind === "question")) return "Your message answers the question above…";
  if (open.length + others.length !== 1 || !talk.turn?.inChat) return "Write a message…";
  const kind = open.length ? kindOfQuestion(open[0]) : others[0].kind;
  return `Write a message… ${DECIDING[kind] ?? ""}`.trimEnd();
}

/** Words that decide in the chat. */
const DECIDING = {
  approval: "“yes” and “no” decide",
  unknown_outcome: "“happened” and “did not happen” decide",
  worker_lost: "“try again” and “give up” decide",
};

/** Events that come of a message: it is in the journal then. */
const PENDING_ENDS = new Set(["Prompted", "Returned", "Decided"]);
/** Events after which the turn goes on: what the line of a message would tell, the journal tells. */
const DECIDES = new Set(["Decided", "Returned", "Replied", "Finished", "Failed", "Cancelled"]);

/** What is said of a line that is not open. */
const LINES = {
  reconnecting: "The line was lost; reconnecting. Nothing is lost.",
  waiting: "The server has not answered yet. Browsers keep few lines to one server: if many pages of this console are open, close some.",
  paused: "Paused: other pages of this console took the line. Click here to go on.",
};

function contentOf(text, images) {
  if (!images.length) return text;
  const parts = images.map((one) => ({ type: "image_url", image_url: { url: one.data } }));
  return text.trim() ? [{ type: "text", text }, ...parts] : parts;
}
