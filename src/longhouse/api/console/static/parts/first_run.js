// The first visit: that the built-in demo model answers, how to use a model of one's own, and three prompts to try.

import { post } from "../api.js";
import { fill, h, icon, ICONS } from "../dom.js";
import { isAdmin, me } from "../me.js";
import { actButton, code, dialog } from "../ui.js";

/** What the demo model plays for each agent; each shows one thing that other servers have no place for. */
export const PROMPTS = [
  { agent: "tool_calling_agent", shape: "question", title: "A question", text: "What time is it where I am?",
    says: "The agent asks you back, and waits for as long as you like." },
  { agent: "master", shape: "agent", title: "A sub-agent", text: "My name is Aliya and I live in Oslo.",
    says: "One agent gives a task to another one, which remembers." },
  { agent: "secretary", shape: "shield", title: "An approval", text: "Write a letter to Bob: the meeting is on Friday.",
    says: "A tool does not begin before you have agreed." },
];

/** The strip above every screen while the demo model answers. */
export function demoStrip() {
  if (!me()?.is_demo) return null;
  return h("div", { class: "strip demo-strip", role: "note" },
    h("span", {}, h("strong", {}, "Demo model."), " A script answers", h("span", { class: "wide" }, ": no model is set, and nothing leaves this machine"), "."),
    h("button", { type: "button", class: "button small", onclick: useYourModel }, "Use your own model"));
}

/** The three prompts; `onChoose(prompt)` sends one. */
export function examplePrompts(agents, onChoose) {
  const known = new Set(agents.map((one) => one.id));
  const shown = PROMPTS.filter((one) => known.has(one.agent));
  if (!shown.length) return null;
  return h("div", { class: "examples" }, shown.map((one) => h("button", { type: "button", class: "example", onclick: () => onChoose(one) },
    h("span", { class: "example-head" }, icon(ICONS[one.shape]), one.title), h("span", { class: "example-text" }, `“${one.text}”`),
    h("span", { class: "soft small" }, one.says))));
}

const field = (label, attributes) => h("label", {}, label, h("input", { autocomplete: "off", spellcheck: "false", ...attributes }));

function useYourModel() {
  dialog("Use your own model", () => {
    const address = field("Address of an OpenAI-compatible endpoint", { type: "url", placeholder: "https://api.example.com/v1" });
    const model = field("Model", { type: "text", placeholder: "gpt-4o-mini" });
    const key = field("API key (used for this check only, not kept)", { type: "password" });
    const found = h("div", { class: "probe-result", role: "status" });
    const lines = h("div", {});
    const value = (one) => one.querySelector("input").value.trim();
    const show = () => fill(lines, code(settings(value(address), value(model)), "shell"));
    for (const one of [address, model]) one.addEventListener("input", show);
    show();
    return [
      h("p", {}, "Longhouse talks to any OpenAI-compatible endpoint, also to one on this machine. Set these and start it again:"), lines,
      isAdmin() ? [h("h3", {}, "Try an endpoint first"), address, model, key,
        h("div", { class: "row" }, actButton("Probe", () => probe(found, value(address), value(model), value(key)), { tone: "primary" })), found] : null,
    ];
  });
}

function settings(address, model) {
  const quoted = (text) => (/^[\w./:@-]*$/.test(text) ? text : `'${text.replaceAll("'", "'\\''")}'`);
  return [
    `export LONGHOUSE_LLM_BASE_URL=${quoted(address || "https://api.example.com/v1")}`,
    "export LONGHOUSE_LLM_API_KEY=...",
    `export LONGHOUSE_LLM_MODEL=${quoted(model || "gpt-4o-mini")}`,
  ].join("\n");
}

async function probe(place, address, model, key) {
  fill(place, h("p", { class: "soft" }, "Asking the endpoint a few short questions…"));
  try {
    const asked = { base_url: address, ...(model ? { model } : {}), ...(key ? { api_key: key } : {}) };
    fill(place, sentences(await post("/admin/models/probe", asked)));
  } catch (error) {
    fill(place, h("p", { class: "failure-text" }, error.message));
  }
}

function sentences(answer) {
  const lines = answer.sentences ?? answer.data ?? [];
  return h("ul", { class: "probe-lines" }, lines.map((one) => {
    const [tone, text] = typeof one === "string" ? ["quiet", one] : [one.tone ?? "quiet", one.text ?? ""];
    return h("li", {}, h("span", { class: ["mark", tone], "aria-hidden": "true" }), h("span", {}, text));
  }));
}
