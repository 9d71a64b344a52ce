// API keys: whose they are, when they were used, what of their limits; make, rotate, revoke.

import { get, post, remove } from "../api.js";
import { fill, h } from "../dom.js";
import { plainLine, visible } from "../format.js";
import { me, signIn } from "../me.js";
import { actButton, badge, button, code, confirmed, dialog, empty, say, since } from "../ui.js";
import { filterBox, wholeList } from "../parts/filter_box.js";
import { meter } from "../parts/figures.js";
import { errorsOf } from "../parts/schema_form.js";

const PATH = "/admin/keys";
const LIMITS = [
  ["rate_limit", "Requests a minute"],
  ["max_concurrent", "At the same time"],
  ["sessions_per_hour", "New sessions an hour"],
  ["max_running", "Sessions that run at once"],
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
      isRevoked ? badge("revoked", "bad") : null,
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
    h("p", { class: "soft small mono key-id" }, visible(one.id)),
    isRevoked
      ? null
      : h(
          "div",
          { class: "meters" },
          LIMITS.filter(([name]) => one.limits[name]).map(([name, label]) => meter(one.used[name], one.limits[name], label)),
        ),
    isRevoked
      ? null
      : h(
          "div",
          { class: "row end" },
          actButton("Rotate", () => rotate(one, changed), { title: "A new secret for the same key" }),
          actButton("Revoke", () => revoke(one, changed), { tone: "danger" }),
        ),
  );
}

async function create(changed) {
  const wasOpen = me()?.is_open;
  const made = await dialog("New key", newKey);
  if (!made) return;
  // The secret comes first: the first key closes the door behind this page too.
  await showSecret(`The key “${plainLine(made.name, 60)}”`, made.key);
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
  const limits = LIMITS.map(([field, label]) => [
    field,
    label,
    h("input", { type: "number", min: 1, id: `key-${field}`, placeholder: "as the settings say" }),
  ]);
  const error = h("p", { class: "field-error", role: "alert", hidden: true });
  const make = async () => {
    const given = Object.fromEntries(
      limits.filter(([, , input]) => input.value).map(([field, , input]) => [field, Number(input.value)]),
    );
    try {
      close(await post(PATH, { name: name.value.trim(), owner: owner.value.trim(), role: role.value, ...given }));
    } catch (problem) {
      const param = problem.param ?? errorsOf(problem)[0]?.path;
      error.textContent = problem.message;
      error.hidden = false;
      document.getElementById(`key-${param}`)?.focus();
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
    h(
      "div",
      { class: "limit-fields" },
      limits.map(([, label, input]) => h("label", {}, label, input)),
    ),
    error,
    h("div", { class: "row end" }, h("button", { class: "button primary" }, "Make the key")),
  );
}

function showSecret(title, secret) {
  return dialog(title, (close) => [
    h("p", {}, "This is shown once. We keep only its digest: if it is lost, rotate the key."),
    code(secret, "API key"),
    h(
      "div",
      { class: "row end" },
      button("I have it", () => close(true), { tone: "primary" }),
    ),
  ]);
}

async function rotate(one, changed) {
  const text =
    "It gets a new secret, and the old one stops to work at once: programs that use it are refused, and browsers that it signed in are signed out.";
  if (!(await confirmed(`Rotate “${plainLine(one.name, 60)}”?`, text, "Rotate"))) return;
  const { key } = await post(`${PATH}/${encodeURIComponent(one.id)}/rotate`);
  await showSecret(`The new secret of “${plainLine(one.name, 60)}”`, key);
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
