// What waits for a person: a question to answer, a call to approve, or a call of which nobody knows whether it happened.

import { post } from "../api.js";
import { h, icon, ICONS } from "../dom.js";
import { plainLine, visible } from "../format.js";
import { markdown } from "../markdown.js";
import { sessionPath } from "../me.js";
import { countdown, say, since, valueTable } from "../ui.js";
import { argumentsOf } from "./tool_card.js";

const SHAPES = { clarification: "question", approval: "shield", unknown_outcome: "warning" };
export const KINDS = { clarification: "Question", approval: "Approval", unknown_outcome: "Unknown outcome" };

/**
 * A card for `{kind, root, name, agent, tool, arguments, text, deadline, opened_at}`, a row of `/v1/questions`.
 * `onDone` is called once the server has taken the answer.
 */
export function questionCard(row, { onDone = () => {}, context = null } = {}) {
  const actions = ACTIONS[row.kind](row, onDone);
  return h("article", { class: ["question-card", row.kind], tabindex: "-1", data: { question: keyOf(row), kind: row.kind }, "aria-label": headline(row) },
    h("header", {}, h("span", { class: "question-mark" }, icon(ICONS[SHAPES[row.kind]])),
      h("div", { class: "question-head" }, h("strong", { dir: "auto" }, headline(row)), h("div", { class: "soft small question-line" },
        `${plainLine(row.agent, 60)} asks`, row.opened_at ? [" · ", since(row.opened_at)] : null,
        row.deadline ? [" · ", countdown(row.deadline)] : null))),
    context, BODIES[row.kind](row), actions);
}

export const keyOf = (row) => `${row.session_id} ${row.call_id}`;

function headline(row) {
  if (row.kind === "approval") return `May ${plainLine(row.tool, 60)} run?`;
  if (row.kind === "unknown_outcome") return `Did ${plainLine(row.tool, 60)} happen?`;
  return "A question for you";
}

const BODIES = {
  clarification: (row) => h("div", { class: "question-text" }, markdown(row.text)),
  approval: (row) => argumentTable(row),
  unknown_outcome: (row) => [
    h("p", {}, "The worker was lost after this call had begun, and it must not happen twice. Please look, and say what you found."),
    row.text ? h("p", { class: "soft", dir: "auto" }, visible(row.text)) : null, argumentTable(row),
  ],
};

function argumentTable(row) {
  const given = argumentsOf(row.arguments ?? "");
  const isEmpty = given === "" || (given && typeof given === "object" && !Object.keys(given).length);
  return h("div", { class: "question-arguments", tabindex: "0", role: "group", "aria-label": "Arguments" }, isEmpty ? h("p", { class: "soft" }, "It has no arguments.") : valueTable(given),
    row.is_cut ? h("p", { class: "soft small" }, "This is only the beginning; the conversation has all of it.") : null);
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
      ["Approve", "primary", () => decide(row, "approve", { comment: comment.value })],
      ["Deny", "danger", () => decide(row, "deny", { comment: comment.value })])]);
  },
  unknown_outcome(row, onDone) {
    const result = h("input", { type: "text", "aria-label": "Result", placeholder: "Result, if it happened", dir: "auto" });
    return deciding(row, onDone, [result, buttons(
      ["Happened", "primary", () => decide(row, "happened", { result: result.value })],
      ["Did not happen", "", () => decide(row, "did_not_happen")],
      ["Give up", "danger", () => decide(row, "give_up")])]);
  },
};

/** A form whose buttons can be pressed once; a refusal is said, and they can be pressed again. */
function deciding(row, onDone, children) {
  const form = h("form", { class: "question-actions", onsubmit: (event) => event.preventDefault() }, children);
  form.act = async (work) => {
    const fields = [...form.querySelectorAll("button, input, textarea")];
    for (const one of fields) one.disabled = true;
    try {
      const isSent = await work();
      if (isSent !== false && isSent !== "") {
        form.classList.add("sent");
        onDone(row);
        return;
      }
    } catch (error) {
      say(error.message, "bad");
    }
    for (const one of fields) one.disabled = false;
  };
  return form;
}

function buttons(...choices) {
  return h("div", { class: "row" }, choices.map(([label, tone, work]) =>
    h("button", { type: "button", class: ["button", tone], onclick: (event) => event.target.closest("form").act(work) }, label)));
}

async function clarify(row, answer) {
  await post(sessionPath(row.root, "/clarification"), { answer, call_id: row.name });
  return true;
}

async function decide(row, decision, more = {}) {
  await post(sessionPath(row.root, "/approval"), { call_id: row.name, decision, ...more });
  return true;
}
