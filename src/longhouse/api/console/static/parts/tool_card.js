// One tool call: a line that says what was called and how it went; behind it arguments and result.

import { h, icon, ICONS } from "../dom.js";
import { bytes, duration, hasNames, jsonOf, plainLine, pretty, secondsBetween, visible, words } from "../format.js";
import { sessionPath } from "../me.js";
import { code, runningClock, valueTable } from "../ui.js";

const SHOWN_AT_FIRST = 20_000;

/** What a call came to: a word for those who do not see the mark. */
const MARKS = {
  open: ["busy", "running"], ok: ["good", "done"], error: ["bad", "failed"], memory: ["good", "from memory"], stopped: ["quiet", "stopped"],
};

export function mark(status) {
  const [tone, word] = MARKS[status] ?? MARKS.open;
  return h("span", { class: ["mark", tone], role: "img", "aria-label": word, title: word });
}

/** The first values of arguments in one line. */
export function inShort(text, length = 90) {
  const value = jsonOf(text);
  if (!hasNames(value) && !Array.isArray(value)) return plainLine(typeof value === "string" ? value : text, length);
  const shown = Object.values(value).map((one) => (typeof one === "string" ? one : JSON.stringify(one)));
  return plainLine(shown.join(" · "), length);
}

export function lasting(from, to, isOpen) {
  return isOpen ? runningClock(from) : h("span", { class: "lasted" }, duration(secondsBetween(from, to)));
}

/** A call as a card that opens. `session` is the session that made it. */
export function toolCard(call, session) {
  const body = h("div", { class: "tool-body" });
  const build = () => { if (!body.hasChildNodes()) body.append(...details(call)); };
  const element = h("details", { class: "tool", data: { fold: call.key }, ontoggle: () => element.open && build() },
    h("summary", {}, mark(call.status), h("span", { class: "tool-name" }, visible(call.tool)),
      h("span", { class: "tool-short", dir: "auto" }, inShort(call.arguments)), note(call),
      lasting(call.runsSince, call.endedAt, call.status === "open"), icon(ICONS.down)),
    body);
  return h("div", { class: "tool-card" }, element, links(call, session));
}

function note(call) {
  if (call.status === "memory") return h("span", { class: "chip" }, "from memory");
  if (!call.decision) return null;
  return h("span", { class: "chip", title: call.decision.comment }, decisionWords(call.decision));
}

/** Who decided what, such as `approved by anna`. */
export function decisionWords({ decision, by, via }) {
  const done = { approve: "approved", deny: "denied", happened: "said to have happened", did_not_happen: "said not to have happened", give_up: "given up" };
  const who = by === "user" ? "" : ` by ${plainLine(by, 40)}`;
  return `${done[decision] ?? words(decision)}${who}${via ? ` in the ${via}` : ""}`;
}

function details(call) {
  const given = jsonOf(call.arguments);
  const isEmpty = given === "" || (hasNames(given) && !Object.keys(given).length);
  return [
    h("h4", {}, "Arguments"), isEmpty ? h("p", { class: "soft" }, "None.") : valueTable(given),
    ...(call.decision?.comment ? [h("h4", {}, "Comment"), h("p", { dir: "auto" }, visible(call.decision.comment))] : []),
    h("h4", {}, call.status === "error" ? "Error" : "Result"), result(call),
  ];
}

function result(call) {
  if (call.result === null) return h("p", { class: "soft" }, call.status === "open" ? "Not there yet." : "None: the turn ended before.");
  if (!call.result) return h("p", { class: "soft" }, "Empty.");
  if (call.result.length <= SHOWN_AT_FIRST) return code(pretty(call.result));
  const place = h("div", {}, code(call.result.slice(0, SHOWN_AT_FIRST)));
  place.append(h("button", { type: "button", class: "button small", onclick: () => place.replaceChildren(code(call.result)) },
    `Show all ${call.result.length.toLocaleString("en")} characters`));
  return place;
}

function links(call, session) {
  if (!call.files.length && !call.sources.length) return null;
  return h("div", { class: "links" }, call.files.map((file) => fileLink(file, session)), call.sources.map(sourceLink));
}

export function fileLink(file, session) {
  const address = sessionPath(session, `/artifacts/${encodeURIComponent(file.id)}`);
  return h("a", { class: "link-chip", href: address, download: true, title: visible(file.path) },
    icon(ICONS.file), h("span", {}, plainLine(file.path.split("/").pop(), 60)), h("span", { class: "soft" }, bytes(file.size)));
}

function sourceLink({ url, title, number }) {
  const label = `${number ? `[${number}] ` : ""}${plainLine(title, 60)}`;
  if (!/^https?:/i.test(url)) return h("span", { class: "link-chip", dir: "auto" }, label);
  return h("a", { class: "link-chip", href: url, target: "_blank", rel: "noopener noreferrer nofollow", title: visible(url) },
    icon(ICONS.link), h("span", { dir: "auto" }, label));
}
