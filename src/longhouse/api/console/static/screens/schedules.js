// Schedules: prompts that come by themselves. When they fire next, what became of the last time; make, pause, run, delete.

import { creating, get, patch, remove } from "../api.js";
import { fill, h } from "../dom.js";
import { dateAndTime, plainLine, visible } from "../format.js";
import { go } from "../router.js";
import { walking } from "../shortcuts.js";
import { actButton, badge, button, code, confirmed, dialog, empty, say, since, stateBadge, table } from "../ui.js";

const PATH = "/v1/schedules";
const TONES = { active: "good", paused: "wait", stopped: "bad", ended: "quiet", fired: "busy-still", skipped: "wait", missed: "wait", failed: "bad" };
const MISSED = [
  ["once", "Fire once for all of them"],
  ["skip", "Leave them out"],
  ["all", "Fire for each, up to ten"],
];
const OVERLAP = [
  ["queue", "Wait until it has ended"],
  ["skip", "Leave this time out"],
];

const pathOf = (one, below = "") => `${PATH}/${encodeURIComponent(one.id)}${below}`;
const nameOf = (one) => visible(plainLine(one.name || one.prompt, 90));

export async function scheduleList() {
  const place = h("div", { class: "stack" });
  let rows = [];
  let next = null;

  async function load(more = false) {
    const page = await get(PATH, { limit: 100, before: more ? next : null });
    rows = more ? [...rows, ...page.data] : page.data;
    next = page.has_more ? page.next : null;
    fill(
      place,
      rows.length ? listed() : empty("There is no schedule yet. A schedule is a prompt that comes by itself: every morning, or once."),
      next ? actButton("More", () => load(true)) : null,
    );
  }

  function listed() {
    return table(
      ["Schedule", "State", "When", "Next", ["Last time", "only-wide"], ["", "number only-wide"]],
      rows.map((one) => [
        h(
          "div",
          {},
          h("a", { href: `/schedules/${encodeURIComponent(one.id)}`, dir: "auto" }, nameOf(one)),
          h("div", { class: "soft small" }, visible(one.template)),
        ),
        badge(one.state, TONES[one.state]),
        when(one),
        one.next_at ? since(one.next_at) : "–",
        lastTime(one.last_run),
        h("div", { class: "row end" }, actions(one, () => load())),
      ]),
      { caption: "Your schedules, newest first" },
    );
  }

  await load();
  return {
    name: "schedules",
    title: "Schedules",
    json: PATH,
    node: h("div", { class: "wide stack" }, place),
    tools: button("New schedule", () => create(load), { tone: "primary", shape: "plus" }),
    keys: {
      ...walking(() => [...place.querySelectorAll("tbody tr")].map(focusable)),
      n: ["New schedule", () => create(load)],
    },
  };
}

function focusable(row) {
  row.tabIndex = -1;
  return row;
}

function when(one) {
  return h(
    "div",
    {},
    one.cron ? h("span", { class: "mono" }, visible(one.cron)) : `once, ${dateAndTime(one.at, one.time_zone)}`,
    h("div", { class: "soft small" }, visible(one.time_zone)),
  );
}

/** What became of a run: of one that has fired, how its turn ended. */
function lastTime(run) {
  if (!run) return "–";
  const shown = run.outcome ? stateBadge(run.outcome) : badge(run.state, TONES[run.state]);
  return h("div", {}, shown, h("div", { class: "soft small" }, since(run.fired_at)));
}

/** What can be done with a schedule; its name is said along, for who does not see the row. */
function actions(one, changed) {
  const isOn = one.state === "active";
  const fire = creating();
  const run = async () => {
    await fire(pathOf(one, "/run"));
    say("It has been sent.");
    await changed();
  };
  const turn = async () => {
    await patch(pathOf(one), { paused: isOn });
    say(isOn ? "It is paused." : "It goes on.");
    await changed();
  };
  const drop = async () => {
    if (!(await confirmed(`Delete “${nameOf(one)}”?`, "It fires no more, and what is known of its runs goes. Its sessions stay.", "Delete"))) return false;
    await remove(pathOf(one));
    say("It is deleted.");
    return true;
  };
  const named = (text) => ({ title: `${text}: ${nameOf(one)}` });
  return [
    actButton("Run now", run, named("Fires it now; when it fires next stays")),
    one.state === "ended" ? null : actButton(isOn ? "Pause" : "Resume", turn, named(isOn ? "Pause" : "Resume")),
    actButton("Delete", async () => (await drop()) && (await changed(true)), { tone: "danger", ...named("Delete") }),
  ];
}

export async function oneSchedule({ id }) {
  const place = h("div", { class: "wide stack" });

  async function load(isGone = false) {
    if (isGone) return go("/schedules");
    const [one, runs] = await Promise.all([get(pathOf({ id })), get(pathOf({ id }, "/runs"), { limit: 50 })]);
    fill(place, head(one, load), facts(one), h("h2", {}, "What became of it"), past(runs.data));
    return one;
  }

  const one = await load();
  return {
    name: "schedule",
    title: one.name || "Schedule",
    json: pathOf(one),
    node: place,
    tools: h("a", { class: "button plain", href: "/schedules" }, "All schedules"),
  };
}

function head(one, changed) {
  return h(
    "div",
    { class: "row" },
    badge(one.state, TONES[one.state]),
    h("span", { class: "soft" }, one.next_at ? ["next ", since(one.next_at), `, ${dateAndTime(one.next_at)}`] : null),
    h("span", { class: "bad-text", dir: "auto" }, visible(one.stopped_reason ?? "")),
    h("span", { class: "grow" }),
    actions(one, changed),
  );
}

function facts(one) {
  const shown = [
    ["Agent", visible(one.template)],
    ["When", when(one)],
    ["Conversation", one.conversation_id ? visible(one.conversation_id) : "a session of its own each time"],
    ["For", one.user ? visible(one.user) : "–"],
    ["Missed times", MISSED.find(([name]) => name === one.missed)?.[1]],
    ["While the last one is at work", OVERLAP.find(([name]) => name === one.overlap)?.[1]],
  ];
  return h(
    "section",
    { class: "card" },
    h("dl", { class: "pairs" }, shown.map(([name, value]) => [h("dt", {}, name), h("dd", { dir: "auto" }, value)])),
    code(visible(one.prompt), "prompt"),
  );
}

function past(runs) {
  if (!runs.length) return h("p", { class: "soft" }, "It has not fired yet.");
  return table(
    ["Due", "What happened", "Session", "Why"],
    runs.map((run) => [
      h("div", {}, dateAndTime(run.due_at), run.manual ? h("span", { class: "chip" }, "by hand") : null),
      h(
        "div",
        { class: "row" },
        badge(run.count > 1 ? `${run.state}, ${run.count} times` : run.state, TONES[run.state]),
        run.outcome ? stateBadge(run.outcome) : null,
      ),
      run.session_id ? h("a", { href: `/sessions/${encodeURIComponent(run.session_id)}` }, "what was said") : "–",
      h("span", { dir: "auto" }, visible(run.error?.message ?? "")),
    ]),
    { caption: "The last fifty, newest first" },
  );
}

async function create(changed) {
  const agents = (await get("/v1/models")).data.map((one) => one.id).filter((id) => id !== "auto");
  const made = await dialog("New schedule", (close) => newSchedule(agents, close));
  if (!made) return;
  say(`It fires next ${dateAndTime(made.next_at)}.`);
  await changed();
}

function newSchedule(agents, close) {
  const here = Intl.DateTimeFormat().resolvedOptions().timeZone;
  const field = (name, tag = "input", options = {}, ...more) => h(tag, { id: `schedule-${name}`, ...options }, ...more);
  const chosen = (name, options) => field(name, "select", {}, options.map(([value, text]) => h("option", { value }, text)));
  const fields = {
    template: chosen("template", agents.map((name) => [name, name])),
    prompt: field("prompt", "textarea", { rows: 3, dir: "auto", autofocus: true }),
    cron: field("cron", "input", { type: "text", placeholder: "0 9 * * MON-FRI", "aria-describedby": "schedule-cron-help" }),
    at: field("at", "input", { type: "datetime-local" }),
    time_zone: field("time_zone", "input", { type: "text", value: here, list: "schedule-zones" }),
    name: field("name", "input", { type: "text", dir: "auto" }),
    conversation_id: field("conversation_id", "input", { type: "text", placeholder: "a session of its own each time" }),
    user: field("user", "input", { type: "text" }),
    missed: chosen("missed", MISSED),
    overlap: chosen("overlap", OVERLAP),
  };
  const error = h("p", { class: "field-error", role: "alert", hidden: true });
  const send = creating();
  const make = async () => {
    const given = Object.entries(fields).map(([name, input]) => [name, input.value.trim()]);
    try {
      close(await send(PATH, Object.fromEntries(given.filter(([, value]) => value))));
    } catch (problem) {
      error.textContent = problem.message;
      error.hidden = false;
      fields[problem.param]?.focus();
    }
  };
  const zones = Intl.supportedValuesOf?.("timeZone") ?? [];
  return h(
    "form",
    {
      class: "stack",
      onsubmit: (event) => {
        event.preventDefault();
        make();
      },
    },
    h("label", {}, "Agent", fields.template),
    h("label", {}, "Prompt: what it is told each time", fields.prompt),
    h("div", { class: "limit-fields" }, h("label", {}, "Again and again, by cron", fields.cron), h("label", {}, "Or once, at", fields.at)),
    h("p", { class: "soft small", id: "schedule-cron-help" }, "Cron: minute, hour, day, month, weekday; or @daily."),
    h("label", {}, "Time zone of both", fields.time_zone, h("datalist", { id: "schedule-zones" }, zones.map((value) => h("option", { value })))),
    h("label", {}, "Name", fields.name),
    h("div", { class: "limit-fields" }, h("label", {}, "Conversation", fields.conversation_id), h("label", {}, "For the user", fields.user)),
    h("div", { class: "limit-fields" }, h("label", {}, "If nobody was there to fire", fields.missed), h("label", {}, "If the last one is at work", fields.overlap)),
    error,
    h("div", { class: "row end" }, h("button", { class: "button primary" }, "Make the schedule")),
  );
}
