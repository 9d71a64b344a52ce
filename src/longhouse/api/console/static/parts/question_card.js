// What waits for a person: a question to answer, a call to approve, a call of which nobody knows whether it happened, or
// a step that lost its workers; and what waits for the client, which a person can only give up.

import { get, post } from "../api.js";
import { fill, h, icon, ICONS } from "../dom.js";
import { hasNames, jsonOf, plainLine, visible } from "../format.js";
import { markdown } from "../markdown.js";
import { sessionPath } from "../me.js";
import { actButton, countdown, say, since, valueTable } from "../ui.js";

const SHAPES = { clarification: "question", approval: "shield", unknown_outcome: "warning", worker_lost: "warning", client: "link" };
/** Characters that are shown of arguments that the list has only a part of. */
const CUT_AT = 500;
export const KINDS = { clarification: "Question", approval: "Approval", unknown_outcome: "Unknown outcome", worker_lost: "Worker lost", client: "Client" };

/**
 * A card for `{kind, root, name, agent, tool, arguments, text, deadline, opened_at}`, a row of `/v1/questions`.
 * `onDone` is called once the server has taken the answer.
 */
export function questionCard(row, { onDone = () => {}, context = null } = {}) {
  const actions = ACTIONS[row.kind](row, onDone);
  const card = h("article", { class: ["question-card", row.kind], tabindex: "-1", data: { question: keyOf(row), kind: row.kind }, "aria-label": headline(row) },
    h("header", {}, h("span", { class: "question-mark" }, icon(ICONS[SHAPES[row.kind]])),
      h("div", { class: "question-head" }, h("strong", { dir: "auto" }, headline(row)), h("div", { class: "soft small question-line" },
        `${plainLine(row.agent, 60)} ${row.kind === "client" ? "waits" : "asks"}`, row.opened_at ? [" · ", since(row.opened_at)] : null,
        row.deadline ? [" · ", countdown(row.deadline)] : null))),
    context, BODIES[row.kind](row, actions), actions);
  card.shownAt = performance.now();
  return card;
}

/** A call that was approved can be asked about again, when its worker is lost: that is another question. */
export const keyOf = (row) => `${row.session_id} ${row.call_id} ${row.kind}`;

/** While the line is lost, what a card asks may be over: its buttons wait for news. */
export function hold(place, isHeld) {
  for (const one of place.querySelectorAll(".question-actions fieldset")) one.disabled = isHeld;
}

function headline(row) {
  if (row.kind === "approval") return `May ${plainLine(row.tool, 60)} run?`;
  if (row.kind === "unknown_outcome") return `Did ${plainLine(row.tool, 60)} happen?`;
  if (row.kind === "worker_lost") return row.tool ? `Try ${plainLine(row.tool, 60)} again?` : "Try this step again?";
  if (row.kind === "client") return `${plainLine(row.tool, 60)} runs at the client`;
  return "A question for you";
}

const BODIES = {
  clarification: (row) => h("div", { class: "question-text" }, markdown(row.text)),
  approval: (row, actions) => argumentTable(row, actions),
  unknown_outcome: (row, actions) => [
    h("p", {}, "The worker was lost after this call had begun, and it must not happen twice. Please look, and say what you found."),
    row.text ? h("p", { class: "soft", dir: "auto" }, visible(row.text)) : null, argumentTable(row, actions),
  ],
  worker_lost: (row, actions) => row.tool
    ? [h("p", {}, "This call took three workers down, one after another, so it is not tried again by itself."), argumentTable(row, actions)]
    : h("p", {}, "The worker was lost three times in this step, so it is not tried again by itself. If you give up, the turn ends."),
  client: (row, actions) => [
    h("p", {}, "The program that talks to this session runs the call, and has not sent the result yet. A message to the session goes on without it."),
    argumentTable(row, actions),
  ],
};

/** The arguments, of long ones the beginning. Where the list has only a part of them, nobody can agree before all is shown. */
function argumentTable(row, actions) {
  const place = h("div", { class: "question-arguments", role: "group", "aria-label": "Arguments" });
  if (!row.is_cut) return fill(place, argumentValues(row.arguments ?? "", true));
  place.append(h("div", { class: "plain-text mono" }, `${visible(row.arguments.slice(0, CUT_AT))}…`));
  const agreeing = [...actions.querySelectorAll(".agrees")];
  for (const one of agreeing) one.disabled = true;
  place.append(h("p", { class: "row" }, h("span", { class: "grow" }, "This is only the beginning. Please read all of it before you agree."),
    actButton("Show all", async () => {
      fill(place, argumentValues(await wholeArguments(row), false));
      for (const one of agreeing) one.disabled = false;
      place.parentElement.focus({ preventScroll: true });
    })));
  return place;
}

function argumentValues(text, brief) {
  const given = jsonOf(text);
  const isEmpty = given === "" || (hasNames(given) && !Object.keys(given).length);
  return isEmpty ? h("p", { class: "soft" }, "It has no arguments.") : valueTable(given, { brief });
}

async function wholeArguments(row) {
  const { questions } = await get(sessionPath(row.session_id));
  const asked = questions.find((one) => one.session_id === row.session_id && one.call_id === row.call_id);
  if (!asked) throw new Error("This was answered or decided already.");
  return asked.arguments;
}

const ACTIONS = {
  clarification(row, onDone) {
    const answer = h("textarea", { rows: "2", "aria-label": "Your answer", placeholder: "Your answer…", dir: "auto", required: true });
    const form = deciding(row, onDone, [answer, buttons(["Answer", "primary", () => answer.value.trim() && clarify(row, answer.value)])]);
    answer.addEventListener("keydown", (event) => {
      if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
      event.preventDefault();
      form.querySelector(".primary").click();
    });
    return form;
  },
  approval(row, onDone) {
    const comment = h("input", { type: "text", "aria-label": "Comment", placeholder: "Comment for the agent (optional)", dir: "auto" });
    return deciding(row, onDone, [comment, buttons(
      ["Approve", "primary agrees", () => decide(row, "approve", { comment: comment.value })],
      ["Deny", "danger", () => decide(row, "deny", { comment: comment.value })])]);
  },
  unknown_outcome(row, onDone) {
    const result = h("input", { type: "text", "aria-label": "Result", placeholder: "Result, if it happened", dir: "auto" });
    return deciding(row, onDone, [result, buttons(
      ["Happened", "primary agrees", () => decide(row, "happened", { result: result.value })],
      ["Did not happen", "agrees", () => decide(row, "did_not_happen")],
      ["Give up", "danger", () => decide(row, "give_up")])]);
  },
  worker_lost(row, onDone) {
    return deciding(row, onDone, [buttons(
      ["Try again", "primary agrees", () => decide(row, "did_not_happen")],
      ["Give up", "danger", () => decide(row, "give_up")])]);
  },
  client(row, onDone) {
    return deciding(row, onDone, [buttons(["Give up", "danger", () => decide(row, "give_up")])]);
  },
};

/** A form whose buttons can be pressed once; a refusal is said, and they can be pressed again. */
function deciding(row, onDone, children) {
  const form = h("form", { class: "question-actions", onsubmit: (event) => event.preventDefault() }, children);
  form.act = async (work) => {
    const fields = [...form.querySelectorAll("button, input, textarea")].filter((one) => !one.disabled);
    for (const one of fields) one.disabled = true;
    form.classList.add("sent");
    try {
      const isSent = await work();
      if (isSent !== false && isSent !== "") {
        onDone(row);
        return;
      }
    } catch (error) {
      say(error.message, "bad");
    }
    form.classList.remove("sent");
    for (const one of fields) one.disabled = false;
  };
  return form;
}

function buttons(...choices) {
  return h("fieldset", { class: "row" }, choices.map(([label, tone, work]) =>
    h("button", { type: "button", class: ["button", tone], onclick: (event) => event.target.closest("form").act(work) }, label)));
}

// To the session that asks, and not by a name in the conversation: another call may have got that name meanwhile.
async function clarify(row, answer) {
  await post(sessionPath(row.session_id, "/clarification"), { answer, call_id: row.call_id });
  return true;
}

async function decide(row, decision, more = {}) {
  await post(sessionPath(row.session_id, "/approval"), { call_id: row.call_id, decision, ...more });
  return true;
}
