// One message of a request or of a history: who says it, what, and which calls it makes.

import { h } from "../dom.js";
import { count, hasNames, jsonOf, plainLine, pretty, visible } from "../format.js";
import { code, fold, valueTable } from "../ui.js";

const SHOWN = 1500;
const CODE_SHOWN = 20_000;
const NAMES = { system: "System", developer: "System", user: "User", assistant: "Model", tool: "Tool result" };

/** The text of a message's content, which may be in parts. */
export function contentText(content) {
  if (content === null || content === undefined) return "";
  if (typeof content === "string") return content;
  return content.map((part) => part.text ?? `[${part.type ?? "part"}]`).join("\n");
}

/** `note`: a mark such as "new"; `tokens`: about how many; `body`: shown in the place of the content. */
export function messageView(message, { note = "", tokens = null, body = null } = {}) {
  const name = message.name ?? message.tool_call_id ?? "";
  return h(
    "article",
    { class: ["message-view", `by-${message.role}`, note && `is-${note}`] },
    h(
      "header",
      {},
      h("span", { class: "message-role" }, NAMES[message.role] ?? plainLine(message.role, 30)),
      name ? h("span", { class: "mono soft" }, plainLine(name, 60)) : null,
      note ? h("span", { class: "message-note" }, note) : null,
      h("span", { class: "grow" }),
      tokens === null ? null : h("span", { class: "soft small number" }, `≈ ${count(tokens)} tokens`),
    ),
    body ?? longText(contentText(message.content)),
    calls(message.tool_calls),
  );
}

/** A text whose lines are kept; a long one shows its beginning. */
export function longText(text, shown = SHOWN) {
  if (!text) return null;
  const element = h(
    "div",
    { class: "plain-text", dir: "auto" },
    visible(text.length > shown ? `${text.slice(0, shown)}…` : text),
  );
  if (text.length <= shown) return element;
  const more = h(
    "button",
    {
      type: "button",
      class: "button small",
      onclick: () => {
        element.textContent = visible(text);
        more.remove();
      },
    },
    `Show all ${text.length.toLocaleString("en")} characters`,
  );
  return h("div", {}, element, more);
}

function calls(made) {
  if (!made?.length) return null;
  return h(
    "div",
    { class: "message-calls" },
    made.map((call) => {
      const given = jsonOf(call.function?.arguments ?? "");
      return h(
        "div",
        { class: "message-call" },
        h("span", { class: "mono" }, plainLine(call.function?.name ?? call.type, 80)),
        hasNames(given) && Object.keys(given).length ? valueTable(given) : null,
      );
    }),
  );
}

/** A list of messages; of a long one the last are shown first. */
export function messageList(messages, shown = 100) {
  const place = h("div", { class: "message-list" });
  const show = (from) => {
    place.replaceChildren(...messages.slice(from).map((message) => messageView(message)));
    if (from)
      place.prepend(
        h(
          "button",
          { type: "button", class: "button", onclick: () => show(Math.max(0, from - shown)) },
          `Show ${Math.min(shown, from)} of ${from} earlier messages`,
        ),
      );
  };
  show(Math.max(0, messages.length - shown));
  return place;
}

/** A text in fixed width; of a very long one the beginning, for no screen is to hang on it. */
export function longCode(text) {
  if (text.length <= CODE_SHOWN) return code(visible(text));
  const place = h("div", {}, code(`${visible(text.slice(0, CODE_SHOWN))}…`));
  place.append(
    h(
      "button",
      { type: "button", class: "button small", onclick: () => place.replaceChildren(code(visible(text))) },
      `Show all ${text.length.toLocaleString("en")} characters`,
    ),
  );
  return place;
}

/** The JSON of something, folded. */
export const jsonFold = (value, label = "JSON") => fold(label, () => longCode(pretty(value)));
