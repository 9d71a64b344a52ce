// What differs between two versions: each field with its value before and after, long texts line by line.

import { h } from "../dom.js";
import { visible } from "../format.js";

const LONG = 80;
const MOST_LINES = 400;

/** `differences`: `[{path, from, to}]`, as the catalog's diff tells them. */
export function diffView(differences) {
  if (!differences.length) return h("p", { class: "soft" }, "These versions are the same.");
  return h(
    "div",
    { class: "diff" },
    differences.map(({ path, from, to }) =>
      h("section", { class: "diff-field" }, h("h4", { class: "mono" }, visible(path)), change(from, to)),
    ),
  );
}

function change(from, to) {
  const before = textOf(from);
  const after = textOf(to);
  const isLong = [before, after].some((text) => text.length > LONG || text.includes("\n"));
  if (!isLong)
    return h("p", { class: "diff-short" }, h("del", { dir: "auto" }, before), " → ", h("ins", { dir: "auto" }, after));
  return h(
    "pre",
    { class: "diff-lines", tabindex: "0" },
    lines(before.split("\n"), after.split("\n")).map(([kind, text]) =>
      h(
        "span",
        { class: ["diff-line", kind] },
        h("span", { class: "diff-sign", "aria-label": SAID[kind] }, SIGNS[kind]),
        text,
      ),
    ),
  );
}

const SIGNS = { same: " ", gone: "−", came: "+" };
const SAID = { same: "", gone: "removed", came: "added" };

function textOf(value) {
  if (value === null || value === undefined) return "not set";
  return visible(typeof value === "string" ? value : JSON.stringify(value, null, 2));
}

/** The lines of two texts as `[kind, line]`, by their longest common subsequence; very long texts are not compared. */
function lines(before, after) {
  if (before.length > MOST_LINES || after.length > MOST_LINES) {
    return [...before.map((line) => ["gone", line]), ...after.map((line) => ["came", line])];
  }
  const common = Array.from({ length: before.length + 1 }, () => new Uint16Array(after.length + 1));
  for (let i = before.length - 1; i >= 0; i -= 1) {
    for (let j = after.length - 1; j >= 0; j -= 1) {
      common[i][j] = before[i] === after[j] ? common[i + 1][j + 1] + 1 : Math.max(common[i + 1][j], common[i][j + 1]);
    }
  }
  const found = [];
  let i = 0;
  let j = 0;
  while (i < before.length || j < after.length) {
    if (i < before.length && j < after.length && before[i] === after[j]) {
      found.push(["same", before[i]]);
      i += 1;
      j += 1;
    } else if (j >= after.length || (i < before.length && common[i + 1][j] >= common[i][j + 1])) {
      found.push(["gone", before[i]]);
      i += 1;
    } else {
      found.push(["came", after[j]]);
      j += 1;
    }
  }
  return found;
}
