// What the model saw: the request of each step as it was sent, what each part of it weighs, and what is new in it.

import { get } from "../api.js";
import { fill, h } from "../dom.js";
import { clock, count, duration, plainLine, pretty, visible } from "../format.js";
import { sessionPath } from "../me.js";
import { code, errorBox, fold, empty } from "../ui.js";
import { lineDiff } from "./line_diff.js";
import { contentText, longCode, messageView } from "./message_view.js";

const PARTS = [
  ["system", "System prompt"],
  ["tools", "Tools"],
  ["history", "History"],
];
/** Steps at once: the server composes the request of each to say what it weighs. */
const PAGE = 40;
const isSystem = (message) => message.role === "system" || message.role === "developer";

/** `onChoose(n)` hears which step is shown. */
export class RequestView {
  constructor(session, { step = null, onChoose = () => {} }) {
    Object.assign(this, { session, onChoose, wanted: step, steps: [], requests: new Map(), chosen: null });
    this.list = h("div", {
      class: "step-list",
      role: "listbox",
      "aria-label": "Steps",
      onkeydown: (event) => this.pressed(event),
    });
    this.place = h("div", { class: "request" });
    this.node = h("div", { class: "requests" }, this.list, this.place);
    this.load();
  }

  async load() {
    try {
      this.put(await this.page());
      while (this.next && this.wanted && this.wanted < this.steps[0].n) await this.loadEarlier();
      if (this.steps.length) this.choose(this.has(this.wanted) ? this.wanted : this.steps.at(-1).n);
      else fill(this.node, empty("The model was not asked yet."));
    } catch (error) {
      fill(this.node, errorBox(error));
    }
  }

  page(before = null, limit = PAGE) {
    return get(sessionPath(this.session, "/steps"), { limit, before });
  }

  /** Reads the steps that came since, and none again; what is shown stays. */
  async refresh() {
    if (this.isReading) return;
    this.isReading = true;
    const last = this.steps.at(-1)?.n ?? 0;
    const came = await this.stepsAfter(last).catch(() => []);
    this.isReading = false;
    if (!came.length) return;
    if (!last) fill(this.node, this.list, this.place);
    const wasLast = this.chosen === last || !last;
    this.steps.push(...came);
    this.showList();
    if (wasLast && !this.place.contains(document.activeElement)) this.choose(this.steps.at(-1).n);
  }

  /** One at a time, until the last one is known: pages lead to earlier steps only. */
  async stepsAfter(last) {
    const came = [];
    for (;;) {
      const [step] = (await this.page(last + came.length + 2, 1)).data;
      if (!step || step.n <= last + came.length) return came;
      came.push(step);
    }
  }

  put(page) {
    this.steps = [...page.data, ...this.steps];
    this.next = page.next;
    this.showList();
  }

  has(n) {
    return this.steps.some((step) => step.n === n);
  }

  showList() {
    const heaviest = Math.max(1, ...this.steps.map((step) => weightOf(step)));
    fill(
      this.list,
      this.next
        ? h("button", { type: "button", class: "button small", onclick: () => this.loadEarlier() }, "Earlier steps")
        : null,
      this.steps.map((step) => this.option(step, heaviest)),
    );
  }

  async loadEarlier() {
    this.put(await this.page(this.next));
  }

  option(step, heaviest) {
    const isChosen = step.n === this.chosen;
    const called = step.tools.length ? step.tools.map((name) => plainLine(name, 40)).join(", ") : "answer";
    return h(
      "button",
      {
        type: "button",
        role: "option",
        class: "step-option",
        "aria-selected": String(isChosen),
        tabindex: isChosen ? "0" : "-1",
        data: { step: step.n },
        onclick: () => this.choose(step.n),
      },
      h(
        "span",
        { class: "step-line" },
        h("strong", {}, `Step ${step.n}`),
        h("span", { class: "soft small number" }, `${count(step.usage.prompt_tokens || weightOf(step))} tokens`),
      ),
      partBar(step.tokens, heaviest),
      h("span", { class: "soft small step-called" }, called),
    );
  }

  pressed(event) {
    const by = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (by) {
      event.preventDefault();
      this.move(by);
    }
  }

  move(by) {
    const nth = this.steps.findIndex((step) => step.n === this.chosen) + by;
    if (!this.steps[nth]) return;
    this.choose(this.steps[nth].n);
    this.list.querySelector('[aria-selected="true"]')?.focus();
  }

  get keys() {
    return { j: ["Next step", () => this.move(1)], k: ["Previous step", () => this.move(-1)] };
  }

  async choose(n) {
    this.chosen = n;
    this.onChoose(n);
    for (const option of this.list.querySelectorAll(".step-option")) {
      const isChosen = Number(option.dataset.step) === n;
      option.setAttribute("aria-selected", String(isChosen));
      option.tabIndex = isChosen ? 0 : -1;
      if (isChosen) option.scrollIntoView({ block: "nearest" });
    }
    try {
      const [now, before] = await Promise.all([this.request(n), n > 1 ? this.request(n - 1).catch(() => null) : null]);
      if (this.chosen === n)
        fill(
          this.place,
          this.show(
            this.steps.find((step) => step.n === n),
            now,
            before,
          ),
        );
    } catch (error) {
      if (this.chosen === n) fill(this.place, errorBox(error));
    }
  }

  /** The request of a step; it never changes, so it is read once. */
  request(n) {
    if (!this.requests.has(n)) {
      const asked = get(sessionPath(this.session, `/steps/${n}/request`));
      asked.catch(() => this.requests.delete(n));
      this.requests.set(n, asked);
    }
    return this.requests.get(n);
  }

  show(step, now, before) {
    const address = sessionPath(this.session, `/steps/${step.n}/request`);
    return [
      h(
        "header",
        { class: "request-head" },
        h(
          "div",
          {},
          h("h2", {}, `Step ${step.n}`),
          h(
            "p",
            { class: "soft small" },
            [`turn ${step.turn}`, plainLine(step.model, 60), clock(step.at), duration(step.seconds)]
              .filter(Boolean)
              .join(" · "),
          ),
        ),
        h(
          "span",
          { class: ["badge", now.matches ? "good" : "wait"], title: now.digest },
          now.matches ? "byte for byte as it was sent" : "composed again, differs from what was sent",
        ),
        h("a", { class: "button plain", href: address, target: "_blank", rel: "noopener" }, "JSON"),
      ),
      weights(step),
      selectionView(now.selection),
      ...requestParts(step, now.request, before?.request ?? null),
    ];
  }
}

const weightOf = (step) =>
  step.tokens ? step.tokens.system + step.tokens.tools + step.tokens.history : step.usage.prompt_tokens;

function partBar(tokens, whole) {
  const bar = h("span", { class: "part-bar", "aria-hidden": "true" });
  for (const [name] of tokens ? PARTS : []) {
    const part = h("i", { class: name });
    part.style.width = `${(100 * tokens[name]) / whole}%`;
    bar.append(part);
  }
  return bar;
}

const whole = (number) => number.toLocaleString("en");

/** What each part weighs: estimated by us, and what the model itself counted. */
function weights({ tokens, usage }) {
  const counted = usage.prompt_tokens
    ? `The model counted ${whole(usage.prompt_tokens)} in, ${whole(usage.completion_tokens)} out.`
    : "The model gave no count.";
  if (!tokens) return h("p", { class: "soft" }, counted);
  const sum = Math.max(1, tokens.system + tokens.tools + tokens.history);
  return h(
    "div",
    { class: "weights" },
    partBar(tokens, sum),
    h(
      "ul",
      { class: "weight-names" },
      PARTS.map(([name, label]) =>
        h("li", {}, h("i", { class: ["part-mark", name] }), `${label} `, h("b", {}, `≈ ${count(tokens[name])}`)),
      ),
    ),
    h("p", { class: "soft small" }, counted),
  );
}

function selectionView(selection) {
  if (!selection) return null;
  const scored = (list) =>
    h(
      "ul",
      { class: "scores" },
      list.map(({ name, score }) =>
        h(
          "li",
          {},
          h("span", { class: "mono" }, plainLine(name, 60)),
          h("span", { class: "soft number" }, score === null ? "–" : score.toFixed(3)),
        ),
      ),
    );
  const left = selection.left_out.length + selection.more;
  return fold(`More tools were allowed than fit: ${selection.offered.length} offered, ${left} left out`, () => [
    selection.query ? h("p", { dir: "auto" }, "Searched with: ", h("q", {}, visible(selection.query))) : null,
    h("h4", {}, "Offered"),
    scored(selection.offered),
    h("h4", {}, "Left out"),
    scored(selection.left_out),
  ]);
}

/* What is new */

function requestParts(step, request, before) {
  const { messages = [], tools = [], ...settings } = request;
  const compared = compare(messages, before?.messages ?? null);
  const share = sharesOf(messages, step.tokens);
  const views = compared.map((one) => [
    one,
    messageView(one.message, { note: one.note, tokens: share.get(one.message) ?? null, body: one.body }),
  ]);
  return [
    h("h3", { class: "request-part" }, "Messages ", summary(compared, before)),
    ...grouped(views),
    h(
      "h3",
      { class: "request-part" },
      "Tools ",
      h("span", { class: "soft small" }, toolNote(tools, before?.tools ?? null)),
    ),
    toolList(tools, before?.tools ?? null),
    h("h3", { class: "request-part" }, "Settings"),
    code(pretty(settings)),
  ];
}

/** Each message as `{message, note, body}`; note: empty if the step before had it, "new", "changed" or "gone". */
function compare(messages, before) {
  if (!before) return messages.map((message) => ({ message, note: "" }));
  const left = new Map();
  for (const message of before)
    left.set(JSON.stringify(message), [...(left.get(JSON.stringify(message)) ?? []), message]);
  const take = (message) => left.get(JSON.stringify(message))?.shift();
  const found = messages.map((message) => ({ message, note: take(message) ? "" : "new" }));
  const gone = [...left.values()].flat();
  for (const one of found.filter(({ note, message }) => note && isSystem(message))) {
    const nth = gone.findIndex(isSystem);
    if (nth < 0) continue;
    one.note = "changed";
    one.body = diffView(contentText(gone.splice(nth, 1)[0].content), contentText(one.message.content));
  }
  return [...gone.map((message) => ({ message, note: "gone" })), ...found];
}

function diffView(before, after) {
  const lines = lineDiff(before, after);
  const changed = lines.map(([mark], nth) => (mark === " " ? -1 : nth)).filter((nth) => nth >= 0);
  const isNear = (nth) => changed.some((one) => Math.abs(one - nth) <= 2);
  const shown = [];
  for (const [nth, [mark, line]] of lines.entries()) {
    if (isNear(nth))
      shown.push(h("div", { class: { "+": "added", "-": "removed" }[mark] ?? "same" }, `${mark} ${visible(line)}`));
    else if (shown.at(-1)?.className !== "skipped") shown.push(h("div", { class: "skipped" }, "⋯"));
  }
  return [
    h("div", { class: "step-diff", tabindex: "0" }, shown),
    fold("The whole text", () => h("div", { class: "plain-text", dir: "auto" }, visible(after))),
  ];
}

function summary(compared, before) {
  if (!before) return null;
  const number = (note) => compared.filter((one) => one.note === note).length;
  const said = [
    ["new", number("new")],
    ["changed", number("changed")],
    ["gone", number("gone")],
  ].filter(([, many]) => many);
  const text = said.length ? said.map(([note, many]) => `${many} ${note}`).join(", ") : "all as in the step before";
  return h("span", { class: "soft small" }, text);
}

/** Runs of messages that the step before had too are folded: what is new is what one looks for. */
function grouped(views) {
  const found = [];
  let same = [];
  const flush = () => {
    const kept = same;
    if (kept.length > 2)
      found.push(fold(`${kept.length} messages as in the step before`, () => kept.map(([, view]) => view)));
    else found.push(...kept.map(([, view]) => view));
    same = [];
  };
  const hasNotes = views.some(([one]) => one.note);
  for (const pair of views) {
    if (!pair[0].note && hasNotes) {
      same.push(pair);
      continue;
    }
    flush();
    found.push(pair[1]);
  }
  flush();
  return found;
}

/** About how many tokens each message has: the estimate of its part, shared by length. */
function sharesOf(messages, tokens) {
  const shares = new Map();
  if (!tokens) return shares;
  for (const [part, name] of [
    [messages.filter(isSystem), "system"],
    [messages.filter((one) => !isSystem(one)), "history"],
  ]) {
    const lengths = part.map((message) => JSON.stringify(message).length);
    const whole = lengths.reduce((sum, one) => sum + one, 0) || 1;
    part.forEach((message, nth) => shares.set(message, Math.round((tokens[name] * lengths[nth]) / whole)));
  }
  return shares;
}

const nameOf = (tool) => tool.function?.name ?? tool.name ?? "tool";

function toolNote(tools, before) {
  if (!before) return `${tools.length}`;
  const [now, then] = [new Set(tools.map(nameOf)), new Set(before.map(nameOf))];
  const added = [...now].filter((name) => !then.has(name)).length;
  const gone = [...then].filter((name) => !now.has(name)).length;
  return added || gone ? `${tools.length}, ${added} new, ${gone} gone` : `${tools.length}, as in the step before`;
}

function toolList(tools, before) {
  if (!tools.length) return h("p", { class: "soft" }, "None.");
  const then = before ? new Set(before.map(nameOf)) : null;
  return h(
    "div",
    { class: "tool-schemas" },
    tools.map((tool) => {
      const isNew = then && !then.has(nameOf(tool));
      return fold(
        h("span", { class: ["mono", isNew && "is-new"] }, plainLine(nameOf(tool), 80), isNew ? " · new" : ""),
        () => longCode(pretty(tool)),
      );
    }),
  );
}
