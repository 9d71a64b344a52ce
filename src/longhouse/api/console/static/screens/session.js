// One session: what happened in it, when, and why; what the model saw; everything that is kept of it.

import { creating, get, post, remove, withQuery } from "../api.js";
import { at } from "../base.js";
import { fill, h, icon, ICONS } from "../dom.js";
import { count, dateAndTime, plainLine, span, visible } from "../format.js";
import { me, sessionPath } from "../me.js";
import { go, remember } from "../router.js";
import * as shortcuts from "../shortcuts.js";
import { setTitle } from "../title.js";
import { actButton, button, confirmed, copy, say, since, stateBadge, tabs } from "../ui.js";
import { EventList, momentOf } from "../parts/event_list.js";
import { rowPanel } from "../parts/inspector.js";
import { followInPlace } from "../parts/page_lines.js";
import { hold, keyOf, questionCard } from "../parts/question_card.js";
import { RequestView } from "../parts/request_view.js";
import { filesTab, logTab, memoryTab, messagesTab } from "../parts/session_tabs.js";
import { lossesOf, secondsOf, takeoverWords } from "../parts/timeline_rows.js";
import { Waterfall } from "../parts/waterfall.js";

/** Milliseconds between two readings while events come. */
const CALM = 700;
const ENDED = new Set(["COMPLETED", "FAILED", "CANCELLED"]);
const TURNS = 50;
const MOST_TURNS = 200;
/** Each tab and the route that tells the same. */
const ROUTES = {
  timeline: "/timeline",
  model: "/steps",
  messages: "/messages",
  events: "/events",
  files: "/artifacts",
  memory: "/memory",
  log: "/log",
};

export async function oneSession({ id }, query) {
  const [detail, timeline] = await Promise.all([
    get(sessionPath(id)),
    get(sessionPath(id, "/timeline"), { turns: TURNS }),
  ]);
  const screen = new OneSession(id, query, detail, timeline);
  return {
    name: "session",
    title: screen.title,
    node: screen.node,
    tools: screen.tools,
    json: screen.address(),
    keys: screen.keys,
    close: () => screen.close(),
  };
}

class OneSession {
  constructor(id, query, detail, timeline) {
    Object.assign(this, {
      id,
      detail,
      timeline,
      query: { ...query },
      events: [],
      results: new Map(),
      tokens: 0,
      turns: TURNS,
      create: creating(),
      tab: query.tab in ROUTES ? query.tab : "timeline",
    });
    this.build();
    this.followEvents();
    this.showHead();
    this.loadQuestions();
  }

  close() {
    this.isClosed = true;
    this.line?.stop();
    this.part?.close?.();
    clearTimeout(this.reading);
  }

  get title() {
    return plainLine(this.detail.title || this.detail.task, 90) || "Session";
  }

  /** The route of what is shown. */
  address() {
    return sessionPath(this.id, ROUTES[this.tab]);
  }

  /* What is shown */

  build() {
    this.facts = h("div", { class: "session-facts" });
    this.lineState = h("span", { class: "live-state", "aria-live": "polite" });
    this.questions = h("div", { class: "session-questions" });
    this.side = h("div", { class: "session-side" });
    this.cancelButton = actButton("Cancel", () => this.cancel(), { title: "Cancel the running turn" });
    this.tools = [
      h(
        "a",
        { class: "button plain", href: `/s/${encodeURIComponent(this.id)}`, "aria-label": "Chat" },
        icon(ICONS.chat),
        h("span", { class: "wide-only" }, "Chat"),
      ),
      h(
        "button",
        {
          type: "button",
          class: "button plain",
          title: "The route of this tab as a command",
          "aria-label": "Copy as curl",
          onclick: () => copy(this.curl()),
        },
        icon(ICONS.copy),
        h("span", { class: "wide-only" }, "Copy as curl"),
      ),
      this.cancelButton,
      h(
        "details",
        { class: "menu", onfocusout: closeMenu },
        h(
          "summary",
          { class: "button plain", "aria-label": "More" },
          h("span", { class: "wide-only" }, "More"),
          icon(ICONS.down),
        ),
        h(
          "div",
          { class: "menu-panel" },
          h(
            "a",
            { class: "button plain", href: sessionPath(this.id, "/export"), download: true },
            icon(ICONS.down),
            "Export as JSON Lines",
          ),
          button("Copy the id", () => copy(this.id), { shape: "copy", tone: "plain" }),
          actButton("Erase…", () => this.erase(), { tone: "danger" }),
        ),
      ),
    ];
    this.tabs = tabs(
      [
        ["timeline", "Timeline", () => this.timelineTab()],
        ["model", "What the model saw", () => this.modelTab()],
        ["messages", "Messages", () => this.plainTab(messagesTab)],
        ["events", "Events", () => this.eventsTab()],
        ["files", "Files and sources", () => this.plainTab(filesTab)],
        ["memory", "Memory", () => this.plainTab(memoryTab)],
        ["log", "Log", () => this.plainTab(logTab)],
      ],
      this.tab,
      (tab) => this.choseTab(tab),
    );
    this.node = h(
      "div",
      { class: "session" },
      h("div", { class: "session-main" }, this.facts, this.questions, this.tabs.element),
      this.side,
    );
  }

  showHead() {
    const { detail, timeline } = this;
    const { work, waiting } = secondsOf(timeline, Date.now());
    const turns = timeline.earlier_turns + timeline.turns.length;
    const steps = timeline.turns.flatMap((turn) => turn.steps).at(-1)?.n ?? 0;
    this.cancelButton.hidden = ENDED.has(detail.state) && !detail.queued;
    const numbers = [
      [turns === 1 ? "turn" : "turns", count(turns)],
      [steps === 1 ? "step" : "steps", count(steps)],
      ["tokens", this.tokens ? count(this.tokens) : "–"],
      ["of work", span(work)],
      ["of waiting for people", waiting ? span(waiting) : "–"],
    ];
    fill(
      this.facts,
      h(
        "div",
        { class: "fact-line" },
        stateBadge(detail.state, detail.questions),
        h("span", { class: "mono" }, `${plainLine(detail.template, 60)}${detail.version ? `@${detail.version}` : ""}`),
        this.owner ? h("span", { class: "soft" }, this.owner) : null,
        detail.forked_from ? branchOf(detail.forked_from) : null,
        h("span", { class: "soft" }, "begun ", since(detail.created_at)),
        h("span", { class: "soft", title: dateAndTime(detail.updated_at) }, "last event ", since(detail.updated_at)),
        this.lineState,
      ),
      h(
        "ul",
        { class: "fact-numbers" },
        numbers.map(([label, value]) => h("li", {}, h("b", {}, value), ` ${label}`)),
      ),
      detail.error
        ? h(
            "div",
            { class: "session-error", role: "note", dir: "auto" },
            icon(ICONS.warning),
            visible(plainLine(detail.error, 600)),
          )
        : null,
    );
  }

  async loadQuestions() {
    const { data } = await get(sessionPath(this.id, "/questions")).catch(() => ({ data: [] }));
    if (this.isClosed) return;
    const there = new Map([...this.questions.children].map((node) => [node.dataset.question, node]));
    fill(
      this.questions,
      data.map((row) => there.get(keyOf(row)) ?? questionCard(row, { onDone: () => this.reload() })),
    );
    hold(this.questions, this.lineIs !== "open");
  }

  /* Tabs */

  choseTab(tab) {
    this.part?.close?.();
    this.part = null;
    this.tab = tab;
    this.inspect(null);
    this.query = { ...this.query, tab: tab === "timeline" ? "" : tab };
    remember(this.queryOf(tab));
    requestAnimationFrame(() =>
      document.querySelector(`#tab-${tab}`)?.scrollIntoView({ block: "nearest", inline: "center" }),
    );
    // The first tab is chosen before the screen is shown.
    if (this.tabs) document.dispatchEvent(new CustomEvent("moved", { detail: { json: this.address() } }));
  }

  queryOf(tab) {
    const { step = "", kind = "", row = "" } = this.query;
    return {
      tab: tab === "timeline" ? "" : tab,
      step: tab === "model" ? step : "",
      kind: tab === "events" ? kind : "",
      row: tab === "timeline" ? row : "",
    };
  }

  note(changes) {
    Object.assign(this.query, changes);
    if (!this.isClosed) remember(this.queryOf(this.tab));
  }

  use(part) {
    this.part = part;
    this.keys = part.keys;
    shortcuts.forScreen(part.keys);
    return part.node;
  }

  plainTab(build) {
    this.use({ node: null, keys: {} });
    return build(this.id);
  }

  timelineTab() {
    const waterfall = new Waterfall({ onOpen: (row) => this.openRow(row), onEarlier: () => this.loadEarlier() });
    this.losses = h("div", { class: "losses" });
    const node = h("div", { class: "timeline" }, this.losses, this.use(waterfall));
    this.showTimeline();
    if (this.query.row) requestAnimationFrame(() => waterfall.openKey(this.query.row));
    return node;
  }

  showTimeline() {
    if (!(this.part instanceof Waterfall)) return;
    this.part.show(this.timeline);
    const losses = lossesOf(this.timeline);
    fill(this.losses, losses.length ? this.lossNote(losses) : null);
  }

  /** What nobody else shows: that a worker died in the middle of this, and how little it mattered. */
  lossNote(losses) {
    const workers = new Set(losses.map((one) => one.from)).size;
    const many =
      workers > 1
        ? `${workers} workers were lost while this ran. It went on each time.`
        : "A worker was lost while this ran. It went on.";
    return h(
      "div",
      { class: "loss-note" },
      h("span", { class: "loss-shield" }, icon(ICONS.shield)),
      h(
        "div",
        {},
        h("strong", {}, many),
        h(
          "ul",
          {},
          losses
            .slice(0, 5)
            .map((one) =>
              h(
                "li",
                {},
                h(
                  "button",
                  { type: "button", class: "loss-link", onclick: () => this.part.openKey(one.key) },
                  takeoverWords(one),
                ),
                h("span", { class: "soft" }, ` ${plainLine(one.agent, 40)}, by ${plainLine(one.to, 40)}`),
              ),
            ),
        ),
      ),
    );
  }

  modelTab() {
    return this.use(
      new RequestView(this.id, { step: Number(this.query.step) || null, onChoose: (step) => this.note({ step }) }),
    );
  }

  eventsTab() {
    return this.use(
      new EventList(this.events, {
        kind: this.query.kind,
        onKind: (kind) => this.note({ kind }),
        onOpen: (panel) => this.inspect(panel),
        onFork: (after) => this.fork(after),
      }),
    );
  }

  openRow(row) {
    this.note({ row: row?.key ?? "" });
    this.inspect(
      row &&
        rowPanel(row, {
          onClose: () => this.part.open(-1),
          returned: (session, call) => this.results.get(`${session} ${call}`) ?? null,
          showStep:
            row.session.session_id === this.id
              ? (step) => {
                  this.note({ step });
                  this.tabs.choose("model");
                }
              : null,
        }),
    );
  }

  inspect(panel) {
    fill(this.side, panel);
    this.node?.classList.toggle("side-open", Boolean(panel));
  }

  /* What happens while one looks */

  followEvents() {
    this.line = followInPlace(sessionPath(this.id, "/events"), {
      parameters: { tree: "true", until: "never", deltas: "false" },
      onEvent: (event) => this.hear(event),
      onState: (state) => this.showLine(state),
      onError: (error) => this.refused(error),
    });
  }

  hear({ id, event, data }) {
    if (event === "error") return;
    this.events.push({ key: id ?? String(this.events.length), event, data });
    const fact = data.event;
    if (event === "Opened")
      this.owner = [fact.owner, fact.user]
        .filter(Boolean)
        .map((one) => plainLine(one, 60))
        .join(" / ");
    if (event === "Returned") this.results.set(`${this.id} ${fact.call}`, fact.outcome.content ?? fact.outcome.message);
    if (event === "subagent_tool_result") this.results.set(`${data.session_id} ${data.tool_call_id}`, data.content);
    // What a sub-agent spent is told with its result.
    this.tokens += tokensOf(fact?.usage) + tokensOf(fact?.spent);
    if (this.isNews(event, data)) this.readSoon();
    this.drawing ??= requestAnimationFrame(() => this.drawEvents());
  }

  /** Whether an event came after what the page has read: at first the stream tells all from the beginning. */
  isNews(event, data) {
    if (data.seq) return data.seq > this.detail.head;
    return Number(new Date(momentOf({ event, data }))) > Date.parse(this.detail.updated_at);
  }

  drawEvents() {
    this.drawing = null;
    if (this.isClosed) return;
    this.showHead();
    if (this.part instanceof EventList) this.part.refresh();
  }

  readSoon() {
    this.reading ??= setTimeout(() => this.reload(), CALM);
  }

  async reload() {
    clearTimeout(this.reading);
    this.reading = null;
    try {
      const [detail, timeline] = await Promise.all([
        get(sessionPath(this.id)),
        get(sessionPath(this.id, "/timeline"), { turns: this.turns }),
      ]);
      if (this.isClosed) return;
      Object.assign(this, { detail, timeline });
      this.showHead();
      this.showLine(this.lineIs);
      setTitle(this.title);
      this.showTimeline();
      if (this.part instanceof RequestView) this.part.refresh();
      this.loadQuestions();
    } catch {
      // The line says that it is lost, and brings the next event when it is back.
    }
  }

  async loadEarlier() {
    this.turns = MOST_TURNS;
    await this.reload();
  }

  showLine(state) {
    this.lineIs = state;
    hold(this.questions, state !== "open");
    const isOver = ENDED.has(this.detail.state) && !this.detail.queued;
    const shown = {
      open: isOver ? ["", ""] : ["live", "live"],
      reconnecting: ["lost", "reconnecting; nothing is lost"],
      paused: ["lost", "paused: other pages took the line; click to go on"],
    }[state] ?? ["", ""];
    fill(this.lineState, shown[1] ? [h("i", { class: ["live-dot", shown[0]] }), shown[1]] : null);
  }

  refused(error) {
    if (!this.isClosed) say(error.message, "bad");
  }

  /* What somebody does */

  curl() {
    const address = new URL(
      at(this.tab === "timeline" ? withQuery(this.address(), { turns: this.turns }) : this.address()),
      location.origin,
    );
    const key = me()?.is_open ? "" : ' -H "Authorization: Bearer $LONGHOUSE_API_KEY"';
    return `curl${this.tab === "events" ? " -N" : ""}${key} '${address.href.replaceAll("'", "%27")}'`;
  }

  async cancel() {
    await post(sessionPath(this.id, "/cancel"));
    say("It is being cancelled.");
  }

  async fork(after) {
    const branch = await this.create(sessionPath(this.id, "/fork"), { after });
    say("This is the branch. It goes on from here by itself.");
    go(`/sessions/${encodeURIComponent(branch.session_id)}`);
  }

  async erase() {
    const text = "Its messages, files and memory are gone for good, with those of the sub-agents that it called.";
    if (!(await confirmed("Erase this session?", text, "Erase"))) return;
    await remove(sessionPath(this.id));
    say("Erased.");
    go("/sessions");
  }
}

/** Where a branch comes from. */
function branchOf({ session_id: id, after }) {
  const link = h("a", { href: `/sessions/${encodeURIComponent(id)}?tab=events` }, "another session");
  return h("span", { class: "soft" }, "branch of ", link, `, after event ${after}`);
}

function tokensOf(usage) {
  return usage ? usage.total_tokens || (usage.prompt_tokens ?? 0) + (usage.completion_tokens ?? 0) : 0;
}

/** A menu closes when somebody goes elsewhere. */
function closeMenu({ currentTarget, relatedTarget }) {
  if (!currentTarget.contains(relatedTarget)) currentTarget.open = false;
}
