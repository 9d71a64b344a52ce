// All sessions: a long list that stays live, with facets, search, and what can be done with several at once.

import { blob, get, post, remove, withQuery } from "../api.js";
import { fill, h, icon, ICONS } from "../dom.js";
import { count, plainLine } from "../format.js";
import { isAdmin, sessionPath, sessionsPath } from "../me.js";
import { go, remember } from "../router.js";
import { actButton, confirmed, empty, errorBox, say, since } from "../ui.js";
import { facetBar } from "../parts/facets.js";
import { CARD_HEIGHT, headRow, ROW_HEIGHT, rowElement, updateRow } from "../parts/session_rows.js";
import { Windowed } from "../parts/windowed.js";

const PAGE = 100;
const EVERY = 3000;
/** Facets look through ten thousand sessions; they need not be of this second. */
const FACETS_EVERY = 20_000;
const MOVING = new Set([
  "INITED",
  "RESEARCHING",
  "WAITING_FOR_CLARIFICATION",
  "WAITING_FOR_APPROVAL",
  "WAITING_FOR_AGENT",
]);
const FILTERS = ["q", "state", "agent", "owner", "tool", "conversation"];
const narrow = matchMedia("(max-width: 760px)");

export async function sessionList(parameters, query) {
  const screen = new SessionList(query);
  screen.reload();
  return {
    name: "sessions",
    title: "Sessions",
    node: screen.node,
    json: screen.address(),
    keys: screen.keys,
    shown: () => screen.list.schedule(),
    close: () => screen.close(),
  };
}

/** Filters as the API names them. */
function parametersOf({ q, state, agent, owner, tool, conversation }) {
  return { q, state, template: agent, ...(isAdmin() ? { owner } : {}), tool, conversation_id: conversation };
}

class SessionList {
  constructor(query) {
    this.filters = Object.fromEntries(FILTERS.map((name) => [name, query[name] ?? ""]));
    this.rows = [];
    this.pages = [];
    this.selected = new Set();
    this.at = -1;
    this.lost = 0;
    this.build();
    this.timer = setInterval(() => this.poll(), EVERY);
    this.facetTimer = setInterval(() => document.hidden || this.loadFacets(), FACETS_EVERY);
    this.onVisible = () => document.hidden || this.poll();
    this.onNarrow = () => this.showRows();
    document.addEventListener("visibilitychange", this.onVisible);
    narrow.addEventListener("change", this.onNarrow);
  }

  close() {
    this.isClosed = true;
    clearInterval(this.timer);
    clearInterval(this.facetTimer);
    clearTimeout(this.typing);
    document.removeEventListener("visibilitychange", this.onVisible);
    narrow.removeEventListener("change", this.onNarrow);
    this.list.close();
  }

  /* What is shown */

  build() {
    this.search = h("input", {
      type: "search",
      value: this.filters.q,
      data: { search: "" },
      placeholder: "Search titles, tasks, ids",
      "aria-label": "Search sessions",
      oninput: () => this.typed(),
      onkeydown: (event) => event.key === "Escape" && this.search.blur(),
    });
    this.state = h("span", { class: "soft small", role: "status", hidden: true });
    this.total = h("span", { class: "soft sessions-total", "aria-live": "polite" });
    this.facets = h("div", { class: "facets" });
    this.actions = h("div", {
      class: "sessions-actions",
      role: "toolbar",
      "aria-label": "Selected sessions",
      hidden: true,
    });
    this.newer = h("button", { type: "button", class: "button newer", hidden: true, onclick: () => this.toTop() });
    this.all = h("input", {
      type: "checkbox",
      "aria-label": "Select all that are loaded",
      onclick: () => this.selectAll(),
    });
    this.list = new Windowed({
      height: ROW_HEIGHT,
      keyOf: (nth) => this.rows[nth].session_id,
      make: () => this.make(),
      update: (element, nth) => updateRow(element, this.rows[nth], this.looks(nth)),
      onDrawn: (first, last) => this.drawn(first, last),
      attributes: { role: "rowgroup" },
    });
    this.note = h("div", { class: "sessions-note" });
    this.head = headRow(this.all);
    this.grid = h(
      "div",
      {
        class: ["sessions-grid", isAdmin() && "with-owner"],
        role: "grid",
        "aria-label": "Sessions",
        "aria-multiselectable": "true",
      },
      h("div", { role: "rowgroup", class: "sessions-head" }, this.head),
      this.list.node,
    );
    this.node = h(
      "div",
      { class: "sessions" },
      h("div", { class: "sessions-bar" }, this.search, this.total, this.state, this.newer, this.actions),
      this.facets,
      this.grid,
      this.note,
    );
    this.keys = {
      j: ["Next session", () => this.move(1)],
      k: ["Previous session", () => this.move(-1)],
      o: ["Open the session", () => this.openRow()],
      x: ["Select or not", () => this.toggle(this.at)],
    };
  }

  make() {
    return rowElement({
      onSelect: (row) => this.toggle(this.indexOf(row.session_id)),
      onFocus: (row) => this.moveTo(this.indexOf(row.session_id)),
      onOpen: () => this.openRow(),
    });
  }

  looks(nth) {
    const { session_id: id } = this.rows[nth];
    return {
      isSelected: this.selected.has(id),
      isCurrent: nth === this.at || (this.at < 0 && nth === 0),
      nth,
      isNew: this.fresh?.has(id),
    };
  }

  setRows(rows) {
    this.rows = rows;
    this.places = null;
  }

  indexOf(id) {
    this.places ??= new Map(this.rows.map((row, nth) => [row.session_id, nth]));
    return this.places.get(id) ?? -1;
  }

  showRows() {
    this.list.show(this.rows.length, narrow.matches ? CARD_HEIGHT : ROW_HEIGHT);
    this.head.hidden = !this.rows.length;
  }

  showNote(...children) {
    fill(this.note, ...children);
  }

  /* Filters */

  address(path = sessionsPath()) {
    return withQuery(path, parametersOf(this.filters));
  }

  set(name, value) {
    this.filters[name] = value;
    this.reload();
  }

  typed() {
    clearTimeout(this.typing);
    this.typing = setTimeout(() => this.set("q", this.search.value.trim()), 250);
  }

  /** Reads the list anew, with the filters as they are now; they stand in the address. */
  async reload() {
    const reading = (this.reading = Symbol("reading"));
    remember(this.filters);
    document.dispatchEvent(new CustomEvent("moved", { detail: { json: this.address() } }));
    this.loadFacets();
    try {
      const page = await this.page();
      if (reading !== this.reading || this.isClosed) return;
      this.begin(page);
    } catch (error) {
      if (reading !== this.reading || this.isClosed) return;
      this.begin({ data: [], next: null });
      this.showNote(errorBox(error));
    }
  }

  begin(page) {
    this.setRows(page.data);
    this.pages = [{ before: "", after: null, next: page.next }];
    this.at = -1;
    this.fresh = null;
    this.newer.hidden = true;
    this.list.scroller.scrollTop = 0;
    this.showRows();
    this.showSelection();
    this.showEnd();
  }

  showEnd() {
    const isFiltered = FILTERS.some((name) => this.filters[name]);
    if (this.rows.length) this.showNote(this.pages.at(-1).next ? h("p", { class: "soft" }, "Loading more…") : null);
    else if (isFiltered) this.showNote(empty("No session fits.", this.clearButton()));
    else
      this.showNote(
        empty("There are no sessions yet.", h("a", { class: "button", href: "/" }, "Start one in the chat")),
      );
  }

  clearButton() {
    return h(
      "button",
      {
        type: "button",
        class: "button",
        onclick: () => {
          this.filters = Object.fromEntries(FILTERS.map((name) => [name, ""]));
          this.search.value = "";
          this.reload();
        },
      },
      "Clear all filters",
    );
  }

  page(before = "") {
    return get(sessionsPath(), { ...parametersOf(this.filters), before, limit: PAGE });
  }

  /** Counts of each facet among what the other filters leave, so that one can be changed for another. */
  async loadFacets() {
    const asked = (this.counting = Symbol("counting"));
    const path = `${sessionsPath()}/facets`;
    const answers = new Map();
    const without = (name) => {
      const address = withQuery(path, parametersOf({ ...this.filters, [name]: "" }));
      if (!answers.has(address)) answers.set(address, get(address));
      return answers.get(address);
    };
    try {
      const [shown, state, agent, owner, tool] = await Promise.all([
        without(null),
        ...["state", "agent", "owner", "tool"].map(without),
      ]);
      if (asked !== this.counting || this.isClosed) return;
      this.showFacets(shown, {
        state: state.states,
        agent: agent.agents,
        owner: owner.owners ?? {},
        tool: tool.failing_tools,
      });
    } catch (error) {
      if (asked === this.counting && !this.isClosed) fill(this.facets, h("p", { class: "soft small" }, error.message));
    }
  }

  showFacets(shown, values) {
    const number = `${shown.sessions.toLocaleString("en")}${shown.is_complete ? "" : "+"}`;
    this.total.textContent = `${number} ${shown.sessions === 1 ? "session" : "sessions"}`;
    this.grid.setAttribute("aria-rowcount", shown.is_complete ? shown.sessions + 1 : -1);
    fill(
      this.facets,
      facetBar(values, this.filters, (name, value) => this.set(name, value)),
      this.filters.conversation
        ? h(
            "button",
            { type: "button", class: "facet", "aria-pressed": "true", onclick: () => this.set("conversation", "") },
            `Conversation ${plainLine(this.filters.conversation, 30)}`,
            icon(ICONS.close),
          )
        : null,
    );
  }

  /* More rows, and newer ones */

  drawn(first, last) {
    this.sight = [first, last];
    if (this.pages.at(-1)?.next && last > this.rows.length - PAGE / 2) this.more();
  }

  async more() {
    const { next } = this.pages.at(-1);
    if (this.isLoading || !next) return;
    this.isLoading = true;
    const { reading } = this;
    try {
      const page = await this.page(next);
      if (reading !== this.reading || this.isClosed) return;
      const known = new Set(this.rows.map((row) => row.session_id));
      this.pages.push({ before: next, after: this.rows.at(-1).session_id, next: page.next });
      this.setRows([...this.rows, ...page.data.filter((row) => !known.has(row.session_id))]);
      this.showEnd();
    } catch (error) {
      say(error.message, "bad");
      // What failed is tried again when the list is scrolled, not at once.
      await new Promise((resolve) => setTimeout(resolve, EVERY));
    } finally {
      this.isLoading = false;
      if (!this.isClosed) this.showRows();
    }
  }

  /** Reads the first page again, and the page in sight if something moves in it. */
  async poll() {
    if (document.hidden || this.isPolling || !this.pages.length) return;
    this.isPolling = true;
    const { reading } = this;
    try {
      for (const asked of this.pagesToPoll()) {
        const page = await this.page(asked.before);
        if (reading !== this.reading || this.isClosed) return;
        this.merge(asked, page);
      }
      this.showLost(0);
    } catch {
      // One poll that fails is no news: a server that restarts is back with the next.
      if (!this.isClosed) this.showLost(this.lost + 1);
    } finally {
      this.isPolling = false;
    }
  }

  /** Says that the list is not of this moment, and since when. */
  showLost(number) {
    this.lost = number;
    this.state.hidden = number < 2;
    if (number === 2) fill(this.state, h("span", { class: "mark wait", "aria-hidden": "true" }), "Reconnecting; read last ", since(new Date(Date.now() - 2 * EVERY).toISOString()));
  }

  pagesToPoll() {
    const [first, last] = this.sight ?? [0, 0];
    const nth = Math.max(
      0,
      this.pages.findLastIndex((page) => page.after === null || this.indexOf(page.after) < first),
    );
    const isMoving = nth > 0 && this.rows.slice(first, last + 1).some((row) => MOVING.has(row.state));
    return isMoving ? [this.pages[0], this.pages[nth]] : [this.pages[0]];
  }

  /** Puts a page that was read again in the place of what it showed; what is in sight stays where it is. */
  merge(asked, page) {
    const from = asked.after === null ? 0 : this.indexOf(asked.after) + 1;
    if (asked.after !== null && from === 0) return;
    const to = page.next ? this.indexOf(page.data.at(-1)?.session_id) : this.rows.length - 1;
    if (page.next && to < 0) {
      if (asked.after === null) this.begin(page); // more came than a page holds
      return;
    }
    const before = this.rows.slice(from, to + 1);
    const known = new Set(before.map((row) => row.session_id));
    const current = this.rows[this.at]?.session_id;
    const anchor = this.anchor();
    this.fresh = new Set(page.data.map((row) => row.session_id).filter((id) => !known.has(id)));
    this.setRows([...this.rows.slice(0, from), ...page.data, ...this.rows.slice(to + 1)]);
    if (!page.next) {
      this.pages = this.pages.slice(0, this.pages.indexOf(asked) + 1);
      asked.next = null;
    }
    this.at = current ? this.indexOf(current) : -1;
    for (const id of this.selected) if (known.has(id) && this.indexOf(id) < 0) this.selected.delete(id);
    this.showRows();
    this.keep(anchor);
    this.showSelection();
    this.showEnd();
  }

  /** The first row in sight, if the list is scrolled. */
  anchor() {
    const nth = Math.max(0, Math.ceil(-this.list.top / this.list.height));
    return this.list.top < 0 && this.rows[nth] ? { id: this.rows[nth].session_id, nth } : null;
  }

  keep(anchor) {
    if (!anchor) {
      this.list.draw();
      return;
    }
    const moved = this.indexOf(anchor.id) - anchor.nth;
    if (moved && this.indexOf(anchor.id) >= 0) this.list.scroller.scrollTop += moved * this.list.height;
    this.list.draw();
    if (!this.fresh?.size) return;
    this.newer.hidden = false;
    fill(this.newer, "↑ Newer sessions");
  }

  toTop() {
    this.newer.hidden = true;
    this.list.scroller.scrollTop = 0;
  }

  /* Moving and selecting */

  move(by) {
    if (!this.rows.length) return;
    this.moveTo(Math.max(0, Math.min(this.rows.length - 1, this.at < 0 ? 0 : this.at + by)));
    this.list.reveal(this.at, this.head.offsetHeight + 8)?.focus({ preventScroll: true });
  }

  moveTo(nth) {
    if (nth === this.at) return;
    this.at = nth;
    this.list.schedule();
  }

  openRow() {
    const row = this.rows[this.at];
    if (row) go(`/sessions/${encodeURIComponent(row.session_id)}`);
  }

  toggle(nth) {
    const id = this.rows[nth]?.session_id;
    if (!id) return;
    if (!this.selected.delete(id)) this.selected.add(id);
    this.showSelection();
  }

  selectAll() {
    const isAll = this.rows.every((row) => this.selected.has(row.session_id));
    this.selected = new Set(isAll ? [] : this.rows.map((row) => row.session_id));
    this.showSelection();
  }

  showSelection() {
    const { size } = this.selected;
    this.all.checked = size > 0 && this.rows.every((row) => this.selected.has(row.session_id));
    this.all.indeterminate = size > 0 && !this.all.checked;
    this.list.schedule();
    if (size === this.shownSize) return;
    this.shownSize = size;
    this.actions.hidden = !size;
    this.total.hidden = size > 0;
    fill(
      this.actions,
      h("strong", {}, `${count(size)} selected`),
      actButton("Cancel", () => this.cancelSelected(), { title: "Cancel the running turn of each" }),
      actButton("Export", () => this.exportSelected(), { title: "One file of JSON Lines" }),
      actButton("Erase…", () => this.eraseSelected(), { tone: "danger" }),
      h(
        "button",
        {
          type: "button",
          class: "button plain",
          "aria-label": "Select none",
          onclick: () => {
            this.selected.clear();
            this.showSelection();
          },
        },
        icon(ICONS.close),
      ),
    );
  }

  /* What is done with those that are selected */

  async cancelSelected() {
    const moving = this.rows.filter((row) => this.selected.has(row.session_id) && MOVING.has(row.state));
    if (!moving.length) {
      say("None of these is running.");
      return;
    }
    const failed = await this.each(
      moving.map((row) => row.session_id),
      (id) => post(sessionPath(id, "/cancel")),
    );
    tell(moving.length - failed, "cancelled", failed);
    this.poll();
  }

  async eraseSelected() {
    const ids = [...this.selected];
    const what = ids.length === 1 ? "this session" : `${ids.length} sessions`;
    const text = "Their messages, files and memory are gone for good, with those of the sub-agents that they called.";
    if (!(await confirmed(`Erase ${what}?`, text, "Erase"))) return;
    const failed = await this.each(ids, async (id) => {
      await remove(sessionPath(id));
      this.selected.delete(id);
    });
    tell(ids.length - failed, "erased", failed);
    this.reload();
  }

  async exportSelected() {
    const parts = [];
    const ids = [...this.selected];
    const failed = await this.each(ids, async (id) => parts.push(await blob(sessionPath(id, "/export"))));
    if (parts.length)
      save(
        ids.length === 1 ? `${ids[0]}.jsonl` : `sessions-${parts.length}.jsonl`,
        new Blob(parts, { type: "application/x-ndjson" }),
      );
    if (failed) tell(parts.length, "exported", failed);
  }

  /** One after the other, so that a thousand are no burst; how many failed. */
  async each(ids, act) {
    let failed = 0;
    for (const id of ids) {
      try {
        await act(id);
      } catch {
        failed += 1;
      }
    }
    return failed;
  }
}

function tell(done, what, failed) {
  const sessions = (number) => `${number} ${number === 1 ? "session" : "sessions"}`;
  if (done) say(`${sessions(done)} ${what}.`);
  if (failed) say(`${sessions(failed)} could not be ${what}.`, "bad");
}

function save(name, content) {
  const address = URL.createObjectURL(content);
  h("a", { href: address, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(address), 10_000);
}
