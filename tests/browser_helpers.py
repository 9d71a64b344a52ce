"""A real browser for the stories of the console: Debian's Chromium, driven by Playwright, and what it complains of."""

import os
import shutil
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import cache
from importlib import resources
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import pytest

if TYPE_CHECKING:
    from playwright.async_api import Browser, BrowserContext, ConsoleMessage, Dialog, Page, Request, ViewportSize

# The first is the same engine without windows, menus and extensions, for which the others have processes.
NAMES = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")
CHROMIUM = next(filter(None, map(shutil.which, NAMES)), None)
HOW_TO = (
    "The console is tested in Chromium, which is not installed: `apt-get install chromium` and run the tests again."
)
needs_chromium = pytest.mark.skipif(CHROMIUM is None, reason=HOW_TO)

WIDE: "ViewportSize" = {"width": 1280, "height": 820}
NARROW: "ViewportSize" = {"width": 390, "height": 844}
PATIENCE = 20_000
"""Milliseconds: for a machine that has other things to do."""
LOST = ("Failed to load resource: net::ERR_", "Failed to load resource: the server responded with a status of")
"""How Chromium tells of a request that failed; a story says so where that is what it is about."""
GO = """path => new Promise(done => {
    document.addEventListener("shown", done, { once: true });
    history.pushState(null, "", path);
    dispatchEvent(new PopStateEvent("popstate"));
})"""


@asynccontextmanager
async def open_browser() -> AsyncIterator["Browser"]:
    """One Chromium; stories open contexts in it, which share nothing."""
    from playwright.async_api import async_playwright  # noqa: PLC0415 - takes half a second, which few tests need

    # The sandbox of Chromium does not start for root, and /dev/shm of a container is small.
    arguments = ["--disable-dev-shm-usage", *(["--no-sandbox"] if os.geteuid() == 0 else [])]
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=CHROMIUM, args=arguments)
        try:
            yield browser
        finally:
            await browser.close()


async def go(page: "Page", path: str) -> None:
    """Has the console open another of its screens, as its links do: the page is not loaded again."""
    await page.evaluate(GO, path)


@dataclass
class Visit:
    """Somebody's browser on one server: its pages, and whatever they complained of or asked for elsewhere."""

    url: str
    context: "BrowserContext"
    complaints: list[str] = field(default_factory=list)
    foreign: list[str] = field(default_factory=list)
    may_fail: bool = False
    """Whether requests may fail: a server is killed, or a key revoked."""

    async def open(self, path: str = "/") -> "Page":
        """A new page at this address."""
        page = await self.context.new_page()
        await page.goto(self.url + path)
        return page

    def watch(self) -> None:
        self.context.on("request", self._requested)
        self.context.on("console", self._said)
        self.context.on("weberror", lambda error: self.complaints.append(f"error: {error.error}"))
        self.context.on("dialog", self._dialog)

    def _requested(self, request: "Request") -> None:
        if urlsplit(request.url).scheme not in ("data", "blob") and not request.url.startswith(f"{self.url}/"):
            self.foreign.append(request.url)

    def _said(self, message: "ConsoleMessage") -> None:
        is_known = self.may_fail and message.text.startswith(LOST)
        if message.type in ("error", "warning") and not is_known:
            self.complaints.append(f"{message.type}: {message.text} ({message.location})")

    async def _dialog(self, dialog: "Dialog") -> None:
        self.complaints.append(f"dialog: {dialog.message}")
        await dialog.dismiss()


@asynccontextmanager
async def visiting(browser: "Browser", url: str, **options: Any) -> AsyncIterator[Visit]:
    """A browser of one's own; in the end its pages must have complained of nothing and asked nobody else."""
    from playwright.async_api import expect  # noqa: PLC0415

    context = await browser.new_context(viewport=options.pop("viewport", WIDE), **options)
    context.set_default_timeout(PATIENCE)
    expect.set_options(timeout=PATIENCE)
    try:
        visit = Visit(url, context)
        visit.watch()
        yield visit
        assert visit.foreign == []
        assert visit.complaints == []
    finally:
        await context.close()


async def entries(page: "Page") -> list[str]:
    """What the talk shows, each entry by its key."""
    found: list[str] = await page.eval_on_selector_all(
        ".entry[data-key]", "all => all.map(one => `${one.dataset.key} ${one.className}`)"
    )
    return found


# Marks what stands in the same place and has the same form as something that was looked at before: rows of a list, the
# frame that all screens share. A form is all of an element but its words, and the values of what no style asks for.
MARK_KNOWN = """seen => {
    const styled = "class|type|role|style|open|hidden|disabled|aria-(?:current|selected|expanded|pressed|busy)";
    const plain = new RegExp(` ((?!(?:${styled})=)[\\\\w-]+)="[^"]*"`, "g");
    const form = one => one.outerHTML.replace(/>[^<]*[^<\\s][^<]*</g, ">t<").replace(plain, " $1");
    const known = new Set(seen);
    for (const one of document.querySelectorAll("[data-known]")) one.removeAttribute("data-known");
    const walk = (one, place) => {
        const here = `${place}>${one.tagName}.${one.className}`, key = `${here}|${form(one)}`;
        one.toggleAttribute("data-known", known.has(key));
        if (known.has(key)) return;
        known.add(key);
        for (const below of one.children) walk(below, here);
    };
    for (const one of document.body.children) walk(one, "");
    return [...known];
}"""


async def mark_known(page: "Page", seen: Sequence[str]) -> list[str]:
    """Marks what was seen before with `data-known`; all that was seen by now."""
    found: list[str] = await page.evaluate(MARK_KNOWN, seen)
    return found


async def findings(
    page: "Page", *, only: Sequence[str] = (), without: Sequence[str] = (), only_new: bool = False
) -> list[str]:
    """What axe-core finds on the page as it is now that is serious or worse; by rule, with the first elements.

    `only_new`: not of what `mark_known` has marked.
    """
    if not await page.evaluate("'axe' in window"):
        await page.evaluate(_axe())
    options: dict[str, Any] = {"resultTypes": ["violations"], "rules": {rule: {"enabled": False} for rule in without}}
    if only:
        options["runOnly"] = {"type": "rule", "values": list(only)}
    context = {"exclude": ["[data-known]"]} if only_new else None
    report = await page.evaluate("([context, options]) => axe.run(context ?? document, options)", [context, options])
    return [
        f"{one['id']}: {[node['target'] for node in one['nodes'][:3]]}"
        for one in report["violations"]
        if one["impact"] in ("serious", "critical")
    ]


@cache
def _axe() -> str:
    """The source of axe-core, which the package for Playwright brings along."""
    return (resources.files("axe_playwright_python") / "axe.min.js").read_text()
