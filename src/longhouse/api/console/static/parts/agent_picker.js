// Which agent a new conversation is with: a button, and a list of agents with what they can.

import { fill, h, icon, ICONS } from "../dom.js";
import { plainLine } from "../format.js";

const AUTO = "Chooses the agent that fits your first message.";

/** `agents`: `[{id, capabilities}]`, as `/v1/models` lists them. */
export function agentPicker(agents, chosen) {
  let value = agents.some((one) => one.id === chosen) ? chosen : agents[0]?.id ?? "auto";
  const label = h("span", {});
  const panel = h("div", { class: "picker-panel", role: "menu", "aria-label": "Agents", hidden: true, onkeydown: walk });
  const opener = h("button", {
    type: "button", class: "button plain picker", "aria-haspopup": "menu", "aria-expanded": "false", title: "Which agent answers", onclick: () => toggle(panel.hidden),
  }, icon(ICONS.agent), label, icon(ICONS.down));

  function toggle(isOpen) {
    panel.hidden = !isOpen;
    opener.setAttribute("aria-expanded", String(isOpen));
    if (!isOpen) return;
    show();
    (panel.querySelector('[aria-checked="true"]') ?? panel.firstChild)?.focus();
  }

  function choose(name) {
    value = name;
    label.textContent = plainLine(name, 40);
    toggle(false);
  }

  function show() {
    fill(panel, agents.map((one) => h("button", {
      type: "button", role: "menuitemradio", class: "picker-option", "aria-checked": String(one.id === value), onclick: () => {
        choose(one.id);
        localStorage.setItem("agent", one.id);
        opener.focus();
      },
    }, h("strong", {}, one.id), h("span", { class: "soft small", dir: "auto" }, one.id === "auto" ? AUTO : plainLine(one.capabilities ?? "", 200)))));
  }

  function walk(event) {
    const options = [...panel.children];
    const at = options.indexOf(document.activeElement);
    const next = { ArrowDown: at + 1, ArrowUp: at - 1, Home: 0, End: options.length - 1 }[event.key];
    if (next !== undefined) {
      event.preventDefault();
      options[(next + options.length) % options.length].focus();
    }
    if (event.key === "Escape") {
      event.stopPropagation();
      toggle(false);
      opener.focus();
    }
  }

  const node = h("div", { class: "picker-place", onfocusout: (event) => {
    if (!node.contains(event.relatedTarget)) toggle(false);
  } }, opener, panel);
  label.textContent = plainLine(value, 40);
  return { node, value: () => value, choose };
}
