// Builds what is shown. Every string becomes a text node: nothing that a model, a tool or a person wrote is ever markup.

import { at } from "./base.js";
import { straight } from "./format.js";

const TEXTS = new Set(["title", "placeholder", "aria-label"]);
const SAFE_LINK = /^(https?:|mailto:|blob:|\/(?!\/)|#)/i;

/** A link's address, or null if it could run something. Browsers drop tabs and line breaks within an address. */
export function safeLink(address) {
  const clean = String(address).replace(/[\u0000-\u0020]/g, "");
  return SAFE_LINK.test(clean) ? clean : null;
}

/**
 * An element. `on…` attributes are listeners, `class` may be a list with falsy items, `data` an object;
 * true and false set and leave out an attribute. Children: nodes, texts, numbers, lists; null and false are left out.
 */
export function h(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) set(element, name, value);
  element.append(...nodes(children));
  return element;
}

function set(element, name, value) {
  if (value === null || value === undefined || value === false) return;
  if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
  else if (name === "class") element.className = [value].flat().filter(Boolean).join(" ");
  else if (name === "data") Object.assign(element.dataset, value);
  else if (name === "value" || name === "checked" || name === "disabled") element[name] = value;
  else if (name === "href" || name === "src") element.setAttribute(name, at(safeLink(value) ?? "#"));
  else element.setAttribute(name, value === true ? "" : TEXTS.has(name) ? straight(value) : String(value));
}

function nodes(children) {
  return children.flat(Infinity).filter((one) => one !== null && one !== undefined && one !== false);
}

/** Puts these children in the place of what an element holds. */
export function fill(element, ...children) {
  element.replaceChildren(...nodes(children));
  return element;
}

const SVG = "http://www.w3.org/2000/svg";

/** An icon: the outline of a path in a box of 24. */
export function icon(path, label = "") {
  const svg = document.createElementNS(SVG, "svg");
  svg.setAttribute("viewBox", "0 0 24 24");
  svg.setAttribute("class", "icon");
  if (label) {
    svg.setAttribute("role", "img");
    svg.setAttribute("aria-label", label);
  } else {
    svg.setAttribute("aria-hidden", "true");
  }
  const drawn = document.createElementNS(SVG, "path");
  drawn.setAttribute("d", path);
  svg.append(drawn);
  return svg;
}

export const ICONS = {
  chat: "M4 5h16v11H9l-5 4z",
  inbox: "M4 13l3-8h10l3 8v6H4zm0 0h5l1 3h4l1-3h5",
  sessions: "M4 6h16M4 12h16M4 18h10",
  agents: "M12 4a4 4 0 1 1 0 8 4 4 0 0 1 0-8zM4 20c1-4 4-6 8-6s7 2 8 6",
  tools: "M14 6a4 4 0 0 0 5 5l-9 9-4-4 9-9zm0 0l-1-2",
  documents: "M6 3h8l4 4v14H6zM14 3v4h4M9 12h6M9 16h6",
  memory: "M5 6c0-4 14-4 14 0v12c0 4-14 4-14 0zm0 0c0 4 14 4 14 0M5 12c0 4 14 4 14 0",
  schedules: "M12 3a9 9 0 1 1 0 18 9 9 0 0 1 0-18zM12 7v5l3 2",
  webhooks: "M12 8a3 3 0 1 1 3-3M12 8l-4 8M5 16a3 3 0 1 0 3 3h8M19 16a3 3 0 1 1-3 3l-3-9",
  operations: "M3 12h4l3-7 4 14 3-7h4",
  keys: "M15 9a4 4 0 1 1-3 4l-8 8v-3l2-2H4M15 9h.01",
  send: "M4 12l16-8-5 16-3-7z",
  stop: "M7 7h10v10H7z",
  copy: "M8 8h11v12H8zM5 16V4h11",
  image: "M4 5h16v14H4zM4 16l5-5 4 4 3-3 4 4M9 9h.01",
  plus: "M12 5v14M5 12h14",
  menu: "M4 7h16M4 12h16M4 17h16",
  close: "M6 6l12 12M18 6L6 18",
  search: "M10 4a6 6 0 1 1 0 12 6 6 0 0 1 0-12zM15 15l5 5",
  check: "M5 13l4 4L19 7",
  theme: "M12 3a9 9 0 1 0 9 9 7 7 0 0 1-9-9z",
  question: "M9 9a3 3 0 1 1 4.5 2.6c-1 .6-1.5 1.2-1.5 2.4M12 17.5h.01M12 3a9 9 0 1 1 0 18 9 9 0 0 1 0-18z",
  shield: "M12 3l8 3v6c0 5-3.5 8-8 9-4.5-1-8-4-8-9V6zM9 12l2 2 4-4",
  warning: "M12 4l9 16H3zM12 10v4M12 17h.01",
  agent: "M5 9h14v9H5zM12 9V5M12 4h.01M9 13h.01M15 13h.01M9 18v2M15 18v2",
  thought: "M12 4c5 0 8 2.7 8 6s-3 6-8 6c-1 0-2-.1-2.8-.3L5 18l1-3.5C4.7 13.4 4 11.8 4 10c0-3.3 3-6 8-6z",
  file: "M6 3h8l4 4v14H6zM14 3v4h4",
  link: "M10 14a4 4 0 0 0 6 0l3-3a4 4 0 0 0-6-6l-1 1M14 10a4 4 0 0 0-6 0l-3 3a4 4 0 0 0 6 6l1-1",
  down: "M6 9l6 6 6-6",
  bell: "M6 16V11a6 6 0 0 1 12 0v5l2 2H4zM10 21h4",
  more: "M5 12h.01M12 12h.01M19 12h.01",
};
