// Memory files: what agents keep for later. By scope and user, with the last writer; to be corrected and erased.

import { get, put, remove, withQuery } from "../api.js";
import { fill, h, icon, ICONS } from "../dom.js";
import { bytes, plainLine, visible } from "../format.js";
import { me } from "../me.js";
import { remember } from "../router.js";
import { walking } from "../shortcuts.js";
import { actButton, button, confirmed, dialog, empty, errorBox, say, since } from "../ui.js";

const PATH = "/v1/memory/files";
const SCOPES = [
  ["", "all scopes"],
  ["owner", "of the owner"],
  ["agent", "of one agent"],
  ["conversation", "of one conversation"],
];

export async function memoryFiles(parameters, query) {
  const screen = new MemoryScreen(query);
  await screen.load();
  if (screen.rows.length && matchMedia("(min-width: 761px)").matches) await screen.open(screen.rows[0]);
  return {
    name: "memory",
    title: "Memory",
    json: withQuery(PATH, screen.asked()),
    node: screen.node,
    tools: button("New file", () => screen.create(), { tone: "primary", shape: "plus" }),
    keys: {
      ...walking(
        () => [...screen.list.querySelectorAll(".memory-row")],
        (row) => row.click(),
      ),
      n: ["New file", () => screen.create()],
    },
  };
}

const pathOf = (path) => `${PATH}/${path.split("/").map(encodeURIComponent).join("/")}`;

/** What names the scope of a file in a query. */
const placeOf = ({ scope, agent, user, conversation_id: conversation }) => ({
  scope,
  agent,
  user,
  conversation_id: conversation,
});

class MemoryScreen {
  constructor(query) {
    this.user = h("input", {
      type: "text",
      value: query.user ?? me().owner,
      placeholder: "nobody named",
      "aria-label": "User",
      onchange: () => this.reload(),
    });
    this.scope = h(
      "select",
      { "aria-label": "Scope", onchange: () => this.reload() },
      SCOPES.map(([value, label]) => h("option", { value }, label)),
    );
    this.scope.value = query.scope ?? "";
    this.agent = h("input", {
      type: "text",
      value: query.agent ?? "",
      placeholder: "any agent",
      "aria-label": "Agent",
      onchange: () => this.reload(),
    });
    this.filter = h("input", {
      type: "search",
      placeholder: "Search paths",
      "aria-label": "Search paths",
      data: { search: "" },
      oninput: () => this.show(),
    });
    this.list = h("div", { class: "memory-list", role: "list" });
    this.place = h(
      "section",
      { class: "card memory-file", "aria-label": "File" },
      h("p", { class: "soft" }, "Choose a file to read it."),
    );
    this.rows = [];
    this.node = h(
      "div",
      { class: "memory" },
      h(
        "form",
        { class: "row memory-filters", onsubmit: (event) => event.preventDefault() },
        h("label", {}, "User", this.user),
        h("label", {}, "Scope", this.scope),
        h("label", {}, "Agent", this.agent),
        h("label", {}, "Path", this.filter),
      ),
      h("div", { class: "memory-sides" }, this.list, this.place),
    );
  }

  asked() {
    return { user: this.user.value.trim(), scope: this.scope.value, agent: this.agent.value.trim() };
  }

  async reload() {
    remember(this.asked());
    await this.load();
  }

  async load(more = false) {
    try {
      const page = await get(PATH, { ...this.asked(), limit: 100, before: more ? this.next : null });
      this.rows = more ? [...this.rows, ...page.data] : page.data;
      this.next = page.has_more ? page.next : null;
      this.show();
    } catch (error) {
      this.rows = [];
      fill(this.list, errorBox(error));
    }
  }

  show() {
    const words = this.filter.value.trim().toLowerCase();
    const rows = this.rows.filter((one) => one.path.toLowerCase().includes(words));
    fill(
      this.list,
      rows.length
        ? rows.map((one) => this.row(one))
        : empty(
            this.rows.length
              ? "No path fits."
              : "Nothing is remembered here yet. Agents keep files with their memory tools.",
          ),
      this.next ? actButton("More", () => this.load(true)) : null,
    );
  }

  row(one) {
    return h(
      "button",
      {
        type: "button",
        role: "listitem",
        class: "memory-row",
        "aria-current": this.isOpen(one) ? "true" : null,
        onclick: () => this.open(one),
      },
      icon(ICONS.file),
      h(
        "span",
        { class: "memory-words" },
        h("span", { class: "memory-path", dir: "auto" }, visible(one.path)),
        h("span", { class: "soft small" }, scopeWords(one), ` · ${bytes(one.size)} · `, since(one.updated_at)),
      ),
    );
  }

  isOpen(one) {
    return (
      this.opened &&
      this.opened.path === one.path &&
      JSON.stringify(placeOf(this.opened)) === JSON.stringify(placeOf(one))
    );
  }

  async open(one) {
    try {
      this.opened = await get(pathOf(one.path), placeOf(one));
      this.showFile();
    } catch (error) {
      fill(this.place, errorBox(error));
    }
    this.show();
  }

  showFile() {
    const one = this.opened;
    const text = h("textarea", {
      class: "memory-text",
      rows: 18,
      value: one.content,
      "aria-label": `Content of ${one.path}`,
      dir: "auto",
      oninput: () => {
        save.disabled = text.value === one.content;
      },
    });
    const save = actButton("Save", () => this.save(one, text.value), { tone: "primary" });
    fill(
      this.place,
      h(
        "header",
        { class: "row" },
        h("h2", { class: "memory-title", dir: "auto" }, visible(one.path)),
        h("span", { class: "chip" }, scopeWords(one)),
      ),
      h(
        "p",
        { class: "soft small" },
        "Written last by ",
        writer(one.written_by),
        ", ",
        since(one.updated_at),
        `, ${bytes(one.size)}.`,
      ),
      text,
      h(
        "div",
        { class: "row end" },
        actButton("Erase", () => this.erase(one), { tone: "danger" }),
        save,
      ),
    );
    save.disabled = true;
  }

  async save(one, content) {
    const before = one.updated_at;
    const now = await get(pathOf(one.path), placeOf(one)).catch(() => null);
    const isOvertaken = now && now.updated_at !== before;
    if (
      isOvertaken &&
      !(await confirmed(
        "Somebody wrote this file meanwhile",
        `It was written ${new Date(now.updated_at).toLocaleTimeString()}. Your text would take the place of that.`,
        "Write mine",
      ))
    )
      return;
    await put(withQuery(pathOf(one.path), placeOf(one)), { content });
    say("It is written. Agents read it from their next step on.");
    await this.load();
    await this.open(one);
  }

  async erase(one) {
    if (
      !(await confirmed(`Erase ${one.path}?`, "Its content is in no recall any more. This cannot be undone.", "Erase"))
    )
      return;
    await remove(withQuery(pathOf(one.path), placeOf(one)));
    say("It is erased.");
    this.opened = null;
    fill(this.place, h("p", { class: "soft" }, "Choose a file to read it."));
    await this.load();
  }

  async create() {
    const made = await dialog("New memory file", (close) => newFile(this.asked(), close));
    if (!made) return;
    await this.load();
    await this.open(made);
  }
}

function newFile(asked, close) {
  const path = h("input", { type: "text", placeholder: "people/ann.md", "aria-label": "Path" });
  const scope = h(
    "select",
    { "aria-label": "Scope" },
    h("option", { value: "owner" }, "of the owner: every agent and user"),
    h("option", { value: "agent" }, "of one agent with this user"),
  );
  const agent = h("input", { type: "text", value: asked.agent, placeholder: "the agent's name" });
  const content = h("textarea", { rows: 8, "aria-label": "Content", dir: "auto" });
  const error = h("p", { class: "field-error", role: "alert", hidden: true });
  scope.value = asked.agent ? "agent" : "owner";
  const make = async () => {
    const place = { scope: scope.value, user: asked.user, agent: scope.value === "agent" ? agent.value.trim() : "" };
    try {
      close(await put(withQuery(pathOf(path.value.trim()), place), { content: content.value }));
    } catch (problem) {
      error.textContent = problem.message;
      error.hidden = false;
    }
  };
  return [
    h("label", {}, "Path", path),
    h("label", {}, "Scope", scope),
    h("label", {}, "Agent", agent),
    h("label", {}, "Content", content),
    error,
    h("div", { class: "row end" }, actButton("Write", make, { tone: "primary" })),
  ];
}

function scopeWords({ scope, agent, user, conversation_id: conversation }) {
  if (scope === "owner") return "owner";
  if (scope === "conversation") return `conversation ${plainLine(conversation, 24)}`;
  return [
    agent ? visible(agent) : scope,
    user ? `with ${visible(user)}` : conversation ? `in ${plainLine(conversation, 24)}` : "",
  ]
    .filter(Boolean)
    .join(" ");
}

function writer(by) {
  if (by.key) return `key ${plainLine(by.key, 40)}`;
  if (!by.session_id) return "somebody";
  return h("a", { href: `/sessions/${encodeURIComponent(by.session_id)}` }, visible(by.agent ?? by.session_id));
}
