"""The console opens a branch at an event: the page of the branch says where it comes from."""

from pathlib import Path

import pytest
from playwright.async_api import Browser, expect

from browser_helpers import needs_chromium, visiting
from longhouse.models.scripted import call
from longhouse.models.scripted_server import serve as serve_model
from server_helpers import process

pytestmark = [needs_chromium, pytest.mark.asyncio(loop_scope="session")]


async def test_a_session_is_forked_after_an_event_that_somebody_looks_at(browser: Browser, folder: Path) -> None:
    async with serve_model(lambda body: call("finalanswertool", answer="Yes.", status="completed")) as model:
        settings = {"data_dir": str(folder), "llm_base_url": model.url}
        async with process(**settings) as house, visiting(browser, house.url) as visit:
            origin = (await house.say("Go", model="tool_calling_agent"))["model"]
            page = await visit.open(f"/sessions/{origin}?tab=events")
            await page.locator(".event-row", has_text="Started").click()
            await page.get_by_role("button", name="Fork after this event").click()
            await expect(page.locator(".session-facts")).to_contain_text("branch of another session, after event 3")
            assert origin not in page.url
            await expect(page.locator(".session-facts")).to_contain_text("completed", ignore_case=True)
            await page.get_by_role("link", name="another session").click()
            await expect(page.locator(".event-row").first).to_be_visible()
            assert origin in page.url
