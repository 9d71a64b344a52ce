// Facets of the list of sessions: chips with counts, one of each group at a time.

import { h } from "../dom.js";
import { count, plainLine } from "../format.js";
import { stateWords } from "../states.js";
import { toneOf } from "../ui.js";

const SHOWN = 7;
const GROUPS = [
  ["state", "State"],
  ["agent", "Agent"],
  ["owner", "Owner"],
  ["tool", "Failing tool"],
];
const unfolded = new Set();

/** `values`: group → value → count; `chosen`: group → value; `choose(group, value)`, empty for all. */
export function facetBar(values, chosen, choose) {
  return GROUPS.map(([name, label]) => group(name, label, values[name] ?? {}, chosen[name], choose)).filter(Boolean);
}

function group(name, label, counts, chosen, choose) {
  const entries = Object.entries(counts);
  if (chosen && !(chosen in counts)) entries.push([chosen, 0]);
  // A choice between one is none.
  if (!entries.length || (entries.length < 2 && !chosen && name !== "tool")) return null;
  const line = h("div", { class: "facet-line" });
  const show = () => {
    const shown =
      unfolded.has(name) || name === "state"
        ? entries
        : entries.filter(([value], nth) => nth < SHOWN || value === chosen);
    line.replaceChildren(...shown.map(([value, number]) => chip(name, value, number, value === chosen, choose)));
    if (shown.length < entries.length) line.append(more(entries.length - shown.length));
  };
  const more = (number) =>
    h(
      "button",
      {
        type: "button",
        class: "facet more",
        onclick: () => {
          unfolded.add(name);
          show();
        },
      },
      `${number} more`,
    );
  show();
  return h(
    "div",
    { class: "facet-group", role: "group", "aria-label": label },
    h("span", { class: "facet-name" }, label),
    line,
  );
}

function chip(name, value, number, isChosen, choose) {
  const mark = name === "state" ? h("span", { class: ["dot", toneOf(value)], "aria-hidden": "true" }) : null;
  return h(
    "button",
    {
      type: "button",
      class: ["facet", `of-${name}`],
      "aria-pressed": String(isChosen),
      onclick: () => choose(name, isChosen ? "" : value),
    },
    mark,
    h("span", { class: "facet-value", dir: "auto" }, name === "state" ? stateWords(value) : plainLine(value, 40)),
    h("span", { class: "facet-count" }, count(number)),
  );
}
