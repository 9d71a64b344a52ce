// Tools: what each does and how it does; one of them with a form to try it, its policy, its editor and its versions.

import { get, patch, post, put, withQuery } from "../api.js";
import { fill, h, icon, ICONS } from "../dom.js";
import { count, duration, plainLine, pretty, visible } from "../format.js";
import { go, remember } from "../router.js";
import { walking } from "../shortcuts.js";
import { actButton, badge, button, code, confirmed, empty, errorBox, fold, say, since, tabs } from "../ui.js";
import { descriptorEditor, plainOf } from "../parts/descriptor_editor.js";
import { loadStatistics, toolFigures } from "../parts/figures.js";
import { filterBox, wholeList } from "../parts/filter_box.js";
import { errorsOf, schemaForm } from "../parts/schema_form.js";
import { serverCards } from "../parts/mcp_servers.js";
import { versionList } from "../parts/version_list.js";
import { pairs } from "./agents.js";

const PATH = "/admin/tools";
const pathOf = (name) => `${PATH}/${encodeURIComponent(name)}`;

const FIRST_DRAFT = {
  name: "",
  description_short: "",
  input_schema: { type: "object", properties: {}, required: [] },
  runtime_binding: { remote_endpoint: "https://" },
  effect: "read",
  timeout: 30,
};

export async function toolList(parameters, query) {
  if (query.new !== undefined) return newTool();
  const parts = tabs(
    [
      ["all", "All tools", allTools],
      ["search", "Search explained", () => searchExplained(query.q ?? "")],
      ["servers", "MCP servers", mcpServers],
    ],
    query.tab ?? "all",
    (tab) => remember({ tab: tab === "all" ? "" : tab }),
  );
  return {
    name: "tools",
    title: "Tools",
    json: PATH,
    node: parts.element,
    tools: button("New tool", () => go("/catalog/tools?new"), { tone: "primary", shape: "plus" }),
    keys: {
      ...walking(() => [...parts.element.querySelectorAll(".catalog-card:not([hidden])")]),
      n: ["New tool", () => go("/catalog/tools?new")],
    },
  };
}

async function allTools() {
  const [tools, figures] = await Promise.all([
    wholeList((before) => get(PATH, { limit: 200, before })),
    loadStatistics().catch(() => null),
  ]);
  if (!tools.length) return empty("There is no tool yet.");
  const calls = (one) => figures?.tools.get(one.name)?.calls ?? 0;
  const cards = tools.sort((a, b) => calls(b) - calls(a)).map((one) => toolCard(one, figures?.tools.get(one.name)));
  const none = h(
    "p",
    { class: "empty", hidden: true },
    "No tool fits these words. ",
    h("a", { href: "/catalog/tools?tab=search" }, "Search as an agent would"),
  );
  const filter = filterBox("Search tools", () => cards, none);
  return h(
    "div",
    { class: "stack" },
    h(
      "div",
      { class: "row" },
      filter.input,
      h("span", { class: "soft small" }, `${count(tools.length)} tools; figures of the last 24 hours`),
    ),
    h("div", { class: "cards catalog" }, cards),
    none,
  );
}

function toolCard(one, figures) {
  return h(
    "article",
    {
      class: "card catalog-card",
      tabindex: "-1",
      data: { words: [one.name, one.description_short, ...one.tags].join(" ").toLowerCase() },
    },
    h(
      "header",
      { class: "row" },
      icon(one.runtime_binding.agent ? ICONS.agent : ICONS.tools),
      h("h2", {}, h("a", { href: `/catalog/tools/${encodeURIComponent(one.name)}` }, visible(one.name))),
      stand(one),
    ),
    h("p", { class: "can", dir: "auto" }, plainLine(one.description_short, 200)),
    h("div", { class: "row chips" }, chips(one)),
    toolFigures(figures),
  );
}

function stand(one) {
  if (!one.is_active) return badge("off", "quiet");
  if (one.security_overlay?.enabled === false) return badge("switched off", "bad");
  return one.latest > one.version ? badge(`v${one.latest} waits`, "wait") : null;
}

const WAYS = [
  ["python_entrypoint", "Python"],
  ["remote_endpoint", "HTTP"],
  ["mcp", "MCP"],
  ["agent", "agent"],
];

function wayOf(one) {
  if (/^grpcs?:/i.test(one.runtime_binding?.remote_endpoint ?? "")) return "gRPC";
  return WAYS.find(([name]) => one.runtime_binding?.[name])?.[1] ?? "unknown";
}

const EFFECTS = { read: "reads", idempotent: "may be repeated", once: "happens once" };

// While nobody has imported its class, only the descriptor and the operator speak of a tool.
function handlingOf(one) {
  const { effect, needs_approval: needsApproval, remembers } = one.effective ?? one;
  return { effect, needsApproval: needsApproval || one.security_overlay?.needs_approval, remembers };
}

function chips(one) {
  const { effect, needsApproval, remembers } = handlingOf(one);
  const risk = (one.effective ?? one.security_policy)?.risk_level;
  return [
    h("span", { class: "chip" }, wayOf(one)),
    effect ? h("span", { class: ["chip", effect === "once" && "wait"] }, EFFECTS[effect] ?? effect) : null,
    needsApproval ? h("span", { class: "chip wait" }, "needs approval") : null,
    risk && risk !== "low" ? h("span", { class: "chip wait" }, `${risk} risk`) : null,
    remembers ? h("span", { class: "chip" }, "remembered") : null,
    ...one.tags.slice(0, 4).map((tag) => h("span", { class: "chip" }, visible(tag))),
  ];
}

/* Search */

function searchExplained(words) {
  const input = h("input", {
    type: "search",
    value: words,
    placeholder: "What an agent wants to do, such as: send an e-mail to the customer",
    "aria-label": "Query",
    data: { search: "" },
  });
  const agent = h("input", {
    type: "text",
    placeholder: "any agent",
    "aria-label": "With the policy of this agent",
    list: "search-agents",
  });
  const found = h("div", { class: "stack" });
  const form = h(
    "form",
    { class: "row search-form", onsubmit: search },
    input,
    h("label", { class: "inline" }, "as", agent),
    h("button", { class: "button primary" }, icon(ICONS.search), "Search"),
  );
  get("/admin/templates", { limit: 200 }).then(
    ({ data }) =>
      form.append(
        h(
          "datalist",
          { id: "search-agents" },
          data.map((one) => h("option", { value: one.name })),
        ),
      ),
    () => {},
  );

  async function search(event) {
    event?.preventDefault();
    const query = input.value.trim();
    if (!query) return;
    remember({ tab: "search", q: query });
    try {
      const { data } = await post(`${PATH}/search`, {
        query,
        top_k: 12,
        ...(agent.value.trim() ? { template: agent.value.trim() } : {}),
      });
      fill(
        found,
        data.length
          ? results(data)
          : empty("Search finds no tool for this. Give the tool words that people would use for it."),
      );
    } catch (error) {
      fill(found, errorBox(error));
    }
  }

  if (words) search();
  return h(
    "div",
    { class: "stack" },
    h(
      "p",
      { class: "soft" },
      "An agent is not offered every tool in every step: search chooses those that fit. It looks in two ways at once, by the words and by their meaning; the score joins both.",
    ),
    form,
    found,
  );
}

function results(hits) {
  return h(
    "ol",
    { class: "hits" },
    hits.map((one, nth) =>
      h(
        "li",
        { class: "card hit" },
        h(
          "div",
          { class: "row" },
          h("span", { class: "soft" }, `${nth + 1}`),
          h("a", { href: `/catalog/tools/${encodeURIComponent(one.name)}` }, h("strong", {}, visible(one.name))),
          h("span", { class: "soft small" }, `v${one.version}`),
        ),
        h(
          "div",
          { class: "legs" },
          leg("Words", one.legs.lexical, "busy"),
          leg("Meaning", one.legs.semantic, "good"),
          one.legs.clause ? leg("Part of the query", one.legs.clause, "wait") : null,
          leg("Together", one.score, "ink"),
        ),
        h("p", { class: "soft small" }, why(one.legs)),
      ),
    ),
  );
}

function leg(label, share, tone) {
  const bar = h("span", { class: tone });
  bar.style.width = `${Math.round(Math.max(0, Math.min(1, share ?? 0)) * 100)}%`;
  return [
    h("span", { class: "soft small" }, label),
    h("span", { class: "meter", "aria-hidden": "true" }, bar),
    h("span", { class: "number small" }, share === null || share === undefined ? "–" : share.toFixed(2)),
  ];
}

function why({ lexical, semantic }) {
  if (lexical && semantic === null) return "Found by its words; there are no vectors to compare meanings with.";
  if (!lexical && semantic) return "Found by its meaning alone: no word of the query is in its text.";
  if (lexical && !semantic) return "Found by its words alone.";
  return lexical > semantic ? "Found by both, more by its words." : "Found by both, more by its meaning.";
}

async function mcpServers() {
  const { data } = await get("/admin/mcp");
  if (!data.length)
    return empty(
      "No MCP server is configured.",
      h("p", { class: "soft" }, "Name servers in the file of LONGHOUSE_MCP_CONFIG; their tools appear here."),
    );
  return h(
    "div",
    { class: "stack" },
    h(
      "div",
      { class: "row" },
      h("span", { class: "soft small" }, "As the process that answers sees them."),
      h("span", { class: "grow" }),
      actButton("Look again", () => go("/catalog/tools?tab=servers")),
    ),
    serverCards(data),
  );
}

/* One tool */

function newTool() {
  const place = h("div", { class: "wide" }, h("p", { class: "soft" }, "Loading…"));
  const save = async (value) => {
    const made = await post(PATH, value);
    say(`${made.name} is there.`);
    go(`/catalog/tools/${encodeURIComponent(made.name)}`);
  };
  descriptorEditor("ToolDescriptor", FIRST_DRAFT, { save, isNew: true }).then(
    (editor) => fill(place, editor),
    (error) => fill(place, errorBox(error)),
  );
  return {
    name: "tools",
    title: "New tool",
    node: place,
    tools: h("a", { class: "button plain", href: "/catalog/tools" }, "All tools"),
  };
}

export async function oneTool({ name }, query) {
  const [tool, figures] = await Promise.all([get(pathOf(name)), loadStatistics().catch(() => null)]);
  return new ToolScreen(tool, figures?.tools.get(name), query).screen();
}

class ToolScreen {
  constructor(tool, figures, query) {
    this.tool = tool;
    this.figures = figures;
    this.head = h("div", { class: "catalog-head" });
    this.showHead();
    this.tabs = tabs(
      [
        ["try", "Try it", () => this.trial()],
        ["about", "What it is", () => this.about()],
        ["policy", "Policy", () => this.policy()],
        ["edit", "Edit", () => this.editor()],
        ["versions", "Versions", () => this.versions()],
      ],
      query.tab ?? "try",
      (tab) => remember({ tab: tab === "try" ? "" : tab }),
    );
  }

  screen() {
    return {
      name: "tool",
      title: this.tool.name,
      json: pathOf(this.tool.name),
      node: h("div", { class: "stack wide" }, this.head, this.tabs.element),
      tools: h("a", { class: "button plain", href: "/catalog/tools" }, "All tools"),
      keys: { e: ["Edit", () => this.tabs.choose("edit")] },
    };
  }

  get isBuiltIn() {
    return this.tool.published_by === "longhouse";
  }

  showHead() {
    const { tool } = this;
    fill(
      this.head,
      h(
        "div",
        { class: "row" },
        tool.is_active ? badge(`version ${tool.version} is active`, "good") : badge("no version is active", "quiet"),
        chips(tool),
        h("span", { class: "grow" }),
        h(
          "a",
          { class: "button", href: withQuery("/sessions", { tool: tool.name }) },
          icon(ICONS.sessions),
          "Sessions where it failed",
        ),
        this.isBuiltIn || tool.latest < 2 ? null : actButton("Roll back", () => this.rollBack()),
      ),
      tool.is_active && tool.latest > tool.version ? this.draftStrip(tool.latest) : null,
      h("p", { class: "can", dir: "auto" }, visible(tool.description_short)),
      toolFigures(this.figures),
    );
  }

  draftStrip(version) {
    return h(
      "div",
      { class: "draft-strip row" },
      h("span", {}, h("strong", {}, `Version ${version} waits.`), " Agents use it once it is active."),
      h("span", { class: "grow" }),
      button("What changed", () => this.tabs.choose("versions")),
      actButton("Activate", () => this.activate(version), { tone: "primary" }),
    );
  }

  trial() {
    const { tool } = this;
    if (tool.runtime_binding.agent) {
      return empty(
        "This tool is an agent. Talk to it, and see each step.",
        h(
          "a",
          { class: "button", href: `/catalog/agents/${encodeURIComponent(tool.runtime_binding.agent)}` },
          "To the agent",
        ),
      );
    }
    const form = schemaForm(tool.input_schema ?? {}, {});
    const result = h(
      "div",
      { class: "trial-result", "aria-live": "polite" },
      h("p", { class: "soft" }, "What it returns appears here."),
    );
    const problem = h("p", { class: "editor-problem", role: "alert", hidden: true });

    const run = async () => {
      form.showErrors([]);
      problem.hidden = true;
      const { effect, needsApproval } = handlingOf(tool);
      const needsConfirm = effect === "once" || needsApproval;
      if (
        needsConfirm &&
        !(await confirmed(
          `Run ${tool.name} for real?`,
          "Its effect happens now, and cannot be taken back. No agent is involved, and no journal keeps it.",
          "Run it",
        ))
      )
        return;
      fill(result, h("p", { class: "soft" }, "It runs…"));
      try {
        fill(
          result,
          outcome(
            await post(`${pathOf(tool.name)}/try`, {
              arguments: form.value(),
              ...(needsConfirm ? { confirm: true } : {}),
            }),
            form,
          ),
        );
      } catch (error) {
        fill(result);
        if (!form.showErrors(errorsOf(error))) {
          problem.textContent = error.message;
          problem.hidden = false;
        }
      }
    };
    return h(
      "div",
      { class: "trial" },
      h(
        "form",
        {
          class: "card",
          onsubmit: (event) => {
            event.preventDefault();
            runButton(event).click();
          },
        },
        h("h3", {}, "Arguments"),
        form.node,
        problem,
        h("div", { class: "row end" }, actButton("Run", run, { tone: "primary run-tool" })),
      ),
      h("section", { class: "card" }, h("h3", {}, "Result"), result),
    );
  }

  about() {
    const { tool } = this;
    const { runtime_binding: binding } = tool;
    return h(
      "div",
      { class: "stack" },
      tool.description_long
        ? h(
            "section",
            { class: "card" },
            h("h3", {}, "At length"),
            h("p", { class: "plain-text" }, visible(tool.description_long)),
          )
        : null,
      h(
        "section",
        { class: "card" },
        h("h3", {}, "How it runs"),
        pairs([
          ["Runs as", wayOf(tool)],
          ["Where", binding.python_entrypoint ?? binding.remote_endpoint ?? binding.mcp ?? binding.agent],
          ["Secret", binding.api_key_ref],
          ["Effect", EFFECTS[tool.effect] ?? "as its class says"],
          ["Timeout", tool.timeout ? duration(tool.timeout) : null],
          ["Published by", tool.published_by],
          ["Published", since(tool.published_at)],
        ]),
      ),
      h(
        "section",
        { class: "card" },
        h("h3", {}, "What it takes"),
        code(JSON.stringify(tool.input_schema ?? {}, null, 2), "JSON Schema"),
      ),
      fold("Everything, as JSON", () => code(JSON.stringify(plainOf(tool), null, 2), "json")),
    );
  }

  async policy() {
    const held = await get(`${pathOf(this.tool.name)}/security_policy`);
    const { effective, described, overlay } = held;
    const change = (fields, said) =>
      actButton(said, async () => {
        await patch(`${pathOf(this.tool.name)}/security_policy`, fields);
        say("It holds from the next call on.");
        await this.reload("policy");
      });
    const row = (label, name, show = String) => [
      label,
      h(
        "span",
        {},
        show(effective[name]),
        overlay?.[name] !== undefined && overlay?.[name] !== null
          ? h("span", { class: "chip wait" }, `you set it; described as ${show(described[name])}`)
          : null,
      ),
    ];
    const rates = (one) => (one?.per_minute ? `${one.per_minute} a minute` : "no limit");
    return h(
      "div",
      { class: "stack" },
      h(
        "section",
        { class: "card" },
        h("h3", {}, "What holds"),
        pairs([
          row("Switched on", "enabled", yes),
          row("Needs approval", "needs_approval", yes),
          row("Risk", "risk_level"),
          row("Rate limit", "rate_limits", rates),
          ["Sub-agents may use it", yes(effective.allow?.sub_agents)],
          ["Agents", effective.allow?.templates?.join(", ") ?? "all"],
        ]),
        overlay?.changed_at
          ? h(
              "p",
              { class: "soft small" },
              "Changed ",
              since(overlay.changed_at),
              ` by ${plainLine(overlay.changed_by, 40)}.`,
            )
          : null,
        h(
          "div",
          { class: "row" },
          effective.enabled
            ? change({ enabled: false }, "Switch it off for all")
            : change({ enabled: null }, "Switch it on again"),
          effective.needs_approval
            ? overlay?.needs_approval
              ? change({ needs_approval: null }, "Ask nobody any more")
              : null
            : change({ needs_approval: true }, "Ask a person each time"),
        ),
      ),
      h(
        "p",
        { class: "soft small" },
        "What you set here is above every version and every publisher; it can only narrow what the tool says of itself, except the risk.",
      ),
    );
  }

  async editor() {
    if (this.isBuiltIn)
      return empty(
        "This tool comes with the program, and cannot be published by others.",
        button("Its policy can be changed", () => this.tabs.choose("policy")),
      );
    const newest =
      this.tool.latest > this.tool.version ? await get(`${pathOf(this.tool.name)}@${this.tool.latest}`) : this.tool;
    return descriptorEditor("ToolDescriptor", newest, { save: (value, activate) => this.save(value, activate) });
  }

  async save(value, activate) {
    const saved = await put(`${pathOf(this.tool.name)}?activate=${activate}`, value);
    for (const warning of saved.warnings ?? []) say(warning, "bad");
    say(activate ? `Version ${saved.version} is active.` : `Version ${saved.version} is a draft.`);
    await this.reload(activate ? "about" : "versions");
  }

  versions() {
    return versionList(pathOf(this.tool.name), { changed: () => this.reload("versions") });
  }

  async activate(version) {
    await post(`${pathOf(this.tool.name)}/activate`, { version });
    say(`Version ${version} is active.`);
    await this.reload("about");
  }

  async rollBack() {
    const back = await post(`${pathOf(this.tool.name)}/rollback`);
    say(`Version ${back.version} is active again.`);
    await this.reload("versions");
  }

  async reload(tab) {
    this.tool = await get(pathOf(this.tool.name));
    this.showHead();
    this.tabs.choose(tab);
  }
}

const yes = (value) => (value === undefined || value === null ? "–" : value ? "yes" : "no");
const runButton = (event) => event.target.querySelector(".run-tool");

function outcome(tried, form) {
  const isOk = tried.status === "ok";
  if (!isOk && tried.error.code === "bad_arguments")
    form.showErrors(errorsOf({ message: `Refused. ${tried.error.message}`, param: null }));
  return [
    h(
      "div",
      { class: "row" },
      badge(isOk ? "done" : words(tried.error.code), isOk ? "good" : "bad"),
      h("span", { class: "soft small" }, `version ${tried.version} in ${duration(tried.seconds)}`),
    ),
    isOk
      ? code(pretty(tried.content) || "(nothing)", "result")
      : h("p", { class: "plain-text", dir: "auto" }, visible(tried.error.message)),
    tried.files.length
      ? h(
          "p",
          { class: "soft small" },
          `It made ${tried.files.map((one) => visible(one.path)).join(", ")}; nothing of it is kept.`,
        )
      : null,
  ];
}

const words = (code) => String(code).replaceAll("_", " ");
