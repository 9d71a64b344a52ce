// Small parts that every screen uses: states, times, messages, dialogs, folds, empty places.

import { fill, h, icon, ICONS } from "./dom.js";
import { ago, dateAndTime, duration, hasNames, left, secondsBetween, straight, visible } from "./format.js";
import { stateWords } from "./states.js";

const TONES = {
  COMPLETED: "good",
  FAILED: "bad",
  CANCELLED: "quiet",
  INITED: "quiet",
  WAITING_FOR_CLARIFICATION: "wait",
  WAITING_FOR_APPROVAL: "wait",
  WAITING_FOR_AGENT: "busy",
};

export const toneOf = (state) => TONES[state] ?? "busy";

/** A state: a dot with its word. The word is always there, since a colour alone says nothing to many. */
export function stateBadge(state, questions = []) {
  return h("span", { class: ["badge", toneOf(state)] }, stateWords(state, questions));
}

export function badge(text, tone = "quiet") {
  return h("span", { class: ["badge", tone] }, text);
}

/** A time such as `4 m ago`, which stays right while it is shown. */
export function since(moment) {
  return h("time", { datetime: moment ?? "", title: dateAndTime(moment), data: { since: moment ?? "" } }, ago(moment));
}

/** Keeps every time on the page right. */
export function tick() {
  for (const one of document.querySelectorAll("time[data-since]")) one.textContent = ago(one.dataset.since);
}

/** How long something lasts already; it runs while it is shown. */
export function runningClock(from) {
  return h("span", { class: "clock", data: { from } }, elapsed(from));
}

/** How long there is until a moment; it runs down while it is shown. */
export function countdown(moment) {
  return h("time", { class: "countdown", datetime: moment, title: dateAndTime(moment), data: { until: moment } }, left(moment));
}

const elapsed = (from) => {
  const seconds = Math.max(0, secondsBetween(from, new Date()));
  return seconds < 60 ? `${Math.floor(seconds)} s` : duration(seconds);
};

/** Moves every running clock on the page. */
export function runClocks() {
  for (const one of document.querySelectorAll(".clock[data-from]")) one.textContent = elapsed(one.dataset.from);
  for (const one of document.querySelectorAll("time[data-until]")) one.textContent = left(one.dataset.until);
}

export function button(label, act, { tone = "", title = "", shape = "" } = {}) {
  return h("button", { type: "button", class: ["button", tone], title, onclick: act },
    shape ? [icon(ICONS[shape]), h("span", {}, label)] : label);
}

/** A button that cannot be pressed twice while its work lasts; a failure is said. */
export function actButton(label, act, options = {}) {
  const element = button(label, async () => {
    element.disabled = true;
    try {
      await act();
    } catch (error) {
      say(error.message, "bad");
    } finally {
      element.disabled = false;
    }
  }, options);
  return element;
}

/** Something folded under its heading. */
export function fold(heading, content, { open = false } = {}) {
  const body = h("div", { class: "fold-body" });
  const build = () => { if (!body.hasChildNodes()) fill(body, content()); };
  const details = h("details", { class: "fold", ontoggle: build }, h("summary", {}, heading), body);
  details.open = open;
  if (open) build();
  return details;
}

/** Says something in a corner for a while; screen readers hear it. */
export function say(text, tone = "good") {
  const place = document.querySelector("#messages");
  const message = h("div", { class: ["message", tone], role: tone === "bad" ? "alert" : "status" }, text);
  place.append(message);
  setTimeout(() => message.remove(), tone === "bad" ? 8000 : 4000);
}

export function empty(text, ...more) {
  return h("div", { class: "empty" }, h("p", {}, text), ...more);
}

export function errorBox(error) {
  return h("div", { class: "empty", role: "alert" }, h("p", {}, error.message));
}

/** A dialog; `build(close)` returns its content. Resolves with what `close` was given, or null. */
export function dialog(title, build) {
  return new Promise((resolve) => {
    const close = (value = null) => {
      element.close();
      element.remove();
      resolve(value);
    };
    const element = h("dialog", { "aria-label": title, oncancel: () => close() },
      h("header", {}, h("h2", {}, title),
        h("button", { type: "button", class: "button plain", "aria-label": "Close", onclick: () => close() }, icon(ICONS.close))));
    element.append(h("div", { class: "dialog-body" }, build(close)));
    document.body.append(element);
    element.showModal();
  });
}

/** Asks before something that cannot be undone; true if it may go on. */
export async function confirmed(title, text, label) {
  return Boolean(await dialog(title, (close) => [
    h("p", {}, text),
    h("div", { class: "row end" }, button("Keep", () => close(false)), button(label, () => close(true), { tone: "danger" })),
  ]));
}

export async function copy(text) {
  if (navigator.clipboard) await navigator.clipboard.writeText(text);
  else copySelected(text);
  say("Copied.");
}

/** Browsers have no clipboard on plain http from another machine: there a selection is copied, as by hand. */
function copySelected(text) {
  const area = h("textarea", { class: "off-screen", "aria-hidden": "true" });
  area.value = text;
  document.body.append(area);
  area.select();
  document.execCommand("copy");
  area.remove();
}

/** A text in fixed width with a copy button. */
export function code(text, language = "") {
  return h("div", { class: ["code", language ? "" : "bare"] },
    h("div", { class: "code-head" }, h("span", {}, language),
      h("button", { type: "button", class: "button plain small", onclick: () => copy(text) }, icon(ICONS.copy), "Copy")),
    h("pre", { tabindex: "0" }, h("code", {}, straight(text))));
}

/** A table; each cell a text or a node. `columns`: headings, or `[heading, class]`. */
export function table(columns, rows, { caption = "" } = {}) {
  const heads = columns.map((one) => [one].flat());
  const cell = (value, nth) => h("td", { class: heads[nth][1] ?? "" }, value);
  return h("div", { class: "table", tabindex: "0" },
    h("table", {}, caption ? h("caption", {}, caption) : null,
      h("thead", {}, h("tr", {}, heads.map(([label, kind]) => h("th", { scope: "col", class: kind ?? "" }, label)))),
      h("tbody", {}, rows.map((row) => h("tr", {}, row.map(cell))))));
}

/** Arguments or results as a table of names and values; anything else as text. `brief`: of long ones the beginning. */
export function valueTable(value, { brief = false } = {}) {
  const text = (one) => (brief ? beginning(textOf(one)) : textOf(one));
  if (!hasNames(value)) return brief ? h("div", { class: "plain-text mono" }, text(value)) : code(textOf(value));
  return h("dl", { class: "pairs" }, Object.entries(value).map(([name, one]) =>
    [h("dt", {}, brief ? beginning(nameText(name)) : nameText(name)), h("dd", { dir: "auto", class: hasNames(one) || Array.isArray(one) ? "mono" : "" }, text(one))]));
}

/** A name in one line, so that it cannot look like several. */
const nameText = (name) => visible(name).replaceAll("\n", "\\n").replaceAll("\t", "\\t");

const BRIEF = 500;
const BRIEF_LINES = 8;

/** The beginning of a long text with a button for the rest; a short one as it is. */
function beginning(text) {
  const shown = text.slice(0, BRIEF).split("\n", BRIEF_LINES).join("\n");
  if (shown.length === text.length) return text;
  const more = h("button", { type: "button", class: "button small show-all", onclick: () => showAll() },
    `Show all ${text.length.toLocaleString("en")} characters`);
  const part = h("span", { class: "beginning" }, `${shown}… `, more);
  function showAll() {
    const card = part.closest("[tabindex]");
    part.replaceWith(text);
    card?.focus({ preventScroll: true });
  }
  return part;
}

/** A value as text that hides nothing. */
function textOf(value) {
  return visible(typeof value === "string" ? value : JSON.stringify(value, null, 2) ?? "");
}

/** Tabs: `[[id, label, build]]`; `chosen` is open first, `onChoose(id)` hears of changes. */
export function tabs(parts, chosen, onChoose = () => {}) {
  const body = h("div", { class: "tab-body" });
  const buttons = parts.map(([id, label]) => h("button", {
    type: "button", role: "tab", id: `tab-${id}`, class: "tab", onclick: () => choose(id), onkeydown: (event) => walk(event, id),
  }, label));
  async function choose(id) {
    const nth = Math.max(0, parts.findIndex((part) => part[0] === id));
    buttons.forEach((one, at) => {
      one.setAttribute("aria-selected", at === nth);
      one.tabIndex = at === nth ? 0 : -1;
    });
    body.setAttribute("aria-labelledby", `tab-${parts[nth][0]}`);
    onChoose(parts[nth][0]);
    try {
      fill(body, await parts[nth][2]());
    } catch (error) {
      fill(body, errorBox(error));
    }
  }
  function walk(event, id) {
    const by = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!by) return;
    const at = (parts.findIndex((part) => part[0] === id) + by + parts.length) % parts.length;
    buttons[at].focus();
    choose(parts[at][0]);
  }
  body.setAttribute("role", "tabpanel");
  choose(chosen);
  const element = h("div", { class: "tabs" }, h("div", { role: "tablist", class: "tab-list" }, buttons), body);
  return { element, choose };
}
