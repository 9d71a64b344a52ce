// All that waits for a person: one live list for the whole browser, its number beside the inbox and in the title.

import { follow, get } from "../api.js";
import { at, BASE } from "../base.js";
import { plainLine } from "../format.js";
import { questionsPath } from "../me.js";
import { setWaiting } from "../title.js";
import { keyOf, KINDS } from "./question_card.js";

/** Milliseconds between two questions of a page without a line: one in sight, and one that nobody looks at. */
const POLL_EVERY = 4_000;
const POLL_HIDDEN_EVERY = 10_000;
/** The longest page of the server. */
const MOST = 200;
/** The lock of the one page that follows, and the channel by which it tells the others. */
const LINE = `longhouse questions ${BASE}`;

const channel = "BroadcastChannel" in window ? new BroadcastChannel(LINE) : null;
// Only a secure context has locks.
const canShare = Boolean(channel && navigator.locks);
const listeners = new Set();
let page = null;
let known = null;
let line = null;
let isLive = false;
let isHolder = !canShare;

/** Begins to watch, once. */
export function watchQuestions() {
  if (!line) choose();
}

document.addEventListener("visibilitychange", () => {
  const isKept = document.hidden && notifies();
  if (line && !isKept) choose();
});
document.addEventListener("shown", paint);
document.addEventListener("signed-out", () => {
  line?.stop();
  line = page = known = null;
  tell();
});
channel?.addEventListener("message", ({ data }) => {
  // Nobody is signed in here, or somebody else.
  if (!line || data.path !== questionsPath()) return;
  isLive = data.isLive;
  if (data.page) take(data.page);
  else tell();
});

export const questions = () => page?.data ?? [];
/** Are there more than the list holds? */
export const isCut = () => Boolean(page?.has_more);
export const isKnown = () => page !== null;
export const isFollowing = () => isLive;

/** How many wait, as people read it: `200+` where there are more than one page. */
export const atLeast = (number) => `${number.toLocaleString("en")}${isCut() ? "+" : ""}`;

/** Calls `heard()` after every change; returns what ends that. */
export function onQuestions(heard) {
  listeners.add(heard);
  return () => listeners.delete(heard);
}

/**
 * A browser keeps six lines to one server, for all its pages together: so one page follows, the one that was looked at
 * last, and tells the others. A page that nobody looks at asks now and then, unless it is to notify.
 */
function choose() {
  line?.stop();
  isLive = false;
  if (document.hidden && !notifies()) line = polling(POLL_HIDDEN_EVERY);
  else line = canShare ? sharing() : polling(POLL_EVERY);
  tell();
}

function sharing() {
  const left = new AbortController();
  // The page in sight takes the line from the one before, which the browser may have frozen meanwhile.
  hold(left.signal, !document.hidden);
  return { stop: () => left.abort() };
}

async function hold(left, steal) {
  let own = null;
  const followed = () => new Promise((release) => {
    if (left.aborted) release();
    else own = following();
    left.addEventListener("abort", release);
  });
  try {
    await navigator.locks.request(LINE, steal ? { steal } : { signal: left }, followed);
  } catch (error) {
    // Another page took the line, or this one waits for it no more.
    if (error.name !== "AbortError") reportError(error);
  } finally {
    own?.stop();
    isHolder = false;
  }
  if (!left.aborted) hold(left, false);
}

function following() {
  isHolder = true;
  return follow(questionsPath(), {
    parameters: { limit: MOST },
    onEvent: ({ event, data }) => {
      if (event !== "questions") return;
      isLive = true;
      share(data);
      take(data);
    },
    onState: (state) => {
      if (state === "open") return; // what waits comes as the first event
      isLive = false;
      share(null);
      tell();
    },
  });
}

const share = (found) => channel?.postMessage({ path: questionsPath(), page: found, isLive });

function polling(every) {
  isHolder = true;
  const ask = async () => {
    try {
      take(await get(questionsPath(), { limit: MOST }));
      isLive = true;
    } catch {
      // It is said where the questions are shown, and asked again.
      isLive = false;
    }
    tell();
  };
  const timer = setInterval(ask, every);
  ask();
  return { stop: () => clearInterval(timer) };
}

function take(found) {
  const fresh = known ? found.data.filter((row) => !known.has(keyOf(row))) : [];
  page = found;
  known = new Set(found.data.map(keyOf));
  if (isHolder) for (const row of fresh) notify(row);
  tell();
}

function tell() {
  paint();
  for (const heard of listeners) heard();
}

function paint() {
  const number = questions().length;
  setWaiting(number && atLeast(number));
  for (const place of document.querySelectorAll(".question-count")) {
    place.hidden = number === 0;
    place.textContent = atLeast(number);
    place.setAttribute("aria-label", `${atLeast(number)} open`);
  }
}

/* Notifications of the browser: only where somebody has asked for them. */

export const canNotify = () => "Notification" in window && window.isSecureContext;
export const mayAsk = () => canNotify() && Notification.permission === "default";
export const askToNotify = () => Notification.requestPermission();
const notifies = () => canNotify() && Notification.permission === "granted";

function notify(row) {
  if (!notifies() || document.hasFocus() || row.kind === "client") return;
  const text = row.kind === "clarification" ? row.text : row.tool;
  const note = new Notification(`${KINDS[row.kind]} · ${plainLine(row.agent, 40)}`, { body: plainLine(text, 140), tag: keyOf(row) });
  note.onclick = () => {
    window.focus();
    location.assign(at(`/s/${encodeURIComponent(row.root)}`));
  };
}

/* One kind, or one agent, of more questions than the live list holds */

/** Questions that fit `{kind, agent}`: of the live list while that is whole, or else read page by page. */
export class FittingQuestions {
  constructor(heard) {
    Object.assign(this, { heard, wanted: {}, pages: 1, read: null, next: null });
    this.stopHearing = onQuestions(() => this.changed());
    this.timer = setInterval(() => document.hidden || this.reload(), POLL_HIDDEN_EVERY);
  }

  close() {
    this.stopHearing();
    clearInterval(this.timer);
    this.isClosed = true;
  }

  /** The questions to show; null while they are asked for. */
  get rows() {
    if (isCut() && (this.read || this.isApart)) return this.read;
    const { kind, agent } = this.wanted;
    return questions().filter((row) => (!kind || row.kind === kind) && (!agent || row.agent === agent));
  }

  get hasMore() {
    return isCut() && (this.read ? Boolean(this.next) : !this.isApart);
  }

  /** Does the live list not tell what is wanted? */
  get isApart() {
    return Boolean(this.wanted.kind || this.wanted.agent || this.pages > 1);
  }

  choose(wanted) {
    Object.assign(this, { wanted, pages: 1, read: null });
    this.reload();
  }

  more() {
    this.pages += 1;
    return this.reload();
  }

  changed() {
    this.reload();
    this.heard();
  }

  /** Reads all pages that are shown; one reading at a time, and once more if something came meanwhile. */
  async reload() {
    if (!isCut() || !this.isApart) {
      this.read = null;
      return;
    }
    this.isAsked = true;
    if (this.isReading) return;
    this.isReading = true;
    while (this.isAsked && !this.isClosed) {
      this.isAsked = false;
      await this.readPages().catch(() => {});
      // On a busy server there is always something new.
      if (this.isAsked) await new Promise((resolve) => setTimeout(resolve, 1000));
    }
    this.isReading = false;
    if (!this.isClosed) this.heard();
  }

  async readPages() {
    const { wanted, pages } = this;
    const rows = [];
    let next = null;
    for (let nth = 0; nth < pages && (nth === 0 || next); nth += 1) {
      const found = await get(questionsPath(), { limit: MOST, ...wanted, before: next });
      rows.push(...found.data);
      next = found.has_more ? found.next : null;
    }
    if (wanted === this.wanted) Object.assign(this, { read: rows, next });
  }
}
