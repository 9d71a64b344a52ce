"""Takes a picture of every screen of the console, or measures how it behaves with very long lists (`--measure`)."""

import asyncio
import base64
import struct
import sys
import zlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import numpy as np
import numpy.typing as npt
from console_scene import NOBODY, Scene, furnish, said, shop
from long_lists import LONG, fill_many
from playwright.async_api import Browser, Page

from browser_helpers import NARROW, WIDE, open_browser
from longhouse.agents.strategies.protocol import Body
from longhouse.models.scripted import Say, step_of
from longhouse.models.scripted_server import serve as serve_model
from longhouse.store import migrate
from longhouse.store.database import open_database
from longhouse.store.postgres import open_postgres
from server_helpers import House, Serving, data_folder, process

FOLDER = Path(__file__).parents[2] / "docs" / "images"
COLOURS = 64
DARK = {"chat", "session"}
"""Screens that are shown in the dark too."""
NARROWED = {"chat-agents", "inbox"}
"""Screens that are shown as wide as a telephone too."""
SHOWN = (
    "chat", "chat-question", "chat-agents", "inbox", "sessions", "session", "session-model", "session-events",
    "agents", "agent", "agent-edit", "agent-versions", "tools", "tool-search", "tool", "documents", "document",
    "memory", "schedules", "operations", "keys",
)  # fmt: skip


async def take_pictures(browser: Browser, wanted: set[str]) -> None:
    async with scene_after_a_kill() as (url, scene):
        screens = scene.screens()
        for name in (one for one in SHOWN if not wanted or one in wanted):
            await picture(browser, url, name, *screens[name])
            if name in DARK:
                await picture(browser, url, f"{name}-dark", *screens[name], color_scheme="dark")
            if name in NARROWED:
                await picture(browser, url, f"{name}-narrow", *screens[name], viewport=NARROW)
    if not wanted or "welcome" in wanted:
        async with empty_house() as house:
            await picture(browser, house.url, "welcome", "/", ".example")


@asynccontextmanager
async def scene_after_a_kill() -> AsyncIterator[tuple[str, Scene]]:
    """The shop, whose server was killed in the middle of a plan, and went on."""
    is_slow = True

    def model(body: Body) -> Say:
        reply = shop(body)
        is_plan = is_slow and "planner" in str(body.messages[0].content) and step_of(body.messages) == 1
        return Say(calls=reply.calls, chunk=8, delay=0.2) if is_plan else reply

    with data_folder() as folder:
        async with serve_model(model) as served:
            settings = {
                "data_dir": str(folder),
                "llm_base_url": served.url,
                "llm_model": "qwen3-32b",
                "allow_egress": NOBODY,
            }
            async with process(**settings) as first:
                is_slow = False
                scene = await furnish(first.http)
                is_slow = True
                planning = asyncio.create_task(
                    said(first.http, "planner", "Plan three days in Bergen, below 900 euros.")
                )
                while len([one for one in served.requests if "planner" in str(one["messages"][0])]) < 4:
                    await asyncio.sleep(0.05)
                await asyncio.sleep(1)
                first.kill()
                await first.ended()
                await asyncio.wait([planning])
                planning.exception()
            is_slow = False
            async with process("serve", "--port", str(urlsplit(first.url).port), **settings) as second:
                async with second.http.get("/v1/sessions") as response:
                    rows = (await response.json())["data"]
                planned = next(row["session_id"] for row in rows if row["template"] == "planner")
                await second.until(planned, "COMPLETED", within=60)
                scene.planned = planned
                yield second.url, scene


@asynccontextmanager
async def empty_house(**settings: Any) -> AsyncIterator[House]:
    with data_folder() as folder:
        async with open_postgres(folder) as postgres:
            async with open_database(postgres.dsn) as db:
                await migrate.migrate(db, may_extend=postgres.vectors)
            async with Serving(postgres.dsn)(None, **settings) as house:
                yield house


async def picture(browser: Browser, url: str, name: str, path: str, there: str, **options: Any) -> None:
    context = await browser.new_context(**{"viewport": WIDE, "reduced_motion": "reduce", **options})
    page = await context.new_page()
    await page.goto(url + path)
    await page.locator(there).first.wait_for()
    await page.wait_for_timeout(500)  # fonts, and what slides in
    taken = await page.screenshot()
    await page.goto("about:blank")
    pixels = np.frombuffer(base64.b64decode(await page.evaluate(PIXELS, base64.b64encode(taken).decode())), np.uint8)
    size = options.get("viewport", WIDE)
    await context.close()
    (FOLDER / f"console-{name}.png").write_bytes(small_png(pixels.reshape(size["height"], size["width"], 4)[:, :, :3]))


PIXELS = """
async picture => {
  const bitmap = await createImageBitmap(await (await fetch(`data:image/png;base64,${picture}`)).blob());
  const canvas = new OffscreenCanvas(bitmap.width, bitmap.height).getContext("2d");
  canvas.drawImage(bitmap, 0, 0);
  return new Uint8Array(canvas.getImageData(0, 0, bitmap.width, bitmap.height).data.buffer).toBase64();
}
"""


def small_png(pixels: npt.NDArray[np.uint8]) -> bytes:
    """A PNG with a palette: colour by colour the one that is missed most; the others become the nearest."""
    height, width, _ = pixels.shape
    packed = pixels.astype(np.uint32) @ np.array([1 << 16, 1 << 8, 1], np.uint32)
    colours, nth, counts = np.unique(packed, return_inverse=True, return_counts=True)
    parts_of = np.stack([colours >> by & 255 for by in (16, 8, 0)], axis=1).astype(np.int64)
    palette, nearest = [], np.zeros(len(colours), np.uint8)
    missed = np.full(len(colours), np.iinfo(np.int32).max, np.int64)
    for number in range(min(COLOURS, len(colours))):
        palette.append(colours[np.argmax(missed * counts)])
        apart = ((parts_of - parts_of[np.argmax(missed * counts)]) ** 2).sum(axis=1)
        nearest[apart < missed] = number
        missed = np.minimum(missed, apart)
    rows = np.zeros((height, width + 1), np.uint8)  # each row begins with its filter: none
    rows[:, 1:] = nearest[nth].reshape(height, width)
    table = b"".join(int(one).to_bytes(3, "big") for one in palette)
    head = struct.pack(">IIBBBBB", width, height, 8, 3, 0, 0, 0)
    parts = ((b"IHDR", head), (b"PLTE", table), (b"IDAT", zlib.compress(rows.tobytes(), 9)), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body)) for kind, body in parts
    )


MARK = """
window.long = [];
new PerformanceObserver(list => window.long.push(...list.getEntries().map(one => Math.round(one.duration))))
  .observe({ type: "longtask", buffered: true });
"""
SCROLL = """
async down => {
  const main = document.querySelector(down);
  const before = window.long.length;
  const frames = [];
  let last = performance.now();
  for (let nth = 0; nth < 180; nth += 1) {
    main.scrollTop += 300;
    await new Promise(requestAnimationFrame);
    frames.push(performance.now() - last);
    last = performance.now();
  }
  return { scrolled: main.scrollTop, long: window.long.slice(before), slowest: Math.round(Math.max(...frames)) };
}
"""


async def measure(browser: Browser) -> None:
    async with empty_house() as house:
        await fill_many(house.db)
        for name, path, there, down in (
            ("10,000 sessions", "/sessions", ".session-row[data-session]", "#main"),
            ("2,000 events", f"/sessions/{LONG}?tab=events", ".event-row", "#main"),
            ("timeline of 2,000 events", f"/sessions/{LONG}", ".timeline", "#main"),
            ("talk of 2,000 events", f"/s/{LONG}", ".answer-foot", ".talk"),
        ):
            for nth in range(3):
                context = await browser.new_context(viewport=WIDE)
                page = await context.new_page()
                await page.add_init_script(MARK)
                print(name, nth + 1, await _measured(page, house.url + path, there, down), flush=True)
                await context.close()


async def _measured(page: Page, address: str, there: str, down: str) -> dict[str, Any]:
    """Milliseconds: until something is painted, until rows are there; tasks of more than 50, then and in scrolling."""
    await page.goto(address)
    await page.locator(there).first.wait_for()
    rows = await page.evaluate("Math.round(performance.now())")
    paint = await page.evaluate(
        "Math.round(performance.getEntriesByName('first-contentful-paint')[0]?.startTime ?? -1)"
    )
    await page.wait_for_timeout(1_500)
    opening = await page.evaluate("window.long.slice()")
    if down == ".talk":
        await page.evaluate("document.querySelector('.talk').scrollTop = 0")
    return {"first_paint": paint, "rows": rows, "opening": opening, "scrolling": await page.evaluate(SCROLL, down)}


async def main() -> None:
    FOLDER.mkdir(exist_ok=True)
    async with open_browser() as browser:
        if "--measure" in sys.argv:
            await measure(browser)
        else:
            await take_pictures(browser, set(sys.argv[1:]))


if __name__ == "__main__":
    asyncio.run(main())
