// A chat beside the page, with one version of an agent: to try what is not active yet.

import { stream } from "../api.js";
import { at } from "../base.js";
import { fill, h, icon, ICONS } from "../dom.js";
import { me, sessionPath } from "../me.js";
import { actButton, say } from "../ui.js";
import { followInPlace } from "./page_lines.js";
import { hold } from "./question_card.js";
import { add, isRunning, newTalk, openQuestions } from "./talk.js";
import { TalkView } from "./talk_view.js";

/** `{node, close, focus}`; every message names the version, since a session would go on with the active one. */
export function sideChat(name, version, onClose) {
  const conversation = `try-${[...crypto.getRandomValues(new Uint32Array(4))].map((one) => one.toString(16)).join("")}`;
  const place = h("div", { class: "side-chat-talk" });
  const link = h("a", { class: "small", hidden: true }, "Timeline");
  const input = h("textarea", {
    rows: 2,
    placeholder: `Write to version ${version}…`,
    "aria-label": "Message",
    onkeydown: onKey,
    dir: "auto",
  });
  const sendButton = actButton("Send", submit, { tone: "primary" });
  let session = null;
  let talk = null;
  let view = null;
  let line = null;
  let isOpen = false;
  let drawing = null;

  function onKey(event) {
    if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
    event.preventDefault();
    if (!sendButton.disabled) sendButton.click();
  }

  async function submit() {
    const text = input.value.trim();
    if (!text) return;
    input.value = "";
    if (view) view.showPending(text, []);
    else fill(place, h("p", { class: "soft small" }, "Sending…"));
    try {
      const id = await prompt(text);
      if (id !== session) begin(id);
    } catch (error) {
      input.value = text;
      if (view) view.dropPending();
      else fill(place, welcome());
      throw error;
    }
  }

  async function prompt(text) {
    const leave = new AbortController();
    const asked = {
      model: `${name}@${version}`,
      stream: true,
      user: me().owner,
      metadata: { conversation_id: conversation },
      messages: [{ role: "user", content: text }],
    };
    for await (const { data } of stream("/v1/chat/completions", asked, leave.signal)) {
      const chunk = JSON.parse(data);
      leave.abort();
      if (chunk.error) throw new Error(chunk.error.message);
      return chunk.model;
    }
    throw new Error("The server closed the line before it took the message. Please send it again.");
  }

  function begin(id) {
    close();
    session = id;
    talk = newTalk(id);
    view = new TalkView(talk, { waits: () => false });
    fill(place, view.node);
    link.href = at(`/sessions/${encodeURIComponent(id)}`);
    link.hidden = false;
    line = followInPlace(sessionPath(id, "/events"), {
      parameters: { tree: "true", until: "never" },
      onEvent: hear,
      onState: (state) => {
        isOpen = state === "open";
        hold(view.list, !isOpen);
      },
      onError: (error) => say(error.message, "bad"),
    });
  }

  function hear(event) {
    if (ENDS_PENDING.has(event.event)) view.endPending();
    add(talk, event);
    drawing ??= requestAnimationFrame(() => {
      drawing = null;
      view.update();
      hold(view.list, !isOpen);
      const isAsked = openQuestions(talk).some((one) => one.kind === "question");
      input.placeholder = isAsked
        ? "Your message answers the question above…"
        : isRunning(talk)
          ? "It works…"
          : `Write to version ${version}…`;
    });
  }

  function close() {
    line?.stop();
    view?.close();
    line = null;
  }

  const welcome = () =>
    h(
      "p",
      { class: "soft side-chat-none" },
      `Only you talk to version ${version} here. Everybody else talks to the active one.`,
    );
  fill(place, welcome());
  const node = h(
    "aside",
    { class: "side-chat", "aria-label": `Chat with ${name}, version ${version}` },
    h(
      "header",
      { class: "row" },
      h("strong", {}, `Try version ${version}`),
      link,
      h("span", { class: "grow" }),
      h(
        "button",
        {
          type: "button",
          class: "button plain small",
          "aria-label": "Close the chat",
          onclick: () => {
            close();
            onClose();
          },
        },
        icon(ICONS.close),
      ),
    ),
    place,
    h("footer", {}, input, sendButton),
  );
  return { node, close, focus: () => input.focus() };
}

const ENDS_PENDING = new Set(["Prompted", "Returned", "Decided"]);
