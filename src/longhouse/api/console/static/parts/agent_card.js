// A sub-agent at work: its task, what it does, and its answer, within the call that asked it. It opens as its own session.

import { h, icon, ICONS } from "../dom.js";
import { jsonOf, plainLine, straight, visible } from "../format.js";
import { markdown } from "../markdown.js";
import { lasting, mark, toolCard } from "./tool_card.js";

const SHOWN = 40;

/** The card of a call to another agent; `waits(session)` is true while that agent waits for a person. */
export function agentCard(call, session, waits) {
  const run = call.child;
  const agent = run?.agent ?? call.tool.replace(/^agent[._]/, "");
  const task = run?.task || jsonOf(call.arguments)?.task || "";
  const status = run?.status ?? call.status;
  const isWaiting = Boolean(run && status === "open" && waits(run.session));
  const body = h("div", { class: "agent-body" });
  const build = () => { if (!body.hasChildNodes()) body.append(...inside(call, session, waits)); };
  const element = h("details", { class: "tool agent", data: { fold: call.key }, ontoggle: () => element.open && build() },
    h("summary", {}, isWaiting ? waitingMark() : mark(status), icon(ICONS.agent), h("span", { class: "tool-name" }, visible(agent)),
      h("span", { class: "tool-short", dir: "auto" }, plainLine(task, 110)),
      isWaiting ? h("span", { class: "chip wait" }, "waits for a person") : null,
      lasting(run?.at ?? call.at, run?.endedAt ?? call.endedAt, status === "open"), icon(ICONS.down)),
    body);
  if (status === "open") {
    element.open = true;
    build();
  }
  return h("div", { class: "tool-card" }, element);
}

const waitingMark = () => h("span", { class: "mark wait", role: "img", "aria-label": "waiting", title: "waiting" });

function inside(call, session, waits) {
  const run = call.child;
  if (!run) return [h("p", { class: "soft" }, call.status === "open" ? "It has not begun yet." : visible(call.result ?? "It did not begin."))];
  const entries = run.entries.slice(-SHOWN);
  const left = run.entries.length - entries.length;
  return [
    run.task ? h("div", { class: "agent-task", dir: "auto" }, h("span", { class: "label" }, "Task"), longText(run.task)) : null,
    left ? h("p", { class: "soft small" }, `${left} earlier steps are in its own session.`) : null,
    ...entries.map((one) => entryNode(one, run, waits)),
    run.response === null ? null : h("div", { class: "agent-answer" }, h("span", { class: "label" }, run.status === "error" ? "Error" : "Answer"), markdown(run.response)),
    h("a", { class: "open-session", href: `/s/${encodeURIComponent(run.session)}` }, "Open as its own session"),
  ].filter(Boolean);
}

function entryNode(entry, run, waits) {
  if (entry.kind === "reply") return h("div", { class: "agent-says" }, markdown(entry.text));
  return entry.isAgent ? agentCard(entry, run.session, waits) : toolCard(entry, run.session);
}

/** A text whose lines are kept, the beginning of a long one. */
export function longText(text, length = 2000) {
  if (text.length <= length) return h("div", { class: "plain-text", dir: "auto" }, straight(text));
  const place = h("div", { class: "plain-text", dir: "auto" }, `${straight(text.slice(0, length))}…`);
  const more = h("button", { type: "button", class: "button small", onclick: () => {
    place.textContent = straight(text);
    more.remove();
  } }, `Show all ${text.length.toLocaleString("en")} characters`);
  return h("div", {}, place, more);
}
