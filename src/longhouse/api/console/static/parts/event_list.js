// The events of a session as they come, each as JSON, filtered by kind.

import { fill, h } from "../dom.js";
import { clock, plainLine } from "../format.js";
import { eventPanel } from "./inspector.js";
import { Windowed } from "./windowed.js";

const ROW = 36;
const TONES = {
  Failed: "bad",
  Cancelled: "quiet",
  Finished: "good",
  Resumed: "takeover",
  Decided: "wait",
  Replied: "model",
  Called: "tool",
  Returned: "tool",
  Prompted: "person",
  Spent: "retry",
};

/** `events` grows while the list is shown; `refresh` shows what came. */
export class EventList {
  constructor(events, { kind = "", onKind = () => {}, onOpen, onFork }) {
    Object.assign(this, { events, kind, onKind, onOpen, onFork });
    Object.assign(this, { shown: [], at: -1, opened: null, seen: 0, counts: new Map() });
    this.kinds = h("div", { class: "facet-line", role: "group", "aria-label": "Kinds of events" });
    this.list = new Windowed({
      height: ROW,
      keyOf: (nth) => this.shown[nth].key,
      make: () => this.make(),
      update: (element, nth) => this.update(element, nth),
      attributes: { role: "list", class: "event-rows", "aria-label": "Events" },
    });
    this.node = h("div", { class: "events" }, this.kinds, this.list.node);
    this.refresh();
  }

  close() {
    this.list.close();
  }

  refresh() {
    const { scroller } = this.list;
    const wasAtEnd =
      this.seen > 0 &&
      scroller.scrollTop > 0 &&
      scroller.scrollHeight - scroller.scrollTop - scroller.clientHeight < 2 * ROW;
    for (; this.seen < this.events.length; this.seen += 1) {
      const event = this.events[this.seen];
      this.counts.set(event.event, (this.counts.get(event.event) ?? 0) + 1);
      if (!this.kind || event.event === this.kind) this.shown.push(event);
    }
    this.showKinds();
    this.list.show(this.shown.length);
    if (wasAtEnd)
      requestAnimationFrame(() => {
        scroller.scrollTop = scroller.scrollHeight;
      });
  }

  showKinds() {
    const key = [...this.counts, this.kind].join();
    if (key === this.kindsKey) return;
    this.kindsKey = key;
    fill(
      this.kinds,
      [...this.counts]
        .sort()
        .map(([kind, number]) =>
          h(
            "button",
            {
              type: "button",
              class: "facet",
              "aria-pressed": String(kind === this.kind),
              onclick: () => this.choose(kind === this.kind ? "" : kind),
            },
            nameOf(kind),
            h("span", { class: "facet-count" }, String(number)),
          ),
        ),
    );
  }

  choose(kind) {
    this.kind = kind;
    this.onKind(kind);
    this.shown = kind ? this.events.filter((event) => event.event === kind) : [...this.events];
    this.at = -1;
    this.showKinds();
    this.list.show(this.shown.length);
  }

  make() {
    const parts = ["event-seq number", "event-time", "event-kind", "event-text", "event-worker soft mono"].map((name) =>
      h("span", { class: name }),
    );
    parts[3].dir = "auto";
    const element = h(
      "div",
      { class: "event-item", role: "listitem" },
      h("button", { type: "button", onclick: () => this.open(this.shown.indexOf(element.event)) }, parts),
    );
    element.parts = parts;
    return element;
  }

  update(element, nth) {
    const event = this.shown[nth];
    element.firstChild.setAttribute("aria-pressed", String(event === this.opened));
    element.setAttribute("aria-posinset", nth + 1);
    element.setAttribute("aria-setsize", this.shown.length);
    if (element.event === event) return;
    element.event = event;
    element.firstChild.className = `event-row tone-${toneOf(event)}`;
    const texts = [
      event.data.seq ?? "↳",
      clock(momentOf(event)),
      nameOf(event.event),
      summaryOf(event),
      plainLine(event.data.worker ?? event.data.agent ?? "", 24),
    ];
    texts.forEach((text, at) => {
      element.parts[at].textContent = text;
    });
  }

  open(nth) {
    const event = this.shown[nth] ?? null;
    this.at = nth;
    this.opened = event === this.opened ? null : event;
    this.list.schedule();
    // Events of sub-agents have no number here: their own session tells it.
    const seq = this.opened?.data.seq;
    const onFork = seq ? () => this.onFork(seq) : null;
    this.onOpen(this.opened ? eventPanel(this.opened, { onClose: () => this.open(-1), onFork }) : null);
  }

  move(by) {
    if (!this.shown.length) return;
    this.at = Math.max(0, Math.min(this.shown.length - 1, this.at < 0 ? 0 : this.at + by));
    this.list.reveal(this.at, 60)?.firstChild.focus({ preventScroll: true });
  }

  get keys() {
    return {
      j: ["Next event", () => this.move(1)],
      k: ["Previous event", () => this.move(-1)],
      o: ["Open the event", () => this.open(this.at)],
    };
  }
}

/** An outcome that is an error looks like one; the tokens of a title are no retry. */
function toneOf({ event: kind, data }) {
  const event = data.event && typeof data.event === "object" ? data.event : data;
  if (event.outcome?.type === "Fault" || event.problem) return "bad";
  if (kind === "subagent_tool_result" && String(event.content ?? "").startsWith("Error: ")) return "bad";
  if (kind === "subagent_completion" && event.status === "failed") return "bad";
  if (kind === "Spent" && typeof event.title === "string") return "quiet";
  return TONES[kind] ?? "quiet";
}

/** Events of sub-agents have names of their own. */
const nameOf = (kind) =>
  plainLine(
    kind.replace("subagent_assistant_with_tools", "subagent_reply").replace("subagent_", "↳ ").replaceAll("_", " "),
    40,
  );

export const momentOf = ({ data }) => data.at ?? (data.timestamp ? data.timestamp * 1000 : null);

/** The most telling words of an event. */
function summaryOf({ data }) {
  const event = data.event && typeof data.event === "object" ? data.event : data;
  const outcome = event.outcome?.content ?? event.outcome?.message;
  const content = Array.isArray(event.content)
    ? event.content.map((part) => (typeof part === "string" ? part : (part.kind ?? ""))).join(" ")
    : event.content;
  const words = [
    event.tool,
    event.title,
    event.decision,
    event.answer,
    event.reason,
    outcome,
    event.text,
    content,
    event.task,
    event.response,
    event.path,
    event.agent,
    event.worker,
    event.arguments,
  ];
  const calls = (event.calls && Array.isArray(event.calls) ? event.calls : []).map((call) => call.name);
  return plainLine(
    [...words, ...calls]
      .filter((one) => typeof one === "string" && one)
      .slice(0, 3)
      .map((one) => one.slice(0, 300))
      .join(" · "),
    200,
  );
}
