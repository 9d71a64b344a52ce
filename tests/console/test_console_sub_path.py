"""The console below a path that a reverse proxy gives it: no link and no request leaves that path."""

import re

import pytest
from playwright.async_api import Browser, expect

from browser_helpers import needs_chromium, visiting
from server_helpers import Serving

pytestmark = [needs_chromium, pytest.mark.asyncio(loop_scope="session")]

ADMIN = "k3y-of-the-house-9f27"


async def test_all_links_and_requests_stay_below_the_path(serving: Serving, browser: Browser) -> None:
    async with serving(admin_key=ADMIN, root_path="/longhouse") as house:
        base = f"{house.url}/longhouse"
        async with visiting(browser, base) as visit:
            visit.may_fail = True
            page = await visit.open("/inbox")
            await page.get_by_label("API key").fill(ADMIN)
            await page.get_by_role("button", name="Sign in").click()
            await expect(page.locator("#places a")).to_have_count(11)
            assert page.url == f"{base}/inbox"
            links = await page.eval_on_selector_all("a[href]", "all => all.map(one => one.href)")
            assert all(link.startswith((f"{base}/", f"{base}/inbox#")) for link in links), links

            await page.locator('[data-place="/"]').click()
            await page.get_by_role("textbox").first.fill("Write a letter to Bob: it is on Friday.")
            await page.keyboard.press("Enter")
            await page.wait_for_url(f"{base}/s/**")
            await expect(page.locator("#main")).to_contain_text("Friday")
            await page.reload()
            await expect(page.locator("#main")).to_contain_text("Friday")
            await page.locator('[data-place="/sessions"]').click()
            await page.wait_for_url(f"{base}/sessions")
            await page.locator("#main a[href*='/sessions/']").first.click()
            await page.wait_for_url(f"{base}/sessions/**")
            shown = page.get_by_role("link", name="JSON", exact=True)
            await expect(shown).to_have_attribute("href", re.compile("^/longhouse/admin/sessions/secretary_"))
            await page.go_back()
            await page.wait_for_url(f"{base}/sessions")
            await page.get_by_role("button", name="Sign out").click()
            await page.wait_for_url(f"{base}/")
            await expect(page.get_by_label("API key")).to_be_visible()
