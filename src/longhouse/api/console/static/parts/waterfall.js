// The waterfall of a session: what happened when, on one time axis, with what held it up and who went on with it.

import { fill, h, icon, ICONS } from "../dom.js";
import { clock, duration, plainLine, span, words } from "../format.js";
import { stateBadge } from "../ui.js";
import { axisOf, ticksOf } from "./time_axis.js";
import { rangeOf, rowsOf, whyIdle, workOf } from "./timeline_rows.js";
import { Windowed } from "./windowed.js";

const ROW = 34;
const NARROW_ROW = 52;
const MANY_TURNS = 5;
const narrow = matchMedia("(max-width: 760px)");
const SHAPES = { step: ICONS.thought, call: ICONS.tools, agent: ICONS.agent, takeover: ICONS.shield };
const LEGEND = [
  ["model", "Model"],
  ["tool", "Tool"],
  ["agent", "Sub-agent"],
  ["person", "Waits for a person, or the client"],
  ["agent-wait", "Waits for an agent"],
  ["retry", "Retry"],
  ["lost", "Worker lost, taken over"],
];
const IDLE = {
  clarification: "for an answer",
  approval: "for approval",
  unknown_outcome: "for a decision",
  worker_lost: "for a decision",
  client: "for the client",
  retry: "until the retry",
  agent: "for an agent",
  idle: "idle",
  lost: "no worker",
};
const LOOKS = {
  turn: "Turn",
  model: "Model",
  tool: "Tool",
  agent: "Sub-agent",
  person: "Waited for a person, or the client",
  "agent-wait": "Waited for an agent",
  retry: "Waited to try again",
  "retry-mark": "The model call failed",
  lost: "No worker",
  handed: "Handed over",
};

/** `onOpen(row)` is called when somebody opens a row; null: it is closed. */
export class Waterfall {
  constructor({ onOpen, onEarlier = () => {} }) {
    Object.assign(this, { onOpen, onEarlier, folded: new Set(), zoom: null, at: -1, rows: [], opened: "", version: 0 });
    this.build();
    this.onNarrow = () => this.draw();
    narrow.addEventListener("change", this.onNarrow);
    this.timer = setInterval(() => this.isLive && !document.hidden && this.draw(), 1000);
  }

  close() {
    clearInterval(this.timer);
    narrow.removeEventListener("change", this.onNarrow);
    this.list.close();
  }

  build() {
    this.list = new Windowed({
      height: ROW,
      keyOf: (nth) => this.rows[nth].key,
      make: () => this.make(),
      update: (element, nth) => this.update(element, nth),
      attributes: { class: "waterfall-rows", role: "rowgroup" },
    });
    this.legend = h(
      "ul",
      { class: "waterfall-legend", "aria-label": "Legend" },
      LEGEND.map(([look, label]) => h("li", { data: { look } }, h("i", { class: classOf(look) }), label)),
    );
    this.behind = h("div", { class: "waterfall-behind", "aria-hidden": "true" });
    this.axisPlace = h("div", { class: "waterfall-axis" });
    this.zoomed = h(
      "button",
      { type: "button", class: "button small", hidden: true, onclick: () => this.zoomTo(null) },
      "Whole session",
    );
    this.foldAll = h(
      "button",
      { type: "button", class: "button plain small", onclick: () => this.toggleAll() },
      "Fold all",
    );
    this.earlier = h("button", {
      type: "button",
      class: "button small",
      hidden: true,
      onclick: () => this.onEarlier(),
    });
    this.tip = h("div", { class: "waterfall-tip", role: "tooltip", id: "waterfall-tip", hidden: true });
    const head = h(
      "div",
      { class: "sr-only", role: "row" },
      ["What", "When", "How long"].map((label) => h("span", { role: "columnheader" }, label)),
    );
    this.grid = h(
      "div",
      { class: "waterfall-grid", role: "treegrid", "aria-label": "Timeline", onpointerleave: () => this.hideTip() },
      h("div", { role: "rowgroup" }, head),
      this.behind,
      this.list.node,
    );
    this.node = h(
      "div",
      { class: "waterfall" },
      h("div", { class: "waterfall-bar" }, this.legend, this.earlier, this.zoomed, this.foldAll),
      this.axisPlace,
      this.grid,
      this.tip,
    );
  }

  /** Shows a timeline, or a newer state of the one that is shown. */
  show(timeline) {
    this.timeline = timeline;
    this.isLive = [timeline, ...Object.values(timeline.children ?? {})].some((one) =>
      one.turns.some((turn) => !turn.ended_at),
    );
    this.earlier.hidden = !timeline.earlier_turns;
    this.earlier.textContent = `${timeline.earlier_turns} earlier turns`;
    if (!this.wasShown) this.begin();
    this.wasShown = true;
    this.draw();
  }

  /** The legend tells of what is there. */
  showLegend() {
    const looks = new Set(this.rows.flatMap((row) => row.bars.map((bar) => bar.look.split(" ")[0])));
    for (const item of this.legend.children)
      item.hidden = !this.shownLooks?.has(item.dataset.look) && !looks.has(item.dataset.look);
    this.shownLooks = new Set([...(this.shownLooks ?? []), ...looks]);
  }

  /** Of many turns an overview is shown first, and the one that runs. */
  begin() {
    const { turns, session_id: session } = this.timeline;
    if (turns.length <= MANY_TURNS) return;
    const keyOf = (turn) => `${session} turn ${turn.n}`;
    this.folded = new Set(turns.filter((turn) => turn.ended_at).map(keyOf));
    const running = turns.find((turn) => !turn.ended_at);
    if (running)
      this.setZoom({ key: keyOf(running), from: Date.parse(running.began_at), to: Date.now(), isOpen: true });
  }

  turns() {
    return this.rows.filter((row) => row.kind === "turn" && row.level === 1);
  }

  draw() {
    const now = Date.now();
    const [start, end] = rangeOf(this.timeline, now);
    this.now = Math.max(now, this.isLive ? end : 0);
    const current = this.rows[this.at]?.key;
    this.rows = rowsOf(this.timeline, this.folded, this.isLive ? this.now : end);
    this.at = current ? this.rows.findIndex((row) => row.key === current) : -1;
    const from = this.zoom?.from ?? start;
    // What still runs is shown up to now.
    const to = this.zoom && !(this.zoom.isOpen && this.isLive) ? this.zoom.to : end;
    this.axis = axisOf(workOf(this.timeline, this.isLive ? this.now : end), from, to);
    this.zoomed.hidden = !this.zoom;
    this.foldAll.hidden = !this.rows.some((row) => row.canFold);
    this.foldAll.textContent = this.folded.size ? "Unfold all" : "Fold all";
    this.grid.setAttribute("aria-rowcount", this.rows.length + 1);
    this.height = narrow.matches ? NARROW_ROW : ROW;
    this.version += 1;
    this.showLegend();
    this.drawAxis();
    this.drawBehind();
    this.list.show(this.rows.length, this.height);
  }

  drawAxis() {
    const ticks = ticksOf(this.axis, narrow.matches ? 0.25 : 0.13);
    let last = -1;
    const shown = ticks.filter(({ left, offset }) => {
      const isFree = offset || last < 0 || left - last > (narrow.matches ? 0.2 : 0.08);
      if (isFree) last = left;
      return isFree;
    });
    fill(
      this.axisPlace,
      h(
        "div",
        { class: "waterfall-scale", "aria-hidden": "true" },
        shown.map(({ left, moment, offset }) =>
          placed(
            h(
              "span",
              { class: ["tick", offset ? "" : "moment"] },
              offset ? `+${duration(offset / 1000)}` : clock(moment),
            ),
            left,
          ),
        ),
        this.axis.cuts.map((cut) => this.cutLabel(cut)),
      ),
    );
  }

  cutLabel(cut) {
    const why = IDLE[whyIdle(this.timeline, cut.from, cut.to, this.now)];
    const long = span((cut.to - cut.from) / 1000);
    const isAlone =
      !narrow.matches && this.axis.cuts.every((one) => one === cut || Math.abs(one.left - cut.left) > 0.22);
    return placed(
      h(
        "span",
        { class: ["cut-label", cut.left < 0.08 && "early", cut.left > 0.82 && "late"], title: `${long} ${why}` },
        h("b", {}, long),
        isAlone ? ` ${why}` : null,
      ),
      cut.left + cut.width / 2,
    );
  }

  /** What runs through all rows: cut times, and the takeovers of the turns that they happened in. */
  drawBehind() {
    const cuts = this.axis.cuts.map((cut) => placed(h("div", { class: "cut" }), cut.left, cut.width));
    const takeovers = this.rows.filter((row) => row.kind === "takeover").map((row) => this.takeoverBand(row));
    fill(this.behind, h("div", { class: "waterfall-plane" }, cuts, takeovers));
  }

  takeoverBand(row) {
    const ofTurn = this.rows
      .map((one, nth) => [one, nth])
      .filter(([one]) => one.turn === row.turn)
      .map(([, nth]) => nth);
    const band = placed(
      h("div", { class: ["takeover-band", row.isLoss ? "loss" : ""] }),
      this.axis.at(row.from),
      this.axis.at(row.to) - this.axis.at(row.from),
    );
    band.style.top = `${ofTurn[0] * this.height}px`;
    band.style.height = `${(ofTurn.at(-1) - ofTurn[0] + 1) * this.height}px`;
    return band;
  }

  /* Rows */

  /** An element that shows one row after the other. */
  make() {
    const at = () => this.rows.findIndex((one) => one.key === element.key);
    const element = h("div", {
      role: "row",
      tabindex: "-1",
      onclick: () => this.open(at()),
      onfocus: () => this.focused(at()),
      onblur: () => this.hideTip(),
      onpointermove: (event) => this.pointed(event, at()),
      ondblclick: () => this.zoomTo(this.rows[at()]),
      onkeydown: (event) => this.pressed(event, at()),
    });
    element.fold = h(
      "button",
      {
        type: "button",
        class: "fold-button",
        tabindex: "-1",
        onclick: (event) => {
          event.stopPropagation();
          this.toggle(element.key);
        },
      },
      icon(ICONS.down),
    );
    element.label = h("div", { role: "rowheader", class: "waterfall-label" });
    element.chart = h("div", { role: "gridcell", class: "waterfall-chart" });
    element.time = h("div", { role: "gridcell", class: "waterfall-time number" });
    element.append(element.label, element.chart, element.time);
    return element;
  }

  update(element, nth) {
    const row = this.rows[nth];
    const looks = ["waterfall-row", `of-${row.kind}`, row.isLoss && "loss", row.key === this.opened && "opened"];
    const shown = looks.filter(Boolean).join(" ");
    if (element.className !== shown) element.className = shown;
    element.tabIndex = nth === this.at || (this.at < 0 && nth === 0) ? 0 : -1;
    // While the list is scrolled, nothing else changes.
    if (element.key === row.key && element.version === this.version) return;
    element.key = row.key;
    element.version = this.version;
    element.setAttribute("aria-rowindex", nth + 2);
    element.setAttribute("aria-level", row.level);
    if (row.canFold) element.setAttribute("aria-expanded", String(!row.isFolded));
    else element.removeAttribute("aria-expanded");
    this.label(element, row);
    const bars = row.bars.map((bar) => this.bar(bar)).filter(Boolean);
    fill(
      element.chart,
      h("span", { class: "sr-only" }, `from ${clock(row.from)}`),
      bars,
      row.kind === "takeover" ? this.takeoverNote(row) : null,
    );
    element.time.textContent = row.kind === "takeover" && !row.isLoss ? "" : span((row.to - row.from) / 1000);
  }

  label(element, row) {
    const isZoomed = Boolean(this.zoom) && this.zoomed.dataset.key === row.key;
    const shown = [row.key, row.label, row.text, row.isFolded, row.status, row.waiting, row.state, isZoomed].join(" ");
    if (element.shown === shown) return;
    element.shown = shown;
    element.fold.setAttribute("aria-label", row.isFolded ? "Unfold" : "Fold");
    element.fold.classList.toggle("folded", Boolean(row.isFolded));
    element.label.style.paddingLeft = `${(row.level - 1) * 0.95}rem`;
    fill(
      element.label,
      row.canFold ? element.fold : h("span", { class: "fold-none" }),
      SHAPES[row.kind] ? icon(SHAPES[row.kind]) : null,
      this.name(row),
      h("span", { class: "waterfall-text", dir: "auto" }, row.text),
      this.mark(row),
    );
  }

  name(row) {
    if (row.kind !== "takeover") return h("span", { class: "waterfall-name" }, row.label);
    return h(
      "span",
      { class: "waterfall-name" },
      h("span", { class: "takeover-short" }, row.isLoss ? "Worker lost" : "Handed over"),
      h("span", { class: "takeover-whole" }, row.label),
    );
  }

  /** What happened stands where it happened: after its bar, before it, or on it where there is room for neither. */
  takeoverNote(row) {
    if (row.to < this.axis.start || row.from > this.axis.end) return null;
    const [from, to] = [this.axis.at(row.from), this.axis.at(row.to)];
    const side = to <= 0.5 ? "after" : from >= 0.5 ? "before" : "within";
    const text = row.isLoss ? row.label.replace(/^Worker lost/, "lost") : row.label;
    return placed(h("span", { class: ["takeover-note", side] }, text), side === "after" ? to : from);
  }

  mark(row) {
    if (row.kind === "turn") return [this.zoomButton(row), stateBadge(row.state)];
    if (row.waiting === "person" || row.waiting === "client") return h("span", { class: "badge wait" }, "waits");
    if (row.status === "error") return h("span", { class: "badge bad" }, "failed");
    if (row.status === "memory") return h("span", { class: "badge quiet" }, "memory");
    return row.isOpen && row.kind !== "turn" ? h("span", { class: "badge busy" }, "runs") : null;
  }

  zoomButton(row) {
    const isHere = Boolean(this.zoom && this.zoomed.dataset.key === row.key);
    return h(
      "button",
      {
        type: "button",
        class: "zoom-button",
        tabindex: "-1",
        "aria-label": "Zoom to this turn",
        "aria-pressed": String(isHere),
        onclick: (event) => {
          event.stopPropagation();
          this.zoomTo(isHere ? null : row);
        },
      },
      icon(ICONS.search),
    );
  }

  bar({ look, from, to }) {
    const [start, end] = [this.axis.start, this.axis.end];
    if (to < start || from > end) return null;
    const left = this.axis.at(Math.max(from, start));
    return placed(h("i", { class: classOf(look) }), left, this.axis.at(Math.min(to, end)) - left);
  }

  /* What somebody does */

  get keys() {
    return {
      j: ["Next row", () => this.move(1)],
      k: ["Previous row", () => this.move(-1)],
      o: ["Open the row", () => this.open(this.at)],
      z: ["Zoom to the row, or back", () => this.zoomTo(this.zoom ? null : this.rows[this.at])],
    };
  }

  move(by) {
    if (!this.rows.length) return;
    this.at = Math.max(0, Math.min(this.rows.length - 1, this.at < 0 ? 0 : this.at + by));
    this.list.reveal(this.at, this.axisPlace.offsetHeight + 8)?.focus({ preventScroll: true });
  }

  pressed(event, nth) {
    const row = this.rows[nth];
    const acts = {
      Enter: () => this.open(nth),
      Escape: () => this.open(-1),
      ArrowDown: () => this.move(1),
      ArrowUp: () => this.move(-1),
      ArrowRight: () => row.isFolded && this.toggle(row.key),
      ArrowLeft: () => row.canFold && !row.isFolded && this.toggle(row.key),
    };
    if (!acts[event.key] || event.target !== event.currentTarget) return;
    event.preventDefault();
    acts[event.key]();
  }

  open(nth) {
    const row = this.rows[nth] ?? null;
    this.hideTip();
    if (row) this.at = nth;
    this.opened = row && row.key !== this.opened ? row.key : "";
    this.list.schedule();
    this.onOpen(this.opened ? row : null);
  }

  /** Opens the row with this key, unfolding what hides it; false if there is none. */
  openKey(key) {
    this.folded.clear();
    this.draw();
    const nth = this.rows.findIndex((row) => row.key === key);
    if (nth < 0) return false;
    this.at = nth;
    this.opened = "";
    this.open(nth);
    requestAnimationFrame(() => this.list.reveal(nth, this.axisPlace.offsetHeight + 8));
    return true;
  }

  toggle(key) {
    const isOpened = this.folded.delete(key);
    if (!isOpened) this.folded.add(key);
    const row = this.rows.find((one) => one.key === key);
    // Beside many others, or where another one was looked at, a turn is too small to see anything in it.
    if (isOpened && row?.kind === "turn" && row.level === 1 && (this.zoom || this.turns().length > MANY_TURNS))
      this.zoomTo(row);
    else this.draw();
  }

  toggleAll() {
    if (this.folded.size) this.folded.clear();
    else this.folded = new Set(this.rows.filter((row) => row.canFold).map((row) => row.key));
    this.draw();
  }

  zoomTo(row) {
    this.setZoom(row);
    this.draw();
  }

  setZoom(row) {
    const margin = row ? Math.max(1, (row.to - row.from) * 0.02) : 0;
    this.zoom = row ? { from: row.from - margin, to: row.to + margin, isOpen: row.isOpen } : null;
    this.zoomed.dataset.key = row?.key ?? "";
  }

  /* The tip */

  focused(nth) {
    this.at = nth;
    const row = this.list.elements.get(this.rows[nth]?.key);
    if (!row?.matches(":focus-visible")) return;
    const box = row.chart.getBoundingClientRect();
    const bar = row.chart.querySelector(".bar")?.getBoundingClientRect();
    this.showTip(this.rows[nth], Math.max(box.left, bar?.left ?? 0), box.bottom);
  }

  pointed(event, nth) {
    if (event.pointerType === "touch" || !event.target.closest(".waterfall-chart")) this.hideTip();
    else this.showTip(this.rows[nth], event.clientX, event.clientY + 12);
  }

  showTip(row, x, y) {
    if (!row) return;
    if (this.tip.dataset.key !== row.key || this.tip.hidden) fill(this.tip, tipLines(row));
    this.tip.dataset.key = row.key;
    this.tip.hidden = false;
    const { offsetWidth, offsetHeight } = this.tip;
    this.tip.style.left = `${Math.max(8, Math.min(x, innerWidth - offsetWidth - 8))}px`;
    this.tip.style.top = `${y + offsetHeight + 8 > innerHeight ? y - offsetHeight - 28 : y}px`;
  }

  hideTip() {
    this.tip.hidden = true;
  }
}

/** From when to when, and how long. */
export function timesOf(row) {
  return `${clock(row.from)} – ${row.isOpen ? "now" : clock(row.to)} · ${span((row.to - row.from) / 1000)}`;
}

function tipLines(row) {
  const parts = new Map();
  for (const { look, from, to } of row.bars) {
    const name = LOOKS[look.split(" ")[0]];
    parts.set(name, (parts.get(name) ?? 0) + (to - from) / 1000);
  }
  return [
    h("strong", { dir: "auto" }, plainLine(row.kind === "takeover" ? row.label : `${row.label} ${row.text}`, 140)),
    h("span", {}, timesOf(row)),
    [...parts]
      .slice(row.kind === "turn" ? 1 : 0)
      .map(([name, seconds]) => h("span", {}, seconds ? `${name}: ${span(seconds)}` : name)),
    row.status && row.status !== "ok" ? h("span", {}, words(row.status)) : null,
  ];
}

const classOf = (look) => ["bar", ...look.split(" ").map((one) => `is-${one}`)];

/** Puts an element along the axis; positions are shares of its width. */
function placed(element, left, width = null) {
  element.style.left = `${(left * 100).toFixed(3)}%`;
  if (width !== null) element.style.width = `${(Math.max(0, width) * 100).toFixed(3)}%`;
  return element;
}
