// Form and JSON of one descriptor side by side: a change in one is a change in the other.

import { get } from "../api.js";
import { fill, h } from "../dom.js";
import { actButton } from "../ui.js";
import { errorsOf, schemaForm } from "./schema_form.js";

/** Fields that the catalog adds to a descriptor; they are not sent back. */
const ADDED = [
  "template_id",
  "tool_id",
  "version",
  "is_active",
  "latest",
  "digest",
  "published_by",
  "published_at",
  "changed_at",
  "security_overlay",
  "effective",
  "silent",
];
const HINTS = {
  "prompt_pack.system_prompt": "What the agent is told first. {current_date} becomes today's date.",
  "multi_agent_meta.capabilities": "What it can, in a sentence: people and other agents choose it by this.",
  "llm_policy.model": "Empty: the model of the settings.",
  "llm_policy.base_url": "Empty: the endpoint of the settings.",
  "execution_policy.max_iterations": "Steps of one turn.",
  "execution_policy.time_budget": "Seconds of work in one turn; waiting for people does not count.",
  "tool_policy.required": "Offered in every step.",
  "tool_policy.allowlist": "The only other tools; empty: every tool of the catalog. server.* means all of a server.",
  "memory_policy.scope": "Whose memory files it sees.",
  "memory_policy.recall": "Items from other conversations that each turn is shown.",
  runtime_binding: "What runs it; exactly one of the ways.",
  effect: "read: changes nothing. idempotent: may be repeated. once: must not happen twice.",
  needs_approval: "A person decides before it runs.",
  timeout: "Seconds.",
};

let described = null;

/** The schemas of templates and tools, as the API describes itself. */
async function schemas() {
  described ??= get("/openapi.json");
  return described;
}

export function plainOf(descriptor) {
  return Object.fromEntries(Object.entries(descriptor).filter(([name]) => !ADDED.includes(name)));
}

/**
 * `kind`: `Template` or `ToolDescriptor`. `save(value, activate)` sends it and raises what the API refuses.
 * `isNew`: the name can be chosen, and there is no draft of what does not exist yet.
 */
export async function descriptorEditor(kind, descriptor, { save, isNew = false }) {
  const root = await schemas();
  const start = plainOf(descriptor);
  const problem = h("p", { class: "editor-problem", role: "alert", hidden: true });
  let isValid = true;
  const text = h("textarea", {
    class: "mono editor-json",
    rows: 30,
    spellcheck: "false",
    "aria-label": "JSON",
    oninput: () => fromText(),
    onchange: () => {
      if (isValid) showText(form.value());
    },
  });
  const form = schemaForm(root.components.schemas[kind], {
    root,
    value: start,
    hints: HINTS,
    fixed: isNew ? [] : ["name"],
    left: ["version"],
    onChange: (value) => showText(value),
  });

  function showText(value) {
    text.value = JSON.stringify(value, null, 2);
    isValid = true;
    tell("");
  }

  function fromText() {
    try {
      form.setValue(JSON.parse(text.value));
      isValid = true;
      tell("");
    } catch (error) {
      isValid = false;
      tell(`The JSON cannot be read: ${error.message}`);
    }
  }

  function tell(words) {
    problem.textContent = words;
    problem.hidden = !words;
  }

  async function send(activate) {
    if (!isValid) return;
    form.showErrors([]);
    tell("");
    try {
      await save(form.value(), activate);
    } catch (error) {
      const placed = form.showErrors(errorsOf(error));
      tell(
        placed
          ? `${error.message.split(". ")[0]}. ${placed === 1 ? "One field needs" : `${placed} fields need`} another value.`
          : error.message,
      );
    }
  }

  showText(start);
  const node = h("div", { class: "editor" });
  return fill(
    node,
    h(
      "div",
      { class: "editor-bar row" },
      isNew
        ? null
        : actButton("Save as draft", () => send(false), {
            tone: "primary",
            title: "A new version that nobody uses yet: try it first",
          }),
      actButton(isNew ? "Publish" : "Publish and activate", () => send(true), { tone: isNew ? "primary" : "" }),
      h(
        "span",
        { class: "soft small" },
        isNew ? "The first version is active at once." : "A draft is tried in a side chat before anybody else uses it.",
      ),
      problem,
    ),
    h(
      "div",
      { class: "editor-sides" },
      h("section", { "aria-label": "Form" }, form.node),
      h("section", { class: "editor-text", "aria-label": "JSON" }, h("h3", { class: "soft small" }, "JSON"), text),
    ),
  );
}
