// The quieter tabs of a session: messages, files and sources, memory, log.

import { get } from "../api.js";
import { fill, h, icon, ICONS } from "../dom.js";
import { bytes, clock, dateAndTime, plainLine, visible, words } from "../format.js";
import { sessionPath } from "../me.js";
import { empty, errorBox, fold, since, table } from "../ui.js";
import { jsonFold, longText, messageList } from "./message_view.js";

/** A place that fills once what it shows has come; `load()` reads and builds. */
function later(load) {
  const place = h("div", { class: "tab-part" }, h("p", { class: "soft" }, "Loading…"));
  load().then(
    (content) => fill(place, content),
    (error) => fill(place, errorBox(error)),
  );
  return place;
}

export const messagesTab = (session) =>
  later(async () => {
    const { data } = await get(sessionPath(session, "/messages"));
    return data.length ? messageList(data) : empty("Nothing was said yet.");
  });

/* Files and sources */

export const filesTab = (session) =>
  later(async () => {
    const [files, sources] = await Promise.all([
      get(sessionPath(session, "/artifacts")),
      get(sessionPath(session, "/sources")),
    ]);
    return [
      part(
        "Files",
        sessionPath(session, "/artifacts"),
        files.data.length ? fileTable(files.data) : h("p", { class: "soft" }, "Its tools made no files."),
      ),
      part(
        "Sources",
        sessionPath(session, "/sources"),
        sources.data.length ? sources.data.map(sourceView) : h("p", { class: "soft" }, "Its tools found no sources."),
      ),
    ];
  });

function part(label, address, ...content) {
  return h(
    "section",
    { class: "part" },
    h(
      "header",
      { class: "part-head" },
      h("h2", {}, label),
      h(
        "a",
        {
          class: "button plain small",
          href: address,
          target: "_blank",
          rel: "noopener",
          "aria-label": `${label} as JSON`,
        },
        "JSON",
      ),
    ),
    ...content,
  );
}

function fileTable(files) {
  const rows = files.map((file) => [
    h(
      "a",
      { href: new URL(file.download, location.origin).href, download: true, title: visible(file.path) },
      icon(ICONS.file),
      " ",
      plainLine(file.path, 80),
    ),
    plainLine(file.media_type, 60),
    bytes(file.size),
    h("span", { class: "mono" }, plainLine(file.call_id, 40)),
    since(file.created_at),
  ]);
  return table(["Name", "Type", ["Size", "number"], "Made by", ["Age", "number"]], rows);
}

function sourceView({ number, url, title, snippet, full_content: content }) {
  const name = `${number ? `[${number}] ` : ""}${plainLine(title || url, 120)}`;
  const isWeb = /^https?:/i.test(url);
  return h(
    "article",
    { class: "source" },
    isWeb
      ? h("a", { href: url, target: "_blank", rel: "noopener noreferrer nofollow", dir: "auto" }, name)
      : h("strong", { dir: "auto" }, name),
    h("div", { class: "soft small source-url" }, visible(url)),
    snippet ? h("p", { dir: "auto" }, visible(snippet)) : null,
    content ? fold("What was read", () => longText(content)) : null,
  );
}

/* Memory */

export const memoryTab = (session) =>
  later(async () => {
    const memory = await get(sessionPath(session, "/memory"));
    const none = (text) => h("p", { class: "soft" }, text);
    return [
      memory.enabled ? null : h("p", { class: "watch-note" }, "Working memory is off for this agent."),
      memory.current_query ? h("p", { dir: "auto" }, "Looks for: ", h("q", {}, visible(memory.current_query))) : null,
      section(
        "Outlines",
        memory.outlines.length,
        memory.outlines.map(outlineView),
        none("No document's outline was read."),
      ),
      section(
        "Chunks",
        memory.chunks.length,
        memory.chunks.map(chunkView),
        none("Nothing is kept of what its tools read."),
      ),
      section(
        "Recalled",
        memory.recalled.length,
        memory.recalled.map(itemView),
        none("Nothing was recalled from other conversations."),
      ),
      section(
        "Interactions from elsewhere",
        memory.interactions.length,
        memory.interactions.map(itemView),
        none("None."),
      ),
      jsonFold(memory),
    ];
  });

function section(label, number, content, none) {
  return h(
    "section",
    { class: "part" },
    h("header", { class: "part-head" }, h("h2", {}, label), h("span", { class: "facet-count" }, String(number))),
    number ? content : none,
  );
}

function outlineView({ reg_id: document, chapters }) {
  return fold(`${plainLine(document, 80)} · ${chapters.length} chapters`, () =>
    h(
      "ol",
      {},
      chapters.map((title) =>
        h("li", { dir: "auto" }, visible(typeof title === "string" ? title : JSON.stringify(title))),
      ),
    ),
  );
}

function chunkView({ content, source, relevance_score: score, chunk_type: kind, metadata }) {
  const share = Math.max(0, Math.min(1, score));
  const bar = h("i", {});
  bar.style.width = `${share * 100}%`;
  const place = Object.entries(metadata ?? {})
    .filter(([, value]) => ["string", "number"].includes(typeof value))
    .map(([name, value]) => `${name} ${value}`)
    .join(" · ");
  return h(
    "article",
    { class: "chunk" },
    h(
      "header",
      {},
      h(
        "span",
        { class: "relevance", title: "Relevance" },
        h("span", { class: "relevance-bar", "aria-hidden": "true" }, bar),
        score.toFixed(2),
      ),
      h("strong", { dir: "auto" }, plainLine(source, 100)),
      h("span", { class: "soft small" }, words(kind)),
      h("span", { class: "soft small" }, plainLine(place, 100)),
    ),
    longText(content, 600),
  );
}

function itemView(item) {
  const text = item.content ?? item.text ?? "";
  const told = [item.source ?? item.agent, item.type, item.conversation_id ?? item.conversation]
    .filter((one) => typeof one === "string" && one)
    .map((one) => plainLine(one, 60));
  const at = item.at ?? item.timestamp ?? item.created_at;
  return h(
    "article",
    { class: "chunk" },
    h(
      "header",
      {},
      h("span", { class: "soft small" }, told.join(" · ")),
      at ? h("span", { class: "soft small" }, dateAndTime(at)) : null,
    ),
    typeof text === "string" && text ? longText(text, 600) : null,
    jsonFold(item),
  );
}

/* Log */

export const logTab = (session) =>
  later(async () => {
    const log = await get(sessionPath(session, "/log"));
    return [
      h("p", { class: "soft", dir: "auto" }, plainLine(log.task ?? "", 300)),
      log.log.length ? h("div", { class: "log" }, log.log.map(logEntry)) : empty("The log is empty."),
      jsonFold({ ...log, log: undefined }, "Model and tools"),
    ];
  });

const LOG_TEXT = ["agent_tool_execution_result", "answer", "error", "summary", "task", "clarification"];

function logEntry(entry) {
  const text =
    LOG_TEXT.map((name) => entry[name]).find((one) => typeof one === "string" && one) ??
    JSON.stringify(entry.agent_reasoning ?? "");
  const isFault = String(entry.agent_tool_execution_result ?? "").startsWith("Error: ");
  const element = h(
    "details",
    {
      class: ["log-entry", entry.step_type, isFault && "fault"],
      ontoggle: () => {
        if (element.open && element.children.length < 2) element.append(jsonFold(entry), longText(text));
      },
    },
    h(
      "summary",
      {},
      h("span", { class: "number soft" }, String(entry.step_number)),
      h("span", { class: "event-time" }, clock(entry.timestamp)),
      h("span", { class: "event-kind" }, words(entry.step_type)),
      entry.tool_name ? h("span", { class: "mono" }, plainLine(entry.tool_name, 50)) : null,
      h("span", { class: "event-text", dir: "auto" }, plainLine(text, 160)),
    ),
  );
  return element;
}
