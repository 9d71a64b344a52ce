// Figures of the last 24 hours: how often something worked, how long it took, what it cost.

import { get } from "../api.js";
import { h } from "../dom.js";
import { count, duration, percent } from "../format.js";

/** Statistics by name: `{agents: Map, tools: Map}`; what did nothing is not in them. */
export async function loadStatistics(window = "24h") {
  const found = await get("/admin/statistics", { window });
  const byName = (rows) => new Map(rows.map((one) => [one.name, one]));
  return { agents: byName(found.agents), tools: byName(found.tools) };
}

export function figure(label, value, tone = "") {
  return h("div", { class: ["figure", tone] }, h("dt", {}, label), h("dd", {}, value));
}

/** The figures of an agent. */
export function agentFigures(row) {
  if (!row) return nothing("No turn in the last 24 hours.");
  const ended = row.completed + row.failed;
  return h(
    "div",
    { class: "figures-place" },
    shareBar(
      [
        ["good", row.completed],
        ["bad", row.failed],
        ["quiet", row.cancelled],
      ],
      "Turns",
    ),
    h(
      "dl",
      { class: "figures" },
      figure("Success", ended ? percent(row.completed / ended) : "–", ended && !row.failed ? "good" : ""),
      figure("Turns", count(row.turns)),
      figure("Failed", count(row.failed), row.failed ? "bad" : ""),
      figure("p50", duration(row.p50_seconds)),
      figure("p95", duration(row.p95_seconds)),
      figure("Tokens", count(row.tokens)),
    ),
  );
}

/** The figures of a tool. */
export function toolFigures(row) {
  if (!row) return nothing("Not called in the last 24 hours.");
  const ok = row.calls - row.failed;
  return h(
    "div",
    { class: "figures-place" },
    shareBar(
      [
        ["good", ok],
        ["bad", row.failed],
      ],
      "Calls",
    ),
    h(
      "dl",
      { class: "figures" },
      figure("Success", row.calls ? percent(ok / row.calls) : "–", row.calls && !row.failed ? "good" : ""),
      figure("Calls", count(row.calls)),
      figure("Failed", count(row.failed), row.failed ? "bad" : ""),
      figure("p50", duration(row.p50_seconds)),
      figure("p95", duration(row.p95_seconds)),
    ),
  );
}

function nothing(text) {
  return h("p", { class: "soft small figures-none" }, text);
}

/** A bar that is parted by shares: `[[tone, number]]`. What it shows stands beside it in figures. */
export function shareBar(parts, label) {
  const all = parts.reduce((sum, [, number]) => sum + number, 0);
  const bar = h("div", {
    class: "share-bar",
    role: "img",
    "aria-label": `${label}: ${parts.map(([tone, number]) => `${number} ${WORDS[tone]}`).join(", ")}`,
  });
  for (const [tone, number] of parts) {
    if (!number) continue;
    const piece = h("span", { class: tone });
    piece.style.flexGrow = String(number / all);
    bar.append(piece);
  }
  return bar;
}

const WORDS = { good: "succeeded", bad: "failed", quiet: "cancelled" };

/** How much of a limit is used; it warns from four fifths on. */
export function meter(used, limit, label) {
  const share = limit ? Math.min(1, used / limit) : 0;
  const fill = h("span", { class: share >= 0.8 ? "bad" : "good" });
  fill.style.width = `${Math.max(share * 100, used ? 2 : 0)}%`;
  return h(
    "div",
    { class: "meter-row" },
    h("span", { class: "soft small" }, label),
    h("span", { class: "meter", "aria-hidden": "true" }, fill),
    h("span", { class: "number small" }, `${count(used)} / ${count(limit)}`),
  );
}
