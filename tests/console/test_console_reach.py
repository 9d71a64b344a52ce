"""Every screen of the console for everybody: axe-core finds nothing serious, light, dark, and on a telephone."""

import pytest
from console_scene import NOBODY, furnish, shop
from playwright.async_api import Browser, Page, expect

from browser_helpers import NARROW, WIDE, findings, go, mark_known, needs_chromium, visiting
from server_helpers import Serving

pytestmark = [needs_chromium, pytest.mark.asyncio(loop_scope="session")]

CONTRAST = ["color-contrast"]
HIDDEN_OR_SCROLLED = [
    "aria-hidden-focus", "button-name", "input-button-name", "label", "link-name", "scrollable-region-focusable",
    "target-size",
]  # fmt: skip
"""Rules that a screen may break when it becomes narrow: words of buttons are hidden, tables begin to scroll."""


async def test_no_screen_keeps_anybody_out(serving: Serving, browser: Browser) -> None:
    async with serving(shop, allow_egress=NOBODY) as house, visiting(browser, house.url) as visit:
        scene = await furnish(house.http)
        page = await visit.open()
        found: list[str] = []
        seen: list[str] = []
        for name, (path, there) in {"welcome": ("/", ".welcome"), **scene.screens()}.items():
            await go(page, path)
            await page.locator(there).first.wait_for()
            seen = await mark_known(page, seen)
            found += [f"{name}: {one}" for one in await _looked_at(page)]
            if name == "chat-agents":
                # Two tasks for one sub-agent, given at once: both cards end.
                await expect(page.locator("details.agent > summary > .mark.good")).to_have_count(2)
        assert not found, "\n".join(found)


async def _looked_at(page: Page) -> list[str]:
    """What is wrong with this screen; in the dark only colours differ, on a telephone what is hidden or scrolls."""
    # Colours take most of the time: each thing is looked at once in the light and once in the dark.
    light = await findings(page, without=["color-contrast"]) + await findings(page, only=CONTRAST, only_new=True)
    await page.emulate_media(color_scheme="dark")
    dark = await findings(page, only=CONTRAST, only_new=True)
    await page.set_viewport_size(NARROW)
    narrow = await findings(page, only=HIDDEN_OR_SCROLLED)
    over = await page.evaluate("document.documentElement.scrollWidth - innerWidth")
    await page.set_viewport_size(WIDE)
    await page.emulate_media(color_scheme="light")
    wider = [f"narrow: the page scrolls sideways by {over} px"] if over > 0 else []
    return [*light, *(f"dark: {one}" for one in dark), *(f"narrow: {one}" for one in narrow), *wider]
