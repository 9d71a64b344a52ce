// MCP servers: whether each is connected, what it offers, and what it said last.

import { h } from "../dom.js";
import { clock, visible } from "../format.js";
import { badge, fold } from "../ui.js";

export function serverCards(servers) {
  return h(
    "div",
    { class: "cards" },
    servers.map((one) =>
      h(
        "article",
        { class: "card" },
        h(
          "header",
          { class: "row" },
          h("h3", { class: "card-title" }, visible(one.name)),
          badge(one.is_connected ? "connected" : "away", one.is_connected ? "good" : "bad"),
        ),
        h(
          "p",
          { dir: "auto" },
          one.is_connected
            ? `It offers ${one.tools.length === 1 ? "one tool" : `${one.tools.length} tools`}.`
            : `It cannot be reached: ${visible(one.trouble)}. It is tried again by itself.`,
        ),
        one.tools.length
          ? fold(one.tools.length === 1 ? "Its tool" : `Its ${one.tools.length} tools`, () =>
              h(
                "ul",
                { class: "plain-list" },
                one.tools.map((name) =>
                  h("li", {}, h("a", { href: `/catalog/tools/${encodeURIComponent(name)}` }, visible(name))),
                ),
              ),
            )
          : null,
        one.last_words.length
          ? h(
              "div",
              {},
              h("span", { class: "label" }, "Last words"),
              h(
                "pre",
                { class: "last-words", tabindex: "0" },
                one.last_words.map(({ at, text }) => `${clock(at)}  ${visible(text)}`).join("\n"),
              ),
            )
          : h("p", { class: "soft small" }, "It has written nothing yet."),
      ),
    ),
  );
}
