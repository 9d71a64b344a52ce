// Agents: what each can and how it does; one of them with its versions, its editor, and a chat to try it.

import { get, post, put } from "../api.js";
import { fill, h, icon, ICONS } from "../dom.js";
import { plainLine, visible } from "../format.js";
import { go, remember } from "../router.js";
import { walking } from "../shortcuts.js";
import { actButton, badge, button, code, confirmed, empty, fold, say, since, tabs } from "../ui.js";
import { descriptorEditor, plainOf } from "../parts/descriptor_editor.js";
import { agentFigures, loadStatistics } from "../parts/figures.js";
import { filterBox, wholeList } from "../parts/filter_box.js";
import { sideChat } from "../parts/side_chat.js";
import { versionList } from "../parts/version_list.js";

const PATH = "/admin/templates";
const pathOf = (name) => `${PATH}/${encodeURIComponent(name)}`;

const FIRST_DRAFT = {
  name: "",
  base_agent_class: "ToolCallingAgent",
  multi_agent_meta: { capabilities: "", tags: [] },
  prompt_pack: {
    system_prompt:
      "You are a careful assistant that works step by step with tools.\nWhen you know enough, end with finalanswertool, in the language of the user.\nToday is {current_date}.",
  },
  tool_policy: { required: ["finalanswertool"], allowlist: ["clarificationtool"] },
};

export async function agentList(parameters, query) {
  if (query.new !== undefined) return newAgent();
  const [agents, figures] = await Promise.all([
    wholeList((before) => get(PATH, { limit: 200, before })),
    loadStatistics().catch(() => null),
  ]);
  const sorted = agents.sort(
    (a, b) => (figures?.agents.get(b.name)?.turns ?? 0) - (figures?.agents.get(a.name)?.turns ?? 0),
  );
  const cards = sorted.map((one) => agentCard(one, figures?.agents.get(one.name)));
  const none = h("p", { class: "empty", hidden: true }, "No agent fits these words.");
  const filter = filterBox("Search agents", () => cards, none);
  return {
    name: "agents",
    title: "Agents",
    json: PATH,
    tools: button("New agent", () => go("/catalog/agents?new"), { tone: "primary", shape: "plus" }),
    node: agents.length
      ? h(
          "div",
          { class: "stack" },
          h(
            "div",
            { class: "row" },
            filter.input,
            h("span", { class: "soft small" }, `${agents.length} agents; figures of the last 24 hours`),
          ),
          h("div", { class: "cards catalog" }, cards),
          none,
        )
      : empty("There is no agent yet.", h("a", { class: "button", href: "/catalog/agents?new" }, "Make one")),
    keys: { ...walking(() => cards.filter((one) => !one.hidden)), n: ["New agent", () => go("/catalog/agents?new")] },
  };
}

function agentCard(one, figures) {
  const { capabilities = "", tags = [] } = one.multi_agent_meta ?? {};
  return h(
    "article",
    {
      class: "card catalog-card",
      tabindex: "-1",
      data: { words: [one.name, capabilities, ...tags].join(" ").toLowerCase() },
    },
    h(
      "header",
      { class: "row" },
      icon(ICONS.agent),
      h("h2", {}, h("a", { href: `/catalog/agents/${encodeURIComponent(one.name)}` }, visible(one.name))),
      stand(one),
    ),
    h(
      "p",
      { class: "can", dir: "auto" },
      plainLine(capabilities, 220) || h("span", { class: "soft" }, "It does not say what it can."),
    ),
    h(
      "div",
      { class: "row chips" },
      tags.slice(0, 6).map((tag) => h("span", { class: "chip" }, visible(tag))),
      one.owner ? h("span", { class: "chip", title: "Only this owner sees it" }, `of ${visible(one.owner)}`) : null,
    ),
    agentFigures(figures),
  );
}

/** Which version is active, and whether a newer one waits. */
function stand(one) {
  if (!one.is_active) return badge("off", "quiet");
  return [badge(`v${one.version}`, "good"), one.latest > one.version ? badge(`draft v${one.latest}`, "wait") : null];
}

function newAgent() {
  const place = h("div", { class: "wide" }, h("p", { class: "soft" }, "Loading…"));
  const save = async (value) => {
    const made = await post(PATH, value);
    say(`${made.name} is there.`);
    go(`/catalog/agents/${encodeURIComponent(made.name)}`);
  };
  descriptorEditor("Template", FIRST_DRAFT, { save, isNew: true }).then(
    (editor) => fill(place, editor),
    (error) => fill(place, h("p", { role: "alert" }, error.message)),
  );
  return {
    name: "agents",
    title: "New agent",
    node: place,
    tools: h("a", { class: "button plain", href: "/catalog/agents" }, "All agents"),
  };
}

export async function oneAgent({ name }, query) {
  const [agent, figures] = await Promise.all([get(pathOf(name)), loadStatistics().catch(() => null)]);
  return new AgentScreen(agent, figures?.agents.get(name), query).screen();
}

class AgentScreen {
  constructor(agent, figures, query) {
    this.agent = agent;
    this.figures = figures;
    this.side = h("div", { class: "side-place" });
    this.head = h("div", { class: "catalog-head" });
    this.showHead();
    this.tabs = tabs(
      [
        ["about", "What it is", () => this.about()],
        ["edit", "Edit", () => this.editor()],
        ["versions", "Versions", () => this.versions()],
      ],
      query.tab ?? "about",
      (tab) => remember({ tab: tab === "about" ? "" : tab }),
    );
    this.node = h(
      "div",
      { class: "with-side" },
      h("div", { class: "side-main" }, this.head, this.tabs.element),
      this.side,
    );
  }

  screen() {
    return {
      name: "agent",
      title: this.agent.name,
      json: pathOf(this.agent.name),
      node: this.node,
      tools: h("a", { class: "button plain", href: "/catalog/agents" }, "All agents"),
      keys: {
        t: ["Try it in a side chat", () => this.tryVersion(this.agent.version)],
        e: ["Edit", () => this.tabs.choose("edit")],
      },
      close: () => this.chat?.close(),
    };
  }

  showHead() {
    const { agent } = this;
    const draft = agent.is_active && agent.latest > agent.version ? agent.latest : null;
    fill(
      this.head,
      h(
        "div",
        { class: "row" },
        agent.is_active ? badge(`version ${agent.version} is active`, "good") : badge("no version is active", "quiet"),
        h(
          "span",
          { class: "soft small" },
          "published ",
          since(agent.published_at),
          ` by ${plainLine(agent.published_by, 40)}`,
        ),
        h("span", { class: "grow" }),
        h(
          "div",
          { class: "row" },
          agent.is_active ? button("Try it", () => this.tryVersion(agent.version), { shape: "chat" }) : null,
          h(
            "a",
            { class: "button", href: `/sessions?agent=${encodeURIComponent(agent.name)}` },
            icon(ICONS.sessions),
            "Sessions",
          ),
          agent.latest < 2 && agent.is_active
            ? null
            : actButton("Roll back", () => this.rollBack(), {
                title: "Makes the version active that was active before",
              }),
          agent.is_active ? actButton("Switch off", () => this.switchOff(), { tone: "danger" }) : null,
        ),
      ),
      draft ? this.draftStrip(draft) : null,
      h("p", { class: "can", dir: "auto" }, visible(agent.multi_agent_meta?.capabilities ?? "")),
      agentFigures(this.figures),
    );
  }

  draftStrip(version) {
    return h(
      "div",
      { class: "draft-strip row" },
      h("span", {}, h("strong", {}, `Version ${version} is a draft.`), " Nobody uses it until it is active."),
      h("span", { class: "grow" }),
      h(
        "div",
        { class: "row" },
        button("Try it", () => this.tryVersion(version)),
        button("What changed", () => this.tabs.choose("versions")),
        actButton("Activate", () => this.activate(version), { tone: "primary" }),
      ),
    );
  }

  about() {
    const { agent } = this;
    const policy = agent.tool_policy ?? {};
    const limits = agent.execution_policy ?? {};
    const model = agent.llm_policy ?? {};
    return h(
      "div",
      { class: "stack" },
      h(
        "section",
        { class: "card" },
        h("h3", {}, "What it is told"),
        code(visible(agent.prompt_pack?.system_prompt ?? ""), "system prompt"),
      ),
      h(
        "section",
        { class: "card" },
        h("h3", {}, "Tools"),
        toolLinks("Offered in every step", policy.required),
        policy.allowlist
          ? toolLinks("And these", policy.allowlist)
          : h("p", {}, "It may use every tool of the catalog; search offers it those that fit."),
        toolLinks("Never", policy.denylist),
        h(
          "p",
          { class: "soft small" },
          `${policy.max_tools_in_prompt === "auto" ? "Tools are offered all where they are few, else the named ones and the best of the others" : `At most ${policy.max_tools_in_prompt} tools are offered at once`}, of risk up to ${policy.max_risk_level}; chosen by ${words(policy.selection_strategy)}.`,
        ),
      ),
      h(
        "section",
        { class: "card" },
        h("h3", {}, "Model and limits"),
        pairs([
          ["Strategy", agent.base_agent_class],
          ["Model", model.model ?? "that of the settings"],
          ["Temperature", model.temperature ?? "the endpoint's own"],
          ["Steps", limits.max_iterations],
          ["Questions to people", limits.max_clarifications],
          ["Time", `${limits.time_budget} s of work`],
          ["Memory", words(agent.memory_policy?.scope)],
          [
            "New turns use",
            agent.follow === "pinned" ? "the version that the session began with" : "the active version",
          ],
        ]),
      ),
      fold("Everything, as JSON", () => code(JSON.stringify(plainOf(agent), null, 2), "json")),
    );
  }

  async editor() {
    const { agent } = this;
    const newest = agent.latest > agent.version ? await get(`${pathOf(agent.name)}@${agent.latest}`) : agent;
    return descriptorEditor("Template", newest, { save: (value, activate) => this.save(value, activate) });
  }

  async save(value, activate) {
    const saved = await put(`${pathOf(this.agent.name)}?activate=${activate}`, value);
    for (const warning of saved.warnings ?? []) say(warning, "bad");
    say(activate ? `Version ${saved.version} is active.` : `Version ${saved.version} is a draft: try it in the chat.`);
    await this.reload();
    if (!activate) this.tryVersion(saved.version);
  }

  versions() {
    const canTry = this.agent.is_active;
    return versionList(pathOf(this.agent.name), {
      changed: () => this.reload("versions"),
      tryVersion: canTry ? (version) => this.tryVersion(version) : null,
    });
  }

  async reload(tab = null) {
    this.agent = await get(pathOf(this.agent.name));
    this.showHead();
    if (tab) this.tabs.choose(tab);
  }

  tryVersion(version) {
    this.chat?.close();
    this.chat = sideChat(this.agent.name, version, () => {
      this.chat = null;
      fill(this.side);
    });
    fill(this.side, this.chat.node);
    this.chat.focus();
  }

  async activate(version) {
    await post(`${pathOf(this.agent.name)}/activate`, { version });
    say(`Version ${version} is active. Running turns keep theirs.`);
    await this.reload(new URLSearchParams(location.search).get("tab"));
  }

  async rollBack() {
    const back = await post(`${pathOf(this.agent.name)}/rollback`);
    say(`Version ${back.version} is active again.`);
    await this.reload(new URLSearchParams(location.search).get("tab"));
  }

  async switchOff() {
    const text = "No new conversation can use it, and agents cannot call it. A roll back brings it back.";
    if (!(await confirmed(`Switch ${this.agent.name} off?`, text, "Switch off"))) return;
    await post(`${pathOf(this.agent.name)}/deactivate`);
    await this.reload();
  }
}

function toolLinks(label, names) {
  if (!names?.length) return null;
  return h(
    "p",
    {},
    h("span", { class: "soft" }, `${label}: `),
    names.map((name, nth) => [
      nth ? ", " : "",
      name.includes("*")
        ? visible(name)
        : h("a", { href: `/catalog/tools/${encodeURIComponent(name)}` }, visible(name)),
    ]),
  );
}

const words = (name) => String(name ?? "–").replaceAll("_", " ");

export function pairs(rows) {
  return h(
    "dl",
    { class: "pairs" },
    rows
      .filter(([, value]) => value !== null && value !== undefined && value !== "")
      .map(([name, value]) => [
        h("dt", {}, name),
        h("dd", { dir: "auto" }, value instanceof Node ? value : visible(String(value))),
      ]),
  );
}
