// Talks to the server: JSON in, JSON out, errors as sentences, and streams that go on where they broke.

import { at } from "./base.js";

export class ApiError extends Error {
  constructor(status, error) {
    super(error.message);
    this.status = status;
    this.code = error.code ?? null;
    this.param = error.param ?? null;
  }
}

const UNREACHABLE = "The server cannot be reached. It may be restarting; this page tries again.";

/** `path` with these parameters; those that are empty are left out. */
export function withQuery(path, parameters = {}) {
  const given = Object.entries(parameters).filter(([, value]) => value !== "" && value !== null && value !== undefined);
  const query = new URLSearchParams(given).toString();
  return query ? `${path}?${query}` : path;
}

async function request(method, path, { body, headers = {}, signal } = {}) {
  let response;
  try {
    response = await fetch(at(path), { method, body, headers, signal, credentials: "same-origin" });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ApiError(0, { message: UNREACHABLE });
  }
  if (!response.ok) throw await errorOf(response);
  return response;
}

async function errorOf(response) {
  const answer = await response.json().catch(() => null);
  const error = answer?.error ?? { message: `The server answered ${response.status}.` };
  // A wrong key at the sign-in signs nobody out.
  if (response.status === 401 && !response.url.endsWith("/console/session")) document.dispatchEvent(new CustomEvent("signed-out"));
  return new ApiError(response.status, error);
}

export async function get(path, parameters = {}, { signal } = {}) {
  return (await request("GET", withQuery(path, parameters), { signal })).json();
}

/** What a route answers, as it is: for files that are saved. */
export async function blob(path) {
  return (await request("GET", path)).blob();
}

/** Sends JSON; null for an answer without a body. */
export async function send(method, path, value, headers = {}) {
  const json = value === undefined ? { headers } : { body: JSON.stringify(value), headers: { "content-type": "application/json", ...headers } };
  const response = await request(method, path, json);
  const text = await response.text();
  return text ? JSON.parse(text) : null;
}

export const post = (path, value) => send("POST", path, value);
export const put = (path, value) => send("PUT", path, value);
export const patch = (path, value) => send("PATCH", path, value);
export const remove = (path) => send("DELETE", path);

/**
 * A POST that creates something, under a key of its own: if the answer is lost, the same once more finds what the first
 * has made.
 */
export function creating() {
  let asked = null;
  let key = "";
  return async (path, value) => {
    const now = JSON.stringify([path, value]);
    if (now !== asked) key = newKey();
    asked = now;
    const made = await send("POST", path, value, { "idempotency-key": key });
    asked = null;
    return made;
  };
}

// Not `randomUUID`, which browsers have only on https and on this machine.
const newKey = () => Array.from(crypto.getRandomValues(new Uint8Array(16)), (one) => one.toString(16).padStart(2, "0")).join("");

/** Sends a file or a form as it is. */
export async function upload(path, body, headers = {}) {
  return (await request("POST", path, { body, headers })).json();
}

/** The events of one response body: `{id, event, data}`, the data as it was sent. */
export async function* eventsOf(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  try {
    for (;;) {
      const { value, done } = await reader.read();
      if (done) return;
      const blocks = (rest + value).split("\n\n");
      rest = blocks.pop();
      for (const block of blocks) {
        const event = parsed(block);
        if (event) yield event;
      }
    }
  } finally {
    // Whoever stops to read gives the line back: a browser keeps few to one server. A line that broke is back already.
    reader.cancel().catch(() => {});
  }
}

function parsed(block) {
  const event = { id: null, event: "message", data: "" };
  const data = [];
  for (const line of block.split("\n")) {
    const [name, value] = fieldOf(line);
    if (name === "data") data.push(value);
    else if (name === "id" || name === "event") event[name] = value;
  }
  event.data = data.join("\n");
  return data.length ? event : null;
}

function fieldOf(line) {
  const colon = line.indexOf(":");
  const value = line.slice(colon + 1);
  return [line.slice(0, colon), value.startsWith(" ") ? value.slice(1) : value];
}

/** A POST whose answer is a stream of events. */
export async function* stream(path, value, signal) {
  const headers = { "content-type": "application/json" };
  yield* eventsOf(await request("POST", path, { body: JSON.stringify(value), headers, signal }));
}

const FIRST_WAIT = 300;
const LONGEST_WAIT = 5000;
/** Milliseconds after which a request that is not answered waits for a line, or for a server that is too busy. */
const TOO_LONG = 4000;

/**
 * Follows a stream of events until `stop` is called. After a broken line it goes on behind the last event, so that
 * each event comes once. `onState`: "waiting" for an answer that is late, "open", "reconnecting" or "ended".
 * An event without an id, such as a delta, is not repeated: whoever reads deltas takes the text from the event that
 * follows them.
 */
export function follow(path, { parameters = {}, lastId = "", onEvent, onState = () => {}, onError = () => {} }) {
  const stopped = new AbortController();
  let wait = FIRST_WAIT;

  async function once() {
    const headers = { accept: "text/event-stream", ...(lastId ? { "last-event-id": lastId } : {}) };
    const late = setTimeout(() => stopped.signal.aborted || onState("waiting"), TOO_LONG);
    const asking = request("GET", withQuery(path, parameters), { headers, signal: stopped.signal });
    const response = await asking.finally(() => clearTimeout(late));
    onState("open");
    for await (const event of eventsOf(response)) {
      if (event.id) lastId = event.id;
      // A server that takes the line and then fails is not asked faster and faster.
      if (event.event !== "error") wait = FIRST_WAIT;
      hand({ ...event, data: JSON.parse(event.data) });
    }
  }

  /** A listener that fails is a fault of this page: it is told, and the line goes on. */
  function hand(event) {
    try {
      onEvent(event);
    } catch (error) {
      reportError(error);
    }
  }

  async function run() {
    while (!stopped.signal.aborted) {
      try {
        await once();
      } catch (error) {
        if (stopped.signal.aborted) return;
        // What the server refuses now, it refuses again.
        if (error instanceof ApiError && error.status >= 400 && error.status < 500 && error.status !== 429) {
          onState("ended");
          onError(error);
          return;
        }
      }
      if (stopped.signal.aborted) return;
      onState("reconnecting");
      await new Promise((resolve) => setTimeout(resolve, wait));
      wait = Math.min(wait * 2, LONGEST_WAIT);
    }
  }

  run();
  return { stop: () => stopped.abort(), get lastId() { return lastId; } };
}
