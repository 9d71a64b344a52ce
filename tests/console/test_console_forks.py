"""The console makes what goes on by itself, and shows what became of it: branches of sessions, schedules, webhooks."""

import asyncio
import re
from pathlib import Path
from typing import Any

import pytest
from playwright.async_api import Browser, Page, Route, expect

from browser_helpers import Visit, needs_chromium, visiting
from longhouse.models.scripted import call
from longhouse.models.scripted_server import serve as serve_model
from server_helpers import Process, free_port, process

pytestmark = [needs_chromium, pytest.mark.asyncio(loop_scope="session")]

PROMPT = "Что нового? 有什么新闻?"


async def test_what_goes_on_by_itself_is_made_and_looked_at_in_the_console(browser: Browser, folder: Path) -> None:
    async with serve_model(lambda body: call("finalanswertool", answer="Yes.", status="completed")) as model:
        away = f"127.0.0.1:{free_port()}"
        settings = {"data_dir": str(folder), "llm_base_url": model.url, "allow_egress": away}
        async with process(**settings) as house, visiting(browser, house.url) as visit:
            visit.may_fail = True  # answers are lost, and requests refused
            page = await _a_session_is_forked(visit, house)
            await _a_schedule_is_made(page, house)
            await _a_webhook_is_made(page, house, f"http://{away}/hook")


async def _a_session_is_forked(visit: Visit, house: Process) -> Page:
    """The page of the branch says where it comes from. A click whose answer was lost makes one branch with the next."""
    origin = (await house.say("Go", model="tool_calling_agent"))["model"]
    page = await visit.open(f"/sessions/{origin}?tab=events")
    keys: list[str | None] = []

    async def lost(route: Route) -> None:
        keys.append(route.request.headers.get("idempotency-key"))
        if len(keys) == 1:
            await route.fetch()
            await route.abort()
        else:
            await route.continue_()

    await page.route("**/fork", lost)
    await page.locator(".event-row", has_text="Started").click()
    await page.get_by_role("button", name="Fork after this event").click()
    await expect(page.get_by_role("alert")).to_contain_text("cannot be reached")
    await page.get_by_role("button", name="Fork after this event").click()
    await expect(page.locator(".session-facts")).to_contain_text("branch of another session, after event 3")
    assert keys[0] is not None
    assert keys == [keys[0]] * 2
    assert len((await got(house, "/v1/sessions"))["data"]) == 2
    assert origin not in page.url
    await expect(page.locator(".session-facts")).to_contain_text("completed", ignore_case=True)
    await page.get_by_role("link", name="another session").click()
    await expect(page.locator(".event-row").first).to_be_visible()
    assert origin in page.url
    return page


async def _a_schedule_is_made(page: Page, house: Process) -> None:
    """By the keyboard alone; what is wrong is said at its field."""
    await page.get_by_role("link", name="Schedules").click()
    await expect(page.locator("#main")).to_contain_text("There is no schedule yet")
    await page.keyboard.press("n")
    dialog = page.get_by_role("dialog")
    await expect(dialog.get_by_label("Prompt")).to_be_focused()
    await page.keyboard.type(PROMPT)
    await dialog.get_by_label("Agent").select_option("tool_calling_agent")
    await dialog.get_by_label("by cron").fill("every day")
    await dialog.get_by_label("Time zone").fill("Asia/Shanghai")
    await dialog.get_by_label("Name", exact=True).fill("<b>Утро</b>")
    await page.keyboard.press("Enter")
    await expect(dialog.get_by_role("alert")).to_contain_text("five fields")
    await expect(dialog.get_by_label("by cron")).to_be_focused()
    await page.keyboard.press("Control+A")
    await page.keyboard.type("0 9 1 1 *")
    await page.keyboard.press("Enter")
    row = page.locator("tbody tr")
    for words in ("<b>Утро</b>", "tool_calling_agent", "active", "0 9 1 1 *", "Asia/Shanghai", "in "):
        await expect(row).to_contain_text(words)
    await row.get_by_role("button", name="Run now").click()
    await expect(row).to_contain_text(re.compile("fired|completed"))  # the turn may have ended before the list is read
    [made] = (await got(house, "/v1/schedules"))["data"]
    assert (made["prompt"], made["last_run"]["manual"]) == (PROMPT, True)
    await house.until(made["last_run"]["session_id"], "COMPLETED")
    await row.get_by_role("button", name="Pause").click()
    await expect(row).to_contain_text("paused")
    await expect(row).to_contain_text("completed", ignore_case=True)
    await row.get_by_role("button", name="Resume").click()
    await expect(row).to_contain_text("active")
    await page.keyboard.press("j")
    await page.keyboard.press("o")
    await expect(page.locator("#main")).to_contain_text(PROMPT)
    await expect(page.locator("tbody tr")).to_contain_text("by hand")
    await page.get_by_role("link", name="what was said").click()
    await expect(page.locator(".session-facts")).to_contain_text("completed", ignore_case=True)
    await page.go_back()
    await page.get_by_role("button", name="Delete").click()
    await page.get_by_role("dialog").get_by_role("button", name="Delete").click()
    await expect(page.locator("#main")).to_contain_text("There is no schedule yet")
    assert (await got(house, "/v1/schedules"))["data"] == []
    # What comes once is shown by the clocks where it comes.
    once = {"template": "tool_calling_agent", "prompt": PROMPT, "at": "2035-01-02T08:00", "time_zone": "Asia/Shanghai"}
    async with house.http.post("/v1/schedules", json=once) as response:
        assert response.status == 201, await response.text()
    await page.get_by_role("link", name="Inbox").click()
    await page.get_by_role("link", name="Schedules").click()
    await expect(row).to_contain_text("08:00:00")
    async with house.http.post("/v1/schedules", json={**once, "name": "second"}) as response:
        assert response.status == 201, await response.text()
    await page.reload()
    await expect(row).to_have_count(2)
    await row.filter(has_text="second").get_by_role("button", name="Delete").click()
    await page.get_by_role("dialog").get_by_role("button", name="Delete").click()
    await expect(row).to_have_count(1)
    await expect(row).not_to_contain_text("second")


async def _a_webhook_is_made(page: Page, house: Process, url: str) -> None:
    """Its receiver is away: the log says so, and it is tried again by hand."""
    await page.get_by_role("link", name="Webhooks").click()
    await expect(page.locator("#main")).to_contain_text("There is no webhook yet")
    await page.keyboard.press("n")
    dialog = page.get_by_role("dialog")
    await expect(dialog.get_by_label("Address")).to_be_focused()
    await page.keyboard.type("http://169.254.169.254/")
    await page.keyboard.press("Enter")
    await expect(dialog.get_by_role("alert")).to_contain_text("metadata address")
    await page.keyboard.press("Control+A")
    await page.keyboard.type(url)
    await dialog.get_by_label("A turn has failed").uncheck()
    await dialog.get_by_label("Description").fill("справка 帮助")
    await page.keyboard.press("Enter")
    secret = page.get_by_role("dialog").locator("code")
    await expect(secret).to_contain_text("whsec_")
    first = await secret.text_content()
    await page.get_by_role("button", name="I have it").click()
    row = page.locator("tbody tr")
    for words in (url, "справка 帮助", "active", "session.rested, question.opened, approval.needed"):
        await expect(row).to_contain_text(words)
    [made] = (await got(house, "/v1/webhooks"))["data"]
    assert "turn.failed" not in made["events"]
    await row.get_by_role("button", name="Test").click()
    async with asyncio.timeout(20):  # the list is drawn anew after the test, and keys that come meanwhile are lost
        while not await page.get_by_role("button", name="Look again").is_visible():
            await page.keyboard.press("j")
            await page.keyboard.press("o")
            await asyncio.sleep(0.2)
    log = page.locator("tbody tr")
    await expect(log).to_contain_text("webhook.test")
    async with house.http.get(f"/v1/webhooks/{made['id']}/deliveries") as response:
        assert (await response.json())["data"][0]["type"] == "webhook.test"
    while "again" not in (await log.inner_text()):
        await page.get_by_role("button", name="Look again").click()
    await log.get_by_role("button", name="Retry").click()
    await expect(page.get_by_role("status").last).to_contain_text("It is sent again")
    await page.get_by_role("button", name="Rotate").click()
    await expect(secret).to_contain_text("whsec_")
    assert await secret.text_content() != first
    await page.get_by_role("button", name="I have it").click()
    await page.get_by_role("button", name="Switch off").click()
    await expect(page.locator("#main .badge").first).to_have_text("disabled")
    await page.get_by_role("button", name="Switch on").click()
    await expect(page.locator("#main .badge").first).to_have_text("active")
    await page.get_by_role("button", name="Delete").click()
    await page.get_by_role("dialog").get_by_role("button", name="Delete").click()
    await expect(page.locator("#main")).to_contain_text("There is no webhook yet")


async def got(house: Process, path: str) -> Any:
    async with house.http.get(path) as response:
        assert response.status == 200, await response.text()
        return await response.json()
