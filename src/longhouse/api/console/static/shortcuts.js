// The keyboard: each screen says which keys it knows, and `?` shows them all.

const everywhere = new Map();
let onScreen = new Map();
/** Keys that go through a list: only these act on while they are held down. */
const HELD = new Set(["j", "k"]);

/** A key that works on every screen. */
export function always(key, label, act) {
  everywhere.set(key, { label, act });
}

/** The keys of the present screen: `{key: [label, act]}`. */
export function forScreen(keys = {}) {
  onScreen = new Map(Object.entries(keys).map(([key, [label, act]]) => [key, { label, act }]));
}

export function known() {
  return [...onScreen, ...everywhere].map(([key, { label }]) => [key, label]);
}

function isTyping(target) {
  return target.isContentEditable || ["INPUT", "TEXTAREA", "SELECT"].includes(target.tagName);
}

export function listen() {
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || isTyping(event.target)) return;
    // In a dialog Escape closes it, as the browser does by itself.
    if (document.querySelector("dialog[open]")) return;
    const found = onScreen.get(event.key) ?? everywhere.get(event.key);
    if (!found) return;
    event.preventDefault();
    if (!event.repeat || HELD.has(event.key)) found.act();
  });
}

/** `j` and `k` through a list: the keys for `forScreen`. `items()` returns the rows as they are now. */
export function walking(items, open = (row) => row.querySelector("a")?.click()) {
  const move = (by) => () => {
    const rows = items();
    const at = rows.findIndex((row) => row.contains(document.activeElement));
    const next = rows[Math.max(0, Math.min(rows.length - 1, at < 0 ? 0 : at + by))];
    next?.focus();
    next?.scrollIntoView({ block: "nearest" });
  };
  const act = () => {
    const row = items().find((one) => one.contains(document.activeElement));
    if (row) open(row);
  };
  return { j: ["Next", move(1)], k: ["Previous", move(-1)], o: ["Open", act] };
}
