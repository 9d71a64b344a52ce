// A small chart of bars, drawn as SVG: what happened in each hour, stacked by how it ended.

import { h } from "../dom.js";
import { count } from "../format.js";

const SVG = "http://www.w3.org/2000/svg";
const HEIGHT = 120;
const WIDTH = 24;
const GAP = 4;

function svg(tag, attributes, ...children) {
  const element = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, String(value));
  element.append(...children);
  return element;
}

/** `hours`: `[{at, states}]`; `kinds`: `[[state, class, word]]`, from the bottom up. */
export function hourChart(hours, kinds) {
  const sums = hours.map(({ states }) => kinds.reduce((sum, [state]) => sum + (states[state] ?? 0), 0));
  const top = niceTop(Math.max(...sums, 1));
  const width = hours.length * WIDTH;
  const drawing = svg("svg", {
    viewBox: `0 0 ${width} ${HEIGHT}`,
    class: "chart",
    preserveAspectRatio: "none",
    role: "img",
    "aria-label": summary(hours, kinds),
  });
  for (const share of [0.5, 1])
    drawing.append(
      svg("line", {
        class: "chart-grid",
        x1: 0,
        x2: width,
        y1: HEIGHT * (1 - share) + 0.5,
        y2: HEIGHT * (1 - share) + 0.5,
      }),
    );
  hours.forEach((hour, nth) => drawing.append(...bars(hour, nth, kinds, top)));
  return h(
    "figure",
    { class: "chart-figure" },
    h(
      "div",
      { class: "chart-body" },
      h(
        "div",
        { class: "chart-scale soft small", "aria-hidden": "true" },
        h("span", {}, count(top)),
        h("span", {}, count(top / 2)),
        h("span", {}, "0"),
      ),
      h("div", { class: "chart-place" }, drawing, labels(hours)),
    ),
    h(
      "figcaption",
      { class: "row small" },
      kinds.map(([state, tone, word]) => {
        const all = hours.reduce((sum, { states }) => sum + (states[state] ?? 0), 0);
        return h(
          "span",
          { class: "legend" },
          h("i", { class: `chart-key ${tone}`, "aria-hidden": "true" }),
          `${word} `,
          h("strong", {}, count(all)),
        );
      }),
    ),
  );
}

function bars({ at, states }, nth, kinds, top) {
  let from = 0;
  const hour = new Date(at).toLocaleTimeString([], { hour: "2-digit", minute: "2-digit", hour12: false });
  const words = kinds.filter(([state]) => states[state]).map(([state, , word]) => `${states[state]} ${word}`);
  const pieces = kinds
    .filter(([state]) => states[state])
    .map(([state, tone]) => {
      const height = (states[state] / top) * HEIGHT;
      from += height;
      return svg("rect", {
        class: `chart-bar ${tone}`,
        x: nth * WIDTH + GAP / 2,
        y: HEIGHT - from,
        width: WIDTH - GAP,
        height,
      });
    });
  const title = svg("title", {});
  title.textContent = `${hour}: ${words.join(", ") || "nothing"}`;
  const place = svg("rect", { class: "chart-hour", x: nth * WIDTH, y: 0, width: WIDTH, height: HEIGHT }, title);
  return [...pieces, place];
}

function labels(hours) {
  return h(
    "div",
    { class: "chart-hours soft small", "aria-hidden": "true" },
    hours
      .filter((_, nth) => nth % 6 === 0)
      .map(({ at }) =>
        h("span", {}, new Date(at).toLocaleTimeString([], { hour: "2-digit", minute: "2-digit", hour12: false })),
      ),
    h("span", {}, "now"),
  );
}

function summary(hours, kinds) {
  const all = kinds.map(
    ([state, , word]) => `${hours.reduce((sum, { states }) => sum + (states[state] ?? 0), 0)} ${word}`,
  );
  return `The last ${hours.length} hours: ${all.join(", ")}`;
}

/** The next round number above whose half is whole too: 2, 4, 6, 10, 20, 40, … */
function niceTop(number) {
  const base = 10 ** Math.floor(Math.log10(number));
  return [2, 4, 6, 10].map((step) => step * base).find((one) => one >= number) ?? number;
}
