// One session as a row of a grid; on a narrow screen the same row is a card.

import { at } from "../base.js";
import { h } from "../dom.js";
import { ago, count, plainLine, span } from "../format.js";
import { isAdmin } from "../me.js";
import { stateWords } from "../states.js";
import { toneOf } from "../ui.js";
import { questions } from "./question_count.js";

export const ROW_HEIGHT = 52;
export const CARD_HEIGHT = 104;

const NUMBERS = [
  ["turns", "Turns", (row) => count(row.turns)],
  ["steps", "Steps", (row) => count(row.steps)],
  ["tokens", "Tokens", (row) => count(row.tokens)],
  ["work", "Work", (row) => span(row.work_seconds)],
  ["waiting", "Waiting", (row) => (row.waiting_seconds ? span(row.waiting_seconds) : "–")],
];

export function headRow(selectAll) {
  const head = (name, label) => h("div", { role: "columnheader", class: ["cell", name] }, label);
  return h(
    "div",
    { role: "row", class: "session-row head", "aria-rowindex": "1" },
    h("div", { role: "columnheader", class: "cell select" }, selectAll),
    head("state", "State"),
    head("agent", "Agent"),
    head("title", "Task"),
    isAdmin() ? head("owner", "Owner") : null,
    NUMBERS.map(([name, label]) => head(`number ${name}`, label)),
    head("number age", "Age"),
  );
}

/** An element that shows one row after the other; its handlers are given the row that it shows then. */
export function rowElement({ onSelect, onFocus, onOpen }) {
  const parts = {
    box: h("input", { type: "checkbox", tabindex: "-1", onclick: () => onSelect(element.row) }),
    state: h("span", {}),
    questions: h("span", { class: "questions" }),
    name: h("span", { class: "agent-name" }),
    version: h("span", { class: "soft" }),
    link: h("a", { tabindex: "-1", dir: "auto" }),
    second: h("span", { class: "second", dir: "auto" }),
    owner: h("span", {}),
    user: h("span", { class: "soft small" }),
    age: h("time", {}),
    numbers: NUMBERS.map(() => document.createTextNode("")),
  };
  const cell = (name, ...children) => h("div", { role: "gridcell", class: ["cell", name] }, ...children);
  const element = h(
    "div",
    {
      role: "row",
      class: "session-row",
      tabindex: "-1",
      onfocusin: () => onFocus(element.row),
      onkeydown: (event) => event.key === "Enter" && event.target === element && onOpen(),
    },
    cell("select", parts.box),
    cell("state", parts.state, parts.questions),
    cell("agent", parts.name, parts.version),
    cell("title", parts.link, parts.second),
    isAdmin() ? cell("owner", parts.owner, parts.user) : null,
    NUMBERS.map(([name, label], nth) =>
      cell(`number ${name}`, h("span", { class: "number-name" }, label), parts.numbers[nth]),
    ),
    cell("number age", parts.age),
  );
  element.parts = parts;
  return element;
}

export function updateRow(element, row, { isSelected, isCurrent, nth, isNew }) {
  // Rows are values: one that was read again is another.
  if (element.row !== row) show(element, row, isNew);
  const looks = `${isSelected} ${isCurrent} ${nth}`;
  if (element.looks === looks) return;
  element.looks = looks;
  element.parts.box.checked = isSelected;
  element.tabIndex = isCurrent ? 0 : -1;
  element.setAttribute("aria-selected", String(isSelected));
  element.setAttribute("aria-rowindex", String(nth + 2));
}

function show(element, row, isNew) {
  const { parts, row: before } = element;
  const isSame = before?.session_id === row.session_id;
  element.row = row;
  // Seconds of work run on all the time: only what happened is worth a look.
  const happened = isSame && ["state", "steps", "questions"].some((name) => before[name] !== row[name]);
  element.classList.remove("changed");
  if (happened || (isNew && !isSame)) flash(element);
  if (isSame && JSON.stringify(before) === JSON.stringify(row)) return;
  const title = titleOf(row);
  element.dataset.session = row.session_id;
  parts.box.setAttribute("aria-label", `Select ${title.slice(0, 60)}`);
  parts.state.className = `badge ${toneOf(row.state)}`;
  parts.state.textContent = stateWords(row.state, questions().filter((one) => [one.root, one.session_id].includes(row.session_id)));
  parts.questions.hidden = !(row.questions > 1);
  parts.questions.textContent = row.questions;
  parts.questions.title = `${row.questions} open questions`;
  parts.name.textContent = plainLine(row.template, 60);
  parts.version.textContent = row.version ? `@${row.version}` : "";
  parts.link.setAttribute("href", at(`/sessions/${encodeURIComponent(row.session_id)}`));
  parts.link.textContent = title;
  parts.second.classList.toggle("bad", Boolean(row.error));
  parts.second.replaceChildren(...secondLine(row));
  parts.owner.textContent = plainLine(row.owner, 60);
  parts.user.textContent = plainLine(row.user, 60);
  parts.age.dataset.since = row.created_at;
  parts.age.dateTime = row.created_at;
  parts.age.textContent = ago(row.created_at);
  NUMBERS.forEach(([, , value], at) => {
    parts.numbers[at].data = value(row);
  });
}

function flash(element) {
  // Read, so that the mark starts anew.
  void element.offsetWidth;
  element.classList.add("changed");
}

const titleOf = (row) => plainLine(row.title || row.task, 160) || "Without a title";

function secondLine(row) {
  if (row.error) return [plainLine(row.error, 160)];
  const owner = [row.owner, row.user]
    .filter(Boolean)
    .map((one) => plainLine(one, 40))
    .join(" / ");
  const parts = [
    row.parent ? "sub-agent · " : "",
    owner ? h("span", { class: "second-owner" }, `${owner} · `) : "",
    h("span", { class: "second-id" }, row.session_id),
  ];
  return parts.filter(Boolean);
}
