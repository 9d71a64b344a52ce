// The details of one row of a waterfall, or of one event, beside it.

import { h, icon, ICONS } from "../dom.js";
import { clock, count, duration, hasNames, jsonOf, plainLine, pretty, span, visible, words } from "../format.js";
import { markdown } from "../markdown.js";
import { button, copy, valueTable } from "../ui.js";
import { jsonFold, longCode } from "./message_view.js";
import { takeoverWords } from "./timeline_rows.js";
import { timesOf } from "./waterfall.js";

/** Characters of a result that the timeline holds. */
const CUT_AT = 2000;
const WAITED_FOR = { person: "A person has to answer first.", client: "The client has to send it." };

/** A panel with a heading; `json` is what it shows, for those who want it as it is. */
export function panel(heading, content, { json, onClose }) {
  return h(
    "aside",
    { class: "inspector", "aria-label": "Details" },
    h(
      "header",
      {},
      h("h2", { dir: "auto" }, heading),
      h(
        "button",
        { type: "button", class: "button plain", "aria-label": "Close the details", onclick: onClose },
        icon(ICONS.close),
      ),
    ),
    h("div", { class: "inspector-body" }, content, json ? jsonFold(json) : null),
  );
}

/** The panel of a row; `returned(call)` finds the whole result where the page has it. */
export function rowPanel(row, { onClose, returned = () => null, showStep }) {
  const build = {
    turn: turnDetails,
    step: stepDetails,
    call: callDetails,
    agent: callDetails,
    takeover: takeoverDetails,
  }[row.kind];
  const json = row.takeover ?? row.call ?? row.step ?? row.turn;
  const heading = row.kind === "takeover" ? (row.isLoss ? "A worker was lost" : "Handed over") : row.label;
  return panel(heading, [times(row), build(row, { returned, showStep })], { json, onClose });
}

const pairs = (entries) =>
  h(
    "dl",
    { class: "pairs" },
    entries
      .filter(([, value]) => value !== null && value !== "")
      .map(([name, value]) => [h("dt", {}, name), h("dd", {}, value)]),
  );

function times(row) {
  return h("p", { class: "soft" }, timesOf(row));
}

const section = (label, ...content) => [h("h3", {}, label), ...content];

function turnDetails({ turn }) {
  const waits = turn.waits.map((wait) => [
    `Waited ${wait.for === "retry" ? "to try again" : `for ${words(wait.for)}`}`,
    span((Date.parse(wait.to ?? new Date()) - Date.parse(wait.from)) / 1000),
  ]);
  return [
    section("Task", h("div", { class: "plain-text", dir: "auto" }, visible(turn.task))),
    waits.length ? section("Waiting", pairs(waits)) : null,
    turn.answer ? section(turn.state === "FAILED" ? "Error" : "Answer", markdown(turn.answer)) : null,
    pairs([["Trace", turn.trace_id]]),
  ];
}

function stepDetails({ step, turn }, { showStep }) {
  if (!step) return h("p", {}, "The model writes; its reply stands here once it is in the journal.");
  return [
    step.text ? section("The model wrote", markdown(step.text)) : null,
    step.calls.length
      ? section("It called", h("p", { class: "mono" }, step.calls.map((call) => plainLine(call.tool, 60)).join(", ")))
      : null,
    step.retries.length
      ? section(
          "Tried again",
          h(
            "ul",
            {},
            step.retries.map((retry) => h("li", {}, `${clock(retry.at)}: ${visible(retry.reason)}`)),
          ),
        )
      : null,
    pairs([
      ["Model", duration(step.model_seconds)],
      ["Turn", count(turn.n)],
    ]),
    showStep
      ? h(
          "p",
          {},
          button("What the model saw", () => showStep(step.n)),
        )
      : null,
  ];
}

function callDetails({ call, session, kind }, { returned }) {
  const given = jsonOf(call.arguments);
  const whole = returned(session.session_id, call.call_id);
  const result = whole ?? call.result;
  return [
    section(
      "Arguments",
      hasNames(given) && !Object.keys(given).length
        ? h("p", { class: "soft" }, "None.")
        : valueTable(given),
      call.arguments.length >= CUT_AT
        ? h("p", { class: "soft small" }, "The beginning; all of it is in the events.")
        : null,
    ),
    section(
      call.status === "error" ? "Error" : "Result",
      resultOf(call, result),
      !whole && result?.length >= CUT_AT ? h("p", { class: "soft small" }, "The first 2,000 characters.") : null,
    ),
    kind === "agent"
      ? h("p", {}, h("a", { class: "button", href: `/sessions/${encodeURIComponent(call.child)}` }, "Open its session"))
      : null,
    pairs([
      ["Call", call.call_id],
      ["Outcome", words(call.status)],
      ["Waits for", call.waiting ?? ""],
    ]),
  ];
}

function resultOf(call, result) {
  if (result === null)
    return h("p", { class: "soft" }, WAITED_FOR[call.waiting] ?? "Not there yet.");
  return result ? longCode(pretty(result)) : h("p", { class: "soft" }, "Empty.");
}

function takeoverDetails({ takeover, isLoss, session }) {
  const text = isLoss
    ? `The worker of ${plainLine(session.agent, 60)} was gone. Another one read the journal and went on from there.`
    : "The worker gave the session back, and another one went on with it.";
  return [
    h("p", { class: "takeover-words" }, takeoverWords(takeover)),
    h("p", {}, text),
    pairs([
      ["Lost", isLoss && takeover.seconds !== null ? clock(Date.parse(takeover.at) - takeover.seconds * 1000) : ""],
      ["Taken over", clock(takeover.at)],
      ["Between", takeover.seconds === null ? "" : duration(takeover.seconds)],
      ["From worker", visible(takeover.from)],
      ["To worker", visible(takeover.to)],
    ]),
  ];
}

/** The panel of one event of a journal. */
export function eventPanel(event, { onClose }) {
  const text = JSON.stringify(event.data, null, 2);
  return panel(
    words(event.event).replace(/^./, (char) => char.toUpperCase()),
    [
      h(
        "p",
        { class: "row" },
        button("Copy JSON", () => copy(text), { shape: "copy" }),
      ),
      longCode(text),
    ],
    { onClose },
  );
}
