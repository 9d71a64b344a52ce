// Screens by address. Every screen has one that can be sent; going back and forth works as in any web site.

import { at, pathOf } from "./base.js";

const routes = [];
let show = null;
let current = null;
let visit = 0;

/** A screen at an address such as `/sessions/:id`; `screen(parameters, query)` returns what `open` shows. */
export function route(pattern, screen) {
  const names = [...pattern.matchAll(/:(\w+)/g)].map((found) => found[1]);
  routes.push({ expression: new RegExp(`^${pattern.replace(/:\w+/g, "([^/]+)")}/?$`), names, screen });
}

/** Starts at the present address; `shown(screen)` is called with each screen that is opened. */
export function start(shown) {
  show = shown;
  addEventListener("popstate", open);
  document.addEventListener("click", (event) => {
    const link = event.target.closest?.("a[href]");
    const isPlain = event.button === 0 && !event.metaKey && !event.ctrlKey && !event.shiftKey && !event.defaultPrevented;
    if (!link || !isPlain || link.target || link.hasAttribute("download") || link.origin !== location.origin) return;
    const path = pathOf(link.pathname);
    if (!find(path)) return;
    event.preventDefault();
    go(path + link.search);
  });
  return open();
}

export function go(address, { replace = false } = {}) {
  history[replace ? "replaceState" : "pushState"](null, "", at(address));
  return open();
}

/** Moves the present screen to another address, as when what it shows has got one. */
export function moveTo(address, json = null) {
  history.pushState(null, "", at(address));
  document.dispatchEvent(new CustomEvent("moved", { detail: { json } }));
}

/** Changes the query of the present address without opening its screen again. */
export function remember(query) {
  const given = Object.entries(query).filter(([, value]) => value);
  const text = new URLSearchParams(given).toString();
  history.replaceState(null, "", text ? `${location.pathname}?${text}` : location.pathname);
}

function find(path) {
  for (const { expression, names, screen } of routes) {
    const found = expression.exec(path);
    const values = found && decoded(found.slice(1));
    if (values) return { screen, parameters: Object.fromEntries(names.map((name, nth) => [name, values[nth]])) };
  }
  return null;
}

/** Parts of an address as they are meant; null where one is broken, such as `%E0%A4%A`. */
function decoded(parts) {
  try {
    return parts.map((part) => decodeURIComponent(part));
  } catch {
    return null;
  }
}

/** Opens the screen of the present address; one that was left meanwhile is not shown. */
export async function open() {
  const number = ++visit;
  const found = find(pathOf(location.pathname));
  const query = Object.fromEntries(new URLSearchParams(location.search));
  current?.close?.();
  current = null;
  let next;
  try {
    next = found ? await found.screen(found.parameters, query) : { title: "Not found", missing: true };
  } catch (error) {
    next = { title: "Error", error };
  }
  if (number !== visit) {
    next.close?.();
    return;
  }
  current = next;
  show(next);
}
