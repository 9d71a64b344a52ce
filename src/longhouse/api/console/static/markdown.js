// Markdown as elements. Everything written is text; links lead to the web alone, and images are links, so that no page
// of somebody else is asked for anything.

import { h, safeLink } from "./dom.js";
import { straight } from "./format.js";
import { code } from "./ui.js";

/** Characters that are shown at first; the rest is behind a button, for no screen is to hang on a long answer. */
const SHOWN_AT_FIRST = 50_000;
const DEEPEST = 8;
/** A table with more columns is no table, and one with more rows ends there: both are text then. */
const MOST_COLUMNS = 50;
const MOST_ROWS = 1000;

export function markdown(text) {
  const shown = text.length > SHOWN_AT_FIRST ? text.slice(0, cutAt(text)) : text;
  const element = h("div", { class: "markdown" }, blocks(straight(shown).split("\n"), 0));
  if (shown.length < text.length) {
    const more = h("button", { type: "button", class: "button", onclick: () => {
      more.replaceWith(markdown(text.slice(shown.length)));
    } }, `Show the next of ${text.length - shown.length} more characters`);
    element.append(more);
  }
  return element;
}

/** Where a long text is cut: after a line, if one ends near. */
function cutAt(text) {
  const line = text.lastIndexOf("\n", SHOWN_AT_FIRST);
  return line > SHOWN_AT_FIRST / 2 ? line + 1 : SHOWN_AT_FIRST;
}

const FENCE = /^ {0,3}(```+|~~~+)\s*([\w+#.-]*)/;
// Each is read in one pass: two parts that could share characters would try every way to share them.
const HEADING = /^ {0,3}(#{1,6})\s+(.*)$/;
const RULE = /^ {0,3}([-*_])( *\1){2,}\s*$/;
const ITEM = /^(\s*)([-*+]|\d{1,9}[.)])\s+(.*)$/;
const QUOTE = /^ {0,3}> ?/;
const TABLE_LINE = /^\|?\s*:?-+:?\s*(\|\s*:?-+:?\s*)*\|?$/;

function blocks(lines, depth) {
  const found = [];
  let at = 0;
  while (at < lines.length) {
    const line = lines[at];
    if (!line.trim()) {
      at += 1;
      continue;
    }
    const [element, next] = block(lines, at, depth);
    found.push(element);
    at = next;
  }
  return found;
}

function block(lines, at, depth) {
  const line = lines[at];
  if (FENCE.test(line)) return fenced(lines, at);
  const heading = HEADING.exec(line);
  if (heading) return [h(`h${Math.min(6, heading[1].length + 2)}`, {}, inline(heading[2].trimEnd().replace(/\s#+$/, ""))), at + 1];
  if (RULE.test(line)) return [h("hr"), at + 1];
  if (depth < DEEPEST && QUOTE.test(line)) return quote(lines, at, depth);
  if (depth < DEEPEST && ITEM.test(line)) return list(lines, at, depth);
  if (isTable(line, lines[at + 1] ?? "")) return tableAt(lines, at);
  return paragraph(lines, at, depth);
}

function fenced(lines, at) {
  const [, fence, language] = FENCE.exec(lines[at]);
  let end = at + 1;
  while (end < lines.length && !lines[end].trim().startsWith(fence)) end += 1;
  return [code(lines.slice(at + 1, end).join("\n"), language), end + 1];
}

function quote(lines, at, depth) {
  let end = at;
  while (end < lines.length && QUOTE.test(lines[end])) end += 1;
  const inner = lines.slice(at, end).map((line) => line.replace(QUOTE, ""));
  return [h("blockquote", {}, blocks(inner, depth + 1)), end];
}

function list(lines, at, depth) {
  const [, indent, mark] = ITEM.exec(lines[at]);
  const isNumbered = /\d/.test(mark);
  const items = [];
  let end = at;
  while (end < lines.length) {
    const item = ITEM.exec(lines[end]);
    if (!item || item[1].length !== indent.length || /\d/.test(item[2]) !== isNumbered) break;
    const [inner, next] = itemLines(lines, end, indent.length, item[3]);
    items.push(h("li", {}, tight(blocks(inner, depth + 1))));
    end = next;
  }
  const start = isNumbered ? Number.parseInt(mark, 10) : 1;
  return [h(isNumbered ? "ol" : "ul", start === 1 ? {} : { start }, items), Math.max(end, at + 1)];
}

/** The lines of one item: those that follow and are indented deeper. */
function itemLines(lines, at, indent, first) {
  const inner = [first];
  let end = at + 1;
  while (end < lines.length) {
    const line = lines[end];
    const isDeeper = line.length - line.trimStart().length > indent;
    const goesOn = isDeeper || (!line.trim() && deeperAfter(lines, end, indent));
    if (!goesOn) break;
    inner.push(line.slice(Math.min(indent + 2, line.length - line.trimStart().length)));
    end += 1;
  }
  return [inner, end];
}

function deeperAfter(lines, at, indent) {
  const next = lines[at + 1] ?? "";
  return Boolean(next.trim()) && next.length - next.trimStart().length > indent;
}

/** A list's single paragraph stands without its own margin. */
function tight(elements) {
  return elements.length && elements[0].tagName === "P" ? [...elements[0].childNodes, ...elements.slice(1)] : elements;
}

function isTable(line, next) {
  if (!line.includes("|") || !TABLE_LINE.test(next.trim())) return false;
  const columns = cells(line).length;
  return columns <= MOST_COLUMNS && columns === cells(next).length;
}

function tableAt(lines, at) {
  let end = at + 2;
  while (end < lines.length && end - at - 2 < MOST_ROWS && lines[end].includes("|") && lines[end].trim()) end += 1;
  const heads = cells(lines[at]);
  const kinds = cells(lines[at + 1]).map((cell) => (cell.endsWith(":") && !cell.startsWith(":") ? "number" : ""));
  const rows = lines.slice(at + 2, end).map((row) => cells(row).slice(0, heads.length));
  const element = h("div", { class: "table" }, h("table", {},
    h("thead", {}, h("tr", {}, heads.map((cell, nth) => h("th", { scope: "col", class: kinds[nth] }, inline(cell))))),
    h("tbody", {}, rows.map((row) => h("tr", {}, row.map((cell, nth) => h("td", { class: kinds[nth] }, inline(cell))))))));
  return [element, end];
}

function cells(line) {
  return line.trim().replace(/^\||\|$/g, "").split("|").map((cell) => cell.trim());
}

function paragraph(lines, at, depth) {
  let end = at + 1;
  while (end < lines.length && lines[end].trim() && !startsBlock(lines[end], depth)) end += 1;
  return [h("p", {}, inline(lines.slice(at, end).join("\n"))), end];
}

function startsBlock(line, depth) {
  return FENCE.test(line) || HEADING.test(line) || RULE.test(line) || (depth < DEEPEST && (QUOTE.test(line) || ITEM.test(line)));
}

// One expression that never looks back over a text: each alternative is bounded by characters it may not contain.
const INLINE = new RegExp([
  "(?<!`)(`{1,40})(?!`)([^`]{1,2000})\\1(?!`)",
  "(!?)\\[([^\\[\\]\\n]{0,1000})\\]\\(([^()\\s]{1,2000})(?:\\s+\"[^\"\\n]{0,200}\")?\\)",
  // A mark stands at a word: with white space inside it is a sign of its own, as in 2 * 3 * 4.
  "\\*\\*(?!\\s)([^*\\n]{1,2000})(?<!\\s)\\*\\*",
  "(?<![\\w*])[*_](?!\\s)([^*_\\n]{1,2000})(?<!\\s)[*_](?![\\w*])",
  "~~([^~\\n]{1,2000})~~",
  "<?(https?://[^\\s<>\"'`\\])]{1,2000})>?",
].join("|"), "g");

function inline(text) {
  const parts = [];
  let at = 0;
  for (const found of text.matchAll(INLINE)) {
    parts.push(...broken(text.slice(at, found.index)), element(found));
    at = found.index + found[0].length;
  }
  return [...parts, ...broken(text.slice(at))];
}

function element([whole, , codeText, bang, label, target, strong, emphasis, struck, address]) {
  if (codeText !== undefined) return h("code", {}, codeText);
  if (target !== undefined) return link(target, `${bang ? "Image: " : ""}${label || target}`);
  if (strong !== undefined) return h("strong", {}, inline(strong));
  if (emphasis !== undefined) return h("em", {}, inline(emphasis));
  if (struck !== undefined) return h("s", {}, struck);
  return link(address.replace(/[.,;:!?]+$/, ""), whole.replace(/^<|>$/g, ""));
}

/** A link to the web; one that could do something else is shown as the text that it is. */
function link(address, label) {
  const safe = /^(https?:|mailto:)/i.test(address) ? safeLink(address) : null;
  if (!safe) return h("span", {}, label);
  return h("a", { href: safe, target: "_blank", rel: "noopener noreferrer nofollow", title: safe }, label);
}

/** A text whose line breaks are kept. */
function broken(text) {
  return text.split("\n").flatMap((line, nth) => (nth ? [h("br"), line] : [line])).filter((one) => one !== "");
}
