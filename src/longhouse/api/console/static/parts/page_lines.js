// Lines to the server that all pages of one browser share: it keeps six, and what is sent needs one of them too.

import { follow } from "../api.js";
import { BASE } from "../base.js";

const NAME = `longhouse line ${BASE}`;
/** How many pages follow a session at once; one more line is for the questions. */
const PLACES = 4;
/** Milliseconds after which a page that nobody looks at gives its line back. */
const HIDDEN_FOR = 30_000;

/**
 * Follows like `follow`, in one of the places. The page that comes last takes the place of the one that came first: that
 * one hears the state "paused", and a page that nobody looks at hears "given back". Both go on behind their last event
 * as soon as somebody is back at them.
 */
export function followInPlace(path, { onState = () => {}, ...options }) {
  let lastId = "";
  let line = null;
  let left = null;
  let hiding = null;

  function begin() {
    left = new AbortController();
    hold(left.signal, () => leave("paused"));
    line = follow(path, { ...options, lastId, onState });
  }

  function end() {
    left.abort();
    line?.stop();
    lastId = line?.lastId ?? lastId;
    line = null;
  }

  function leave(state) {
    end();
    onState(state);
  }

  function resume() {
    clearTimeout(hiding);
    if (document.hidden) hiding = setTimeout(() => line && leave("given back"), HIDDEN_FOR);
    else if (!line) begin();
  }

  addEventListener("focus", resume);
  addEventListener("pointerdown", resume);
  document.addEventListener("visibilitychange", resume);
  begin();
  resume();
  return {
    stop() {
      clearTimeout(hiding);
      removeEventListener("focus", resume);
      removeEventListener("pointerdown", resume);
      document.removeEventListener("visibilitychange", resume);
      end();
    },
  };
}

/** Takes a free place, or that of the page that has had its one for longest; `onLost()` once another page takes it. */
async function hold(left, onLost) {
  // Only a secure context has locks.
  if (!navigator.locks) return;
  for (let nth = 0; nth < PLACES; nth += 1) if (await isHeld(nth, { ifAvailable: true }, left, onLost)) return;
  const next = (Number(localStorage.getItem(NAME)) || 0) % PLACES;
  localStorage.setItem(NAME, String(next + 1));
  await isHeld(next, { steal: true }, left, onLost);
}

function isHeld(nth, options, left, onLost) {
  return new Promise((resolve) => {
    const held = (lock) => {
      resolve(Boolean(lock) || left.aborted);
      if (lock && !left.aborted) return new Promise((release) => left.addEventListener("abort", release));
      return null;
    };
    navigator.locks.request(`${NAME} ${nth}`, options, held).catch(() => left.aborted || onLost());
  });
}
