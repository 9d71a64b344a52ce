// Webhooks: who is told of what happens in sessions. Their state, the log of what was sent; make, switch, retry, delete.

import { get, patch, post, remove } from "../api.js";
import { fill, h } from "../dom.js";
import { dateAndTime, plainLine, visible } from "../format.js";
import { go } from "../router.js";
import { walking } from "../shortcuts.js";
import { actButton, badge, button, confirmed, dialog, empty, say, since, table } from "../ui.js";
import { showSecret } from "../parts/secret.js";

const PATH = "/v1/webhooks";
const EVENTS = [
  ["session.rested", "An agent has answered, or rests for another reason"],
  ["question.opened", "An agent asks something"],
  ["approval.needed", "A call needs an approval"],
  ["turn.failed", "A turn has failed"],
];
const TONES = { active: "good", paused: "bad", disabled: "quiet", delivered: "good", pending: "wait", failed: "bad" };
const KEPT = "Deliveries are signed with it; if it is lost, rotate it.";

const pathOf = (id, below = "") => `${PATH}/${encodeURIComponent(id)}${below}`;
const shortUrl = (one) => visible(plainLine(one.url, 90));

export async function webhookList() {
  const place = h("div", { class: "stack" });

  async function load() {
    const { data } = await get(PATH, { limit: 200 });
    fill(place, data.length ? listed(data) : empty("There is no webhook yet. A webhook tells another program when an agent has answered, asks something, or has failed."));
  }

  function listed(rows) {
    return table(
      ["Webhook", "State", ["Told of", "only-wide"], ["Changed", "only-wide"], ["", "number only-wide"]],
      rows.map((one) => [
        h(
          "div",
          {},
          h("a", { class: "webhook-url", href: `/webhooks/${encodeURIComponent(one.id)}` }, shortUrl(one)),
          h("div", { class: "soft small", dir: "auto" }, visible(one.description)),
        ),
        state(one),
        h("div", { class: "small" }, one.events.join(", "), one.agent ? h("div", { class: "soft" }, `of ${visible(one.agent)} alone`) : null),
        since(one.updated_at),
        h("div", { class: "row end" }, actions(one, () => load())),
      ]),
      { caption: "Your webhooks, newest first" },
    );
  }

  await load();
  return {
    name: "webhooks",
    title: "Webhooks",
    json: PATH,
    node: h("div", { class: "wide stack" }, place),
    tools: button("New webhook", () => create(load), { tone: "primary", shape: "plus" }),
    keys: {
      ...walking(() => [...place.querySelectorAll("tbody tr")].map(focusable)),
      n: ["New webhook", () => create(load)],
    },
  };
}

function focusable(row) {
  row.tabIndex = -1;
  return row;
}

function state(one) {
  return h(
    "div",
    {},
    badge(one.status, TONES[one.status]),
    one.failing_since ? h("div", { class: "soft small" }, "nothing has arrived since ", dateAndTime(one.failing_since)) : null,
    one.reason ? h("div", { class: "soft small", dir: "auto" }, visible(one.reason)) : null,
  );
}

/** What can be done with a webhook; its address is said along, for who does not see the row. */
function actions(one, changed, { isWhole = false } = {}) {
  const isOn = one.status === "active";
  const named = (text) => ({ title: `${text}: ${shortUrl(one)}` });
  const turn = async () => {
    await patch(pathOf(one.id), { status: isOn ? "disabled" : "active" });
    say(isOn ? "It is switched off: nothing is recorded for it." : "It goes on.");
    await changed();
  };
  const test = async () => {
    await post(pathOf(one.id, "/test"));
    say("A test is being sent; the log tells how it went.");
    await changed();
  };
  const rotate = async () => {
    const { secret } = await post(pathOf(one.id, "/rotate"));
    await showSecret("The new secret", secret, "secret", KEPT);
    await changed();
  };
  const drop = async () => {
    if (!(await confirmed(`Delete ${shortUrl(one)}?`, "Its log goes, and what was not delivered yet is not sent any more.", "Delete"))) return;
    await remove(pathOf(one.id));
    say("It is deleted.");
    await changed(true);
  };
  return [
    isOn ? actButton("Test", test, named("Send a test")) : null,
    actButton(isOn ? "Switch off" : "Switch on", turn, named(isOn ? "Switch off" : "Switch on")),
    isWhole ? actButton("Rotate", rotate, named("A new secret")) : null,
    actButton("Delete", drop, { tone: "danger", ...named("Delete") }),
  ];
}

export async function oneWebhook({ id }) {
  const place = h("div", { class: "wide stack" });

  async function load(isGone = false) {
    if (isGone) return go("/webhooks");
    const [one, log] = await Promise.all([get(pathOf(id)), get(pathOf(id, "/deliveries"), { limit: 50 })]);
    fill(
      place,
      h("div", { class: "row" }, state(one), h("span", { class: "grow" }), button("Look again", () => load()), actions(one, load, { isWhole: true })),
      h("h2", {}, "What was sent"),
      log.data.length ? deliveries(one, log.data, load) : h("p", { class: "soft" }, "Nothing was sent yet."),
    );
    return one;
  }

  const one = await load();
  return {
    name: "webhook",
    title: plainLine(one.url, 60),
    json: pathOf(id),
    node: place,
    tools: h("a", { class: "button plain", href: "/webhooks" }, "All webhooks"),
    keys: { r: ["Look again", () => load()] },
  };
}

function deliveries(one, rows, changed) {
  const again = async (delivery) => {
    await post(pathOf(one.id, `/deliveries/${encodeURIComponent(delivery.id)}/retry`));
    say("It is sent again.");
    await changed();
  };
  return table(
    ["Event", "State", "Answer", ["When", "only-wide"], ["", "number"]],
    rows.map((delivery) => [
      h(
        "div",
        {},
        visible(delivery.type),
        delivery.session_id ? h("div", { class: "small" }, h("a", { href: `/sessions/${encodeURIComponent(delivery.session_id)}` }, "session")) : null,
      ),
      badge(delivery.attempts > 1 ? `${delivery.status}, ${delivery.attempts} attempts` : delivery.status, TONES[delivery.status]),
      h(
        "div",
        { dir: "auto" },
        delivery.last_status ?? "",
        h("span", { class: "soft small" }, visible(delivery.last_error ?? "")),
        delivery.next_attempt_at && delivery.status === "pending" ? h("div", { class: "soft small" }, "again ", since(delivery.next_attempt_at)) : null,
      ),
      since(delivery.created_at),
      one.status === "active" ? actButton("Retry", () => again(delivery), { title: `Send ${delivery.type} again` }) : null,
    ]),
    { caption: "The last fifty, newest first" },
  );
}

async function create(changed) {
  const made = await dialog("New webhook", newWebhook);
  if (!made) return;
  await showSecret("The secret of the webhook", made.secret, "secret", KEPT);
  await changed();
}

function newWebhook(close) {
  const fields = {
    url: h("input", { type: "url", id: "webhook-url", placeholder: "https://example.com/longhouse", autofocus: true }),
    agent: h("input", { type: "text", id: "webhook-agent", placeholder: "all agents" }),
    description: h("input", { type: "text", id: "webhook-description", dir: "auto" }),
  };
  const boxes = EVENTS.map(([name, text]) => [name, text, h("input", { type: "checkbox", checked: true })]);
  const error = h("p", { class: "field-error", role: "alert", hidden: true });
  const make = async () => {
    const given = Object.entries(fields).map(([name, input]) => [name, input.value.trim()]);
    const events = boxes.filter(([, , box]) => box.checked).map(([name]) => name);
    try {
      close(await post(PATH, { ...Object.fromEntries(given.filter(([, value]) => value)), events }));
    } catch (problem) {
      error.textContent = problem.message;
      error.hidden = false;
      (fields[problem.param] ?? boxes[0][2]).focus();
    }
  };
  return h(
    "form",
    {
      class: "stack",
      novalidate: true,
      onsubmit: (event) => {
        event.preventDefault();
        make();
      },
    },
    h("label", {}, "Address: where events are sent by POST", fields.url),
    h("fieldset", { class: "stack" }, h("legend", { class: "soft small" }, "Told of"), boxes.map(([, text, box]) => h("label", { class: "inline" }, box, text))),
    h("label", {}, "Only sessions of this agent", fields.agent),
    h("label", {}, "Description", fields.description),
    error,
    h("div", { class: "row end" }, h("button", { class: "button primary" }, "Make the webhook")),
  );
}
