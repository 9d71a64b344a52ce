"""A great deal in a browser: ten thousand sessions in the list, and a session of two thousand events."""

import asyncio

import pytest
from long_lists import LONG, fill_many
from playwright.async_api import Browser, expect

from browser_helpers import needs_chromium, visiting
from server_helpers import Serving

pytestmark = [needs_chromium, pytest.mark.asyncio(loop_scope="session")]

HEIGHT = "document.querySelector('.windowed').offsetHeight"
"""Of all rows that were read, in sight or not."""


async def test_long_lists_can_be_walked_to_their_end(serving: Serving, browser: Browser) -> None:
    async with serving() as house, visiting(browser, house.url) as visit:
        await fill_many(house.db)
        page = await visit.open("/sessions")
        rows = page.locator(".session-row[data-session]")
        await expect(page.locator(".sessions-total")).to_have_text("10,000+ sessions")
        assert await rows.count() < 100, "only those in sight are in the page"
        height = await page.evaluate(HEIGHT)
        for _ in range(4):
            await page.evaluate("document.querySelector('#main').scrollTop = 1e9")
            async with asyncio.timeout(20):
                while (now := await page.evaluate(HEIGHT)) <= height:
                    await asyncio.sleep(0.05)
            height = now
        assert int(await rows.last.get_attribute("aria-rowindex") or 0) > 400
        assert await rows.count() < 100
        # One far below is found without walking there.
        await page.get_by_role("searchbox", name="Search sessions").fill("agent_9999")
        await expect(rows).to_have_count(1)

        await page.goto(f"{house.url}/sessions/{LONG}?tab=events")
        events = page.locator(".event-row")
        await expect(events.first).to_be_visible()
        assert await events.count() < 100
        await page.evaluate("document.querySelector('#main').scrollTop = 1e9")
        await expect(events.last).to_contain_text("Finished")
        await expect(events.last).to_be_in_viewport()
        await page.goto(f"{house.url}/sessions/{LONG}")
        await expect(page.locator(".timeline")).to_be_visible()
        await page.goto(f"{house.url}/s/{LONG}")
        await expect(page.locator(".answer-foot")).to_be_visible()
