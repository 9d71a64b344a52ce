// The console: the frame around every screen, and which screen is where.

import { at, pathOf } from "./base.js";
import { fill, h, icon, ICONS } from "./dom.js";
import * as identity from "./me.js";
import { open, route, start } from "./router.js";
import * as shortcuts from "./shortcuts.js";
import { setTitle } from "./title.js";
import { dialog, empty, errorBox, runClocks, tick } from "./ui.js";
import { demoStrip } from "./parts/first_run.js";
import { watchQuestions } from "./parts/question_count.js";

/** Address, name and icon of each place; `admin`: only with an admin key. */
const PLACES = [
  ["/", "Chat", "chat"],
  ["/inbox", "Inbox", "inbox"],
  ["/sessions", "Sessions", "sessions"],
  ["/catalog/agents", "Agents", "agents", "admin"],
  ["/catalog/tools", "Tools", "tools", "admin"],
  ["/documents", "Documents", "documents"],
  ["/memory", "Memory", "memory"],
  ["/schedules", "Schedules", "schedules"],
  ["/webhooks", "Webhooks", "webhooks"],
  ["/operations", "Operations", "operations", "admin"],
  ["/keys", "Keys", "keys", "admin"],
];

/** Address, file and function of each screen; a file is fetched when its screen is opened first. */
const SCREENS = [
  ["/", "chat", "chat"], ["/s/:id", "chat", "chat"], ["/inbox", "inbox", "inbox"],
  ["/sessions", "sessions", "sessionList"], ["/sessions/:id", "session", "oneSession"],
  ["/catalog/agents", "agents", "agentList"], ["/catalog/agents/:name", "agents", "oneAgent"],
  ["/catalog/tools", "tools", "toolList"], ["/catalog/tools/:name", "tools", "oneTool"],
  ["/documents", "documents", "documentList"], ["/documents/:id", "documents", "oneDocument"],
  ["/schedules", "schedules", "scheduleList"], ["/schedules/:id", "schedules", "oneSchedule"],
  ["/webhooks", "webhooks", "webhookList"], ["/webhooks/:id", "webhooks", "oneWebhook"],
  ["/memory", "memory", "memoryFiles"], ["/operations", "operations", "operations"], ["/keys", "keys", "keys"],
];

const moduleOf = (file) => import(`./screens/${file}.js`);
const signIn = async (...given) => (await moduleOf("sign_in")).signIn(...given);

const main = h("main", { id: "main", tabindex: "-1" });
const nav = h("nav", { id: "places", "aria-label": "Places" });
const heading = h("h1", {});
const tools = h("div", { class: "row", id: "screen-tools" });
const strip = h("div", { id: "strip" });
const jsonLink = h("a", { class: "button plain", target: "_blank", rel: "noopener", title: "The same as the API tells it" }, "JSON");

function frame() {
  const menu = h("button", { type: "button", class: "button plain only-narrow", "aria-label": "Menu", "aria-expanded": "false", onclick: toggleMenu },
    icon(ICONS.menu), h("span", { class: "count question-count", hidden: true }));
  document.addEventListener("keydown", (event) => {
    if (event.key === "Escape" && document.body.classList.contains("menu-open")) closeMenu();
  });
  return [
    h("a", { class: "skip", href: "#main" }, "To the content"),
    h("div", { id: "scrim", onclick: closeMenu }),
    h("aside", { id: "side" }, h("a", { class: "brand", href: "/" }, icon("M12 3 2 11h3v9h14v-9h3z"), "Longhouse"), nav),
    h("div", { id: "body" }, strip, h("header", { id: "top" }, menu, heading, tools), main),
    h("div", { id: "messages", "aria-live": "polite" }),
  ];
  function toggleMenu() {
    const isOpen = document.body.classList.toggle("menu-open");
    menu.setAttribute("aria-expanded", String(isOpen));
    if (isOpen) nav.querySelector("a")?.focus();
  }
  function closeMenu() {
    document.body.classList.remove("menu-open");
    menu.setAttribute("aria-expanded", "false");
    menu.focus();
  }
}

function showPlaces() {
  const mine = identity.me()?.owner ? PLACES.filter(([, , , need]) => !need || identity.isAdmin()) : [];
  fill(nav, mine.map(([address, name, shape]) =>
    h("a", { href: address, class: "place", data: { place: address }, "aria-current": isHere(address) ? "page" : null },
      icon(ICONS[shape]), h("span", {}, name), address === "/inbox" ? h("span", { id: "question-count", class: "count question-count", hidden: true }) : null)),
    h("div", { class: "grow" }), footer());
}

function footer() {
  const who = identity.me();
  return h("div", { class: "side-foot" },
    h("button", { type: "button", class: "button plain", onclick: switchTheme }, icon(ICONS.theme), "Light or dark"),
    h("button", { type: "button", class: "button plain", onclick: help }, "? Shortcuts"),
    who?.owner && !who.is_open
      ? h("button", { type: "button", class: "button plain", onclick: leave }, `Sign out ${who.owner}`)
      : null);
}

function isHere(address) {
  const path = pathOf(location.pathname);
  return address === "/" ? path === "/" || path.startsWith("/s/") : path === address || path.startsWith(`${address}/`);
}

/**
 * Shows a screen: `{title, node, json?, tools?, keys?, shown?, close?}`; `json` is the address of what it shows, `shown`
 * is called once it is in the page.
 */
function show(screen) {
  document.body.classList.remove("menu-open");
  document.querySelector("#top > .only-narrow").setAttribute("aria-expanded", "false");
  document.body.dataset.screen = screen.name ?? "";
  setTitle(screen.title);
  showPlaces();
  fill(strip, demoStrip());
  shortcuts.forScreen(screen.keys);
  fill(tools, screen.tools ?? null, jsonLink);
  showJson(screen.json);
  if (screen.error) fill(main, errorBox(screen.error));
  else if (screen.missing) fill(main, empty("There is no such screen.", h("a", { href: "/" }, "To the chat")));
  else fill(main, screen.node);
  document.dispatchEvent(new CustomEvent("shown"));
  screen.shown?.();
}

/** What the screen shows, as the API tells it. */
function showJson(address) {
  jsonLink.hidden = !address;
  if (address) jsonLink.href = at(address);
}

/** Opens a screen only for somebody who is signed in; others are asked for a key first. */
const guarded = (file, name) => async (parameters, query) => {
  const [who, module] = await Promise.all([identity.me() ?? identity.load(), moduleOf(file)]);
  if (!who.owner) return signIn(parameters, query);
  watchQuestions();
  return module[name](parameters, query);
};

async function leave() {
  await identity.signOut();
  location.assign(at("/"));
}

function help() {
  // A screen without a search has no key for one.
  const canSearch = Boolean(document.querySelector("[data-search]"));
  const known = shortcuts.known().filter(([key]) => key !== "/" || canSearch);
  dialog("Shortcuts", () => h("dl", { class: "pairs" }, known.map(([key, label]) => [h("dt", {}, h("kbd", {}, key)), h("dd", {}, label)])));
}

function switchTheme() {
  const isDark = matchMedia("(prefers-color-scheme: dark)").matches;
  const now = document.documentElement.dataset.theme || (isDark ? "dark" : "light");
  setTheme(now === "dark" ? "light" : "dark");
}

function setTheme(theme) {
  document.documentElement.dataset.theme = theme;
  localStorage.setItem("theme", theme);
}

if (localStorage.getItem("theme")) setTheme(localStorage.getItem("theme"));
document.body.append(...frame());
for (const [address, file, name] of SCREENS) route(address, guarded(file, name));
route("/sign-in", signIn);
shortcuts.always("?", "This help", help);
shortcuts.always("/", "Search", () => document.querySelector("[data-search]")?.focus());
shortcuts.always("g", "To the inbox", () => document.querySelector('[data-place="/inbox"]')?.click());
shortcuts.listen();
document.addEventListener("signed-out", () => identity.load().then(open));
document.addEventListener("moved", ({ detail }) => {
  showJson(detail.json);
  showPlaces();
  document.dispatchEvent(new CustomEvent("shown"));
});
setInterval(tick, 5000);
setInterval(runClocks, 1000);
start(show);
