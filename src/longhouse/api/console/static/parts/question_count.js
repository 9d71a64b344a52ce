// All that waits for a person: one live list for the whole page, its number beside the inbox and in the title.

import { follow, get, withQuery } from "../api.js";
import { plainLine } from "../format.js";
import { chosenOwner, questionsPath } from "../me.js";
import { setWaiting } from "../title.js";
import { keyOf, KINDS } from "./question_card.js";

const POLL_EVERY = 10_000;
/** The longest page; more than anybody works off without looking again. */
const MOST = 200;

const listeners = new Set();
let rows = null;
let known = null;
let line = null;
let isLive = false;

/** Begins to watch, once. A page that nobody looks at asks now and then: browsers keep few lines to one server. */
export function watchQuestions() {
  if (!line) choose();
}

document.addEventListener("visibilitychange", () => line && choose());
document.addEventListener("shown", paint);
document.addEventListener("signed-out", () => {
  line?.stop();
  line = rows = known = null;
  tell();
});

/** Watches anew, as for another owner. */
export function watchAgain() {
  known = null;
  choose();
}

export const questions = () => rows ?? [];
export const isKnown = () => rows !== null;
export const isFollowing = () => isLive;

/** Calls `heard()` after every change; returns what ends that. */
export function onQuestions(heard) {
  listeners.add(heard);
  return () => listeners.delete(heard);
}

function choose() {
  line?.stop();
  isLive = false;
  line = document.hidden ? polling() : following();
}

function address() {
  return withQuery(questionsPath(), { limit: MOST, owner: chosenOwner() });
}

function following() {
  return follow(address(), {
    onEvent: ({ event, data }) => {
      if (event !== "questions") return;
      isLive = true;
      take(data.data ?? data);
    },
    onState: (state) => {
      if (state === "open") return; // what waits comes as the first event
      isLive = false;
      tell();
    },
  });
}

function polling() {
  const ask = () => get(address()).then((found) => take(found.data), () => {});
  const timer = setInterval(ask, POLL_EVERY);
  return { stop: () => clearInterval(timer) };
}

function take(found) {
  const fresh = known ? found.filter((row) => !known.has(keyOf(row))) : [];
  rows = found;
  known = new Set(found.map(keyOf));
  for (const row of fresh) notify(row);
  tell();
}

function tell() {
  paint();
  for (const heard of listeners) heard();
}

function paint() {
  const number = questions().length;
  setWaiting(number);
  const place = document.querySelector("#question-count");
  if (!place) return;
  place.hidden = number === 0;
  place.textContent = String(number);
  place.setAttribute("aria-label", `${number} open`);
}

/* Notifications of the browser: only where somebody has asked for them. */

export const canNotify = () => "Notification" in window && window.isSecureContext;
export const mayAsk = () => canNotify() && Notification.permission === "default";
export const askToNotify = () => Notification.requestPermission();

function notify(row) {
  if (!canNotify() || Notification.permission !== "granted" || document.hasFocus()) return;
  const text = row.kind === "clarification" ? row.text : row.tool;
  const note = new Notification(`${KINDS[row.kind]} · ${plainLine(row.agent, 40)}`, { body: plainLine(text, 140), tag: keyOf(row) });
  note.onclick = () => {
    window.focus();
    location.assign(`/s/${encodeURIComponent(row.root)}`);
  };
}
