// Operations: how the installation does, first in sentences, then in figures; it stays current while it is shown.

import { get } from "../api.js";
import { fill, h } from "../dom.js";
import { bytes, count, duration, visible } from "../format.js";
import { badge, since, stateBadge, table } from "../ui.js";
import { hourChart } from "../parts/chart.js";
import { figure } from "../parts/figures.js";
import { serverCards } from "../parts/mcp_servers.js";

const PATH = "/admin/operations";
const EVERY = 5000;
const ENDS = [
  ["COMPLETED", "good", "completed"],
  ["FAILED", "bad", "failed"],
  ["CANCELLED", "quiet", "cancelled"],
  ["ASKED", "wait", "questions to people"],
];
const TONES = { good: "well", wait: "worth a look", bad: "needs you" };

export async function operations() {
  const node = h("div", { class: "operations stack wide" });
  const lost = h("p", { class: "field-error", role: "status", hidden: true });
  show(node, await get(PATH));
  const timer = setInterval(async () => {
    if (document.hidden) return;
    try {
      const found = await get(PATH);
      lost.hidden = true;
      show(node, found);
    } catch (error) {
      lost.textContent = `${error.message} What is shown is from before.`;
      lost.hidden = false;
    }
  }, EVERY);
  return {
    name: "operations",
    title: "Operations",
    json: PATH,
    node: h("div", {}, lost, node),
    close: () => clearInterval(timer),
  };
}

function show(node, found) {
  const open = new Set([...node.querySelectorAll("details[open]")].map((one) => one.dataset.part));
  fill(
    node,
    sentences(found.sentences),
    turns(found),
    workers(found),
    models(found),
    postgres(found),
    servers(found),
    h("p", { class: "soft small" }, `Longhouse ${found.version}. Counted every few seconds, for all who look.`),
  );
  for (const one of node.querySelectorAll("details")) one.open = open.has(one.dataset.part);
}

function sentences(all) {
  return h(
    "ul",
    { class: "sentences card", "aria-label": "How it goes" },
    all.map(({ tone, text }) =>
      h(
        "li",
        { class: tone },
        h("span", { class: ["mark", tone], role: "img", "aria-label": TONES[tone] }),
        h("span", { dir: "auto" }, visible(text)),
      ),
    ),
  );
}

function turns(found) {
  const states = Object.entries(found.states).sort((a, b) => b[1] - a[1]);
  return h(
    "section",
    { class: "card" },
    h("h2", {}, "Turns in the last 24 hours"),
    hourChart(found.history, ENDS),
    h("h3", {}, "Sessions now"),
    states.length
      ? h(
          "div",
          { class: "row" },
          states.map(([state, number]) =>
            h(
              "a",
              { class: "state-count", href: `/sessions?state=${encodeURIComponent(state)}` },
              stateBadge(state),
              h("strong", {}, count(number)),
            ),
          ),
        )
      : h("p", { class: "soft" }, "There is no session yet."),
  );
}

function workers({ workers: all }) {
  return h(
    "section",
    { class: "card" },
    h("h2", {}, "Workers"),
    table(
      ["Worker", "State", ["Slots taken", "number"], "Heartbeat", "Version", "Since"],
      all.map((one) => [
        h(
          "div",
          {},
          h("span", { class: "mono" }, visible(one.id)),
          h("div", { class: "soft small" }, `${visible(one.node)}, process ${one.pid}`),
        ),
        badge(one.is_alive ? "alive" : "silent", one.is_alive ? "good" : "bad"),
        `${count(one.sessions)} of ${count(one.slots)}`,
        since(one.beat_at),
        one.version || "earlier",
        since(one.started_at),
      ]),
    ),
    all.length ? null : h("p", { class: "soft" }, "No worker is registered."),
  );
}

function models({ models: all }) {
  return h(
    "section",
    { class: "card" },
    h("h2", {}, "Model endpoints, last 24 hours"),
    all.length
      ? table(
          [
            "Model",
            ["Replies", "number"],
            ["Errors", "number"],
            ["Asked again", "number"],
            ["p50", "number"],
            "Last error",
          ],
          all.map((one) => [
            h("span", { class: "mono" }, visible(one.model) || "unknown"),
            count(one.calls),
            h("span", { class: one.errors ? "bad-text" : "" }, count(one.errors)),
            count(one.retries),
            duration(one.p50_seconds),
            one.last_error
              ? h(
                  "div",
                  {},
                  since(one.last_error.at),
                  h("div", { class: "soft small", dir: "auto" }, visible(one.last_error.text)),
                )
              : "–",
          ]),
        )
      : h("p", { class: "soft" }, "No model was asked."),
  );
}

function postgres({ postgres: one, mirror, oldest_runnable_seconds: oldest, runnable }) {
  const growth = one.growth_bytes_24h;
  return h(
    "section",
    { class: "card" },
    h("h2", {}, "Postgres and what waits"),
    h(
      "dl",
      { class: "figures large" },
      figure("Database", bytes(one.bytes)),
      figure(
        "Growth in 24 h",
        growth === null ? "known after a day" : `${growth < 0 ? "−" : "+"}${bytes(Math.abs(growth))}`,
      ),
      figure("Connections", count(one.connections)),
      figure("Our pool", `${one.pool.size - one.pool.idle} of ${one.pool.size} in use`),
      figure("Waiting for a worker", count(runnable), runnable && oldest > 10 ? "bad" : ""),
      figure("The oldest", oldest === null ? "none" : duration(oldest)),
      figure(
        "Redis mirror",
        mirror.enabled
          ? mirror.lag_seconds
            ? `${duration(mirror.lag_seconds)} behind`
            : "up to date"
          : "not configured",
      ),
    ),
  );
}

function servers({ mcp }) {
  return mcp.length ? h("section", {}, h("h2", {}, "MCP servers"), serverCards(mcp)) : null;
}
