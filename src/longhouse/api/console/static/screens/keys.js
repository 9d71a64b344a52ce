// API keys: whose they are, when they were used, what of their limits and budgets; make, change, rotate, revoke.

import { get, patch, post, remove } from "../api.js";
import { fill, h } from "../dom.js";
import { dateAndTime, plainLine, visible } from "../format.js";
import { me, signIn } from "../me.js";
import { actButton, badge, button, confirmed, dialog, empty, say, since } from "../ui.js";
import { filterBox, wholeList } from "../parts/filter_box.js";
import { meter } from "../parts/figures.js";
import { errorsOf } from "../parts/schema_form.js";
import { showSecret } from "../parts/secret.js";

const PATH = "/admin/keys";
const KEPT = "We keep only its digest: if it is lost, rotate the key.";
const LIMITS = [
  ["rate_limit", "Requests a minute"],
  ["max_concurrent", "At the same time"],
  ["sessions_per_hour", "New sessions an hour"],
  ["max_running", "Sessions that run at once"],
];
const BUDGETS = [
  ["tokens_per_day", "Tokens a day"],
  ["tokens_per_month", "Tokens a month"],
  ["turns_per_day", "Turns a day"],
  ["turns_per_month", "Turns a month"],
];
const OVERLAPS = [
  [0, "The old secret stops to work at once, and what uses it ends"],
  [3600, "The old secret works for an hour more"],
  [86400, "The old secret works for a day more"],
  [604800, "The old secret works for a week more"],
];

export async function keys() {
  const place = h("div", { class: "stack" });
  const none = h("p", { class: "empty", hidden: true }, "No key fits these words.");
  const filter = filterBox("Search keys and owners", () => [...place.querySelectorAll(".key-card")], none);
  let showsRevoked = false;

  async function load() {
    const all = await wholeList((before) => get(PATH, { limit: 200, before }));
    const shown = all.filter((one) => showsRevoked || !one.revoked_at);
    const revoked = all.length - all.filter((one) => !one.revoked_at).length;
    fill(
      place,
      shown.length ? owners(shown) : noKeys(all.length > 0),
      none,
      revoked
        ? button(
            showsRevoked ? "Hide revoked keys" : `Show ${revoked} revoked ${revoked === 1 ? "key" : "keys"}`,
            () => {
              showsRevoked = !showsRevoked;
              load();
            },
            { tone: "plain" },
          )
        : null,
    );
    filter.apply();
    none.hidden ||= !shown.length;
  }

  function owners(rows) {
    const names = [...new Set(rows.map((one) => one.owner))].sort();
    return names.map((owner) =>
      h(
        "section",
        {},
        h("h2", { class: "owner-name" }, visible(owner)),
        h(
          "div",
          { class: "cards keys" },
          rows.filter((one) => one.owner === owner).map((one) => keyCard(one, load)),
        ),
      ),
    );
  }

  await load();
  return {
    name: "keys",
    title: "Keys",
    json: PATH,
    node: h("div", { class: "wide stack" }, h("div", { class: "row" }, filter.input), place),
    tools: button("New key", () => create(load), { tone: "primary", shape: "plus" }),
    keys: { n: ["New key", () => create(load)] },
  };
}

function noKeys(hasRevoked) {
  const text = me()?.is_open
    ? "There is no key: whoever reaches this server may use it. It listens on this machine only until a key is there. The first key closes the door."
    : hasRevoked
      ? "All keys are revoked."
      : "There is no key besides the admin key of the settings.";
  return empty(text);
}

function keyCard(one, changed) {
  const isRevoked = Boolean(one.revoked_at);
  return h(
    "article",
    {
      class: ["card key-card", isRevoked && "revoked"],
      data: { words: [one.name, one.owner, one.id, one.role].join(" ").toLowerCase() },
    },
    h(
      "header",
      { class: "row" },
      h("h3", { class: "card-title", dir: "auto" }, visible(plainLine(one.name, 60))),
      badge(one.role, one.role === "admin" ? "wait" : "busy-still"),
      isRevoked ? badge("revoked", "bad") : hasExpired(one) ? badge("expired", "bad") : null,
      one.read_only ? badge("only reads", "quiet") : null,
      one.id === me()?.key?.id ? h("span", { class: "chip" }, "you") : null,
    ),
    h(
      "p",
      { class: "soft small" },
      one.last_used_at ? ["Used ", since(one.last_used_at)] : "Never used",
      " · made ",
      since(one.created_at),
      isRevoked ? [" · revoked ", since(one.revoked_at)] : null,
    ),
    one.expires_at && !isRevoked
      ? h("p", { class: "soft small" }, hasExpired(one) ? "Expired " : "Expires ", dateAndTime(one.expires_at))
      : null,
    one.former_until ? h("p", { class: "soft small" }, "The old secret works until ", dateAndTime(one.former_until)) : null,
    one.templates ? h("p", { class: "soft small" }, "May use ", one.templates.map(visible).join(", ")) : null,
    h("p", { class: "soft small mono key-id" }, visible(one.id)),
    isRevoked
      ? null
      : h(
          "div",
          { class: "meters" },
          [...LIMITS, ...BUDGETS].filter(([name]) => one.limits[name]).map(([name, label]) => meter(one.used[name], one.limits[name], label)),
        ),
    isRevoked
      ? null
      : h(
          "div",
          { class: "row end" },
          actButton("Change", () => change(one, changed), { title: "Budgets, limits, agents, expiry" }),
          actButton("Rotate", () => rotate(one, changed), { title: "A new secret for the same key" }),
          actButton("Revoke", () => revoke(one, changed), { tone: "danger" }),
        ),
  );
}

function hasExpired(one) {
  return Boolean(one.expires_at) && new Date(one.expires_at) <= new Date();
}

/** The fields of what a key may do, and what they say: `only` leaves out what is as it was. */
function scopeFields(one = {}) {
  const numbers = [...LIMITS, ...BUDGETS].map(([field, label], nth) => [
    field,
    label,
    h("input", {
      type: "number",
      min: 1,
      id: `key-${field}`,
      value: one[field] ?? "",
      placeholder: nth < LIMITS.length ? "as the settings say" : "no limit",
    }),
  ]);
  const templates = h("input", {
    type: "text",
    id: "key-templates",
    value: (one.templates ?? []).join(", "),
    placeholder: "all agents, or names with commas",
  });
  const expiry = h("input", { type: "datetime-local", id: "key-expires_at", value: localMoment(one.expires_at) });
  const reads = h("input", { type: "checkbox", id: "key-read_only", checked: Boolean(one.read_only) });
  const given = () => {
    const names = templates.value.split(",").map((name) => name.trim()).filter(Boolean);
    return {
      ...Object.fromEntries(numbers.map(([field, , input]) => [field, input.value ? Number(input.value) : null])),
      templates: names.length ? names : null,
      expires_at: expiry.value ? new Date(expiry.value).toISOString() : null,
      read_only: reads.checked,
    };
  };
  const before = given();
  return {
    only: () => Object.fromEntries(Object.entries(given()).filter(([field, value]) => String(value) !== String(before[field]))),
    node: [
      h("div", { class: "limit-fields" }, numbers.map(([, label, input]) => h("label", {}, label, input))),
      h("label", {}, "Agents that it may use", templates),
      h("label", {}, "Expires", expiry),
      h("label", { class: "row" }, reads, " It only reads"),
    ],
  };
}

/** A moment as the browser's own field writes it, in the time zone of whoever looks. */
function localMoment(moment) {
  if (!moment) return "";
  const at = new Date(moment);
  return new Date(at.getTime() - at.getTimezoneOffset() * 60_000).toISOString().slice(0, 16);
}

function refused(error, problem) {
  const param = problem.param ?? errorsOf(problem)[0]?.path;
  error.textContent = problem.message;
  error.hidden = false;
  document.getElementById(`key-${param}`)?.focus();
}

async function change(one, changed) {
  const done = await dialog(`Change “${plainLine(one.name, 60)}”`, (close) => {
    const fields = scopeFields(one);
    const error = h("p", { class: "field-error", role: "alert", hidden: true });
    const save = async () => {
      const changes = fields.only();
      if (!Object.keys(changes).length) return close(false);
      try {
        close(await patch(`${PATH}/${encodeURIComponent(one.id)}`, changes));
      } catch (problem) {
        refused(error, problem);
      }
    };
    return h(
      "form",
      {
        class: "stack",
        onsubmit: (event) => {
          event.preventDefault();
          save();
        },
      },
      h("p", { class: "soft" }, "Sessions that wait for a budget go on when it is raised. Days and months are those of UTC."),
      fields.node,
      error,
      h("div", { class: "row end" }, h("button", { class: "button primary" }, "Save")),
    );
  });
  if (!done) return;
  say("It is changed.");
  await changed();
}

async function create(changed) {
  const wasOpen = me()?.is_open;
  const made = await dialog("New key", newKey);
  if (!made) return;
  // The secret comes first: the first key closes the door behind this page too.
  await showSecret(`The key “${plainLine(made.name, 60)}”`, made.key, "API key", KEPT);
  if (wasOpen && made.role === "admin") await signedInWith(made.key);
  await changed();
}

function newKey(close) {
  const name = h("input", { type: "text", id: "key-name", placeholder: "the website", autofocus: true });
  const owner = h("input", { type: "text", id: "key-owner", placeholder: "shop" });
  const role = h(
    "select",
    { id: "key-role" },
    h("option", { value: "user" }, "user: the owner's sessions"),
    h("option", { value: "admin" }, "admin: everything"),
  );
  const fields = scopeFields();
  const error = h("p", { class: "field-error", role: "alert", hidden: true });
  const make = async () => {
    const asked = { name: name.value.trim(), owner: owner.value.trim(), role: role.value, ...fields.only() };
    try {
      close(await post(PATH, asked));
    } catch (problem) {
      refused(error, problem);
    }
  };
  if (me()?.is_open) role.value = "admin";
  return h(
    "form",
    {
      class: "stack",
      onsubmit: (event) => {
        event.preventDefault();
        make();
      },
    },
    me()?.is_open
      ? h(
          "p",
          { class: "draft-strip" },
          "The first key closes the door: from then on every program and browser needs one. Make it an admin key; this browser is signed in with it.",
        )
      : null,
    h("label", {}, "Name", name),
    h("label", {}, "Owner: whose sessions, documents and memory it reaches", owner),
    h("label", {}, "Role", role),
    fields.node,
    error,
    h("div", { class: "row end" }, h("button", { class: "button primary" }, "Make the key")),
  );
}

async function rotate(one, changed) {
  const overlap = h("select", { id: "key-overlap" }, OVERLAPS.map(([seconds, text]) => h("option", { value: seconds }, text)));
  const chosen = await dialog(`Rotate “${plainLine(one.name, 60)}”?`, (close) => [
    h("p", {}, "It gets a new secret. When the old one stops to work, programs that use it are refused, and browsers that it signed in are signed out."),
    h("label", {}, "Meanwhile", overlap),
    h(
      "div",
      { class: "row end" },
      button("Rotate", () => close(overlap.value), { tone: "primary" }),
    ),
  ]);
  if (!chosen) return;
  const { key } = await post(`${PATH}/${encodeURIComponent(one.id)}/rotate?overlap_seconds=${chosen}`);
  await showSecret(`The new secret of “${plainLine(one.name, 60)}”`, key, "API key", KEPT);
  if (one.id === me()?.key?.id) await signedInWith(key);
  await changed();
}

/** The frame of the page shows who is signed in: it is drawn anew. */
async function signedInWith(key) {
  await signIn(key);
  document.dispatchEvent(new CustomEvent("moved", { detail: { json: PATH } }));
}

async function revoke(one, changed) {
  const all = await wholeList((before) => get(PATH, { limit: 200, before }));
  const admins = all.filter((other) => other.role === "admin" && !other.revoked_at);
  const isOwn = one.id === me()?.key?.id;
  const isLast = one.role === "admin" && admins.length === 1;
  const text = [
    "It is refused from now on, for ever, and its open streams end. What its owner has stays.",
    isOwn ? "It is the key of this browser: you are signed out at once." : "",
    isLast ? "It is the last admin key: without LONGHOUSE_ADMIN_KEY in the settings nobody can use this console as an admin afterwards." : "",
  ];
  const title = isOwn ? "Revoke your own key?" : `Revoke “${plainLine(one.name, 60)}”?`;
  if (!(await confirmed(title, text.filter(Boolean).join(" "), "Revoke"))) return;
  await remove(`${PATH}/${encodeURIComponent(one.id)}`);
  say("It is revoked.");
  await changed();
}
