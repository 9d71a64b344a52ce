"""The door of the console in a browser: a key signs in, signs out, and is revoked; each owner sees what is its own."""

from typing import Any

import aiohttp
import pytest
from playwright.async_api import Browser, Page, Route, expect

from browser_helpers import needs_chromium, visiting
from server_helpers import House, Serving

pytestmark = [needs_chromium, pytest.mark.asyncio(loop_scope="session")]

ADMIN = "k3y-of-the-house-9f27"
PLACES = ["Chat", "Inbox", "Sessions", "Documents", "Memory", "Schedules", "Webhooks"]


async def made(house: House, owner: str) -> dict[str, Any]:
    """A new user key of this owner."""
    body = {"name": f"{owner}'s", "owner": owner, "role": "user"}
    headers = {"authorization": f"Bearer {ADMIN}"}
    async with house.http.post("/admin/keys", json=body, headers=headers) as response:
        assert response.status == 201, await response.text()
        found: dict[str, Any] = await response.json()
        return found


async def said(house: House, key: str, text: str) -> str:
    async with aiohttp.ClientSession(house.url, headers={"authorization": f"Bearer {key}"}) as http:
        body = {"model": "secretary", "messages": [{"role": "user", "content": text}]}
        async with http.post("/v1/chat/completions", json=body) as response:
            return str((await response.json())["model"])


async def _shortened(route: Route) -> None:
    """The document with a few of its paths: to draw them all takes Chromium eight seconds of a processor."""
    answer = await route.fetch()
    document = await answer.json()
    document["paths"] = dict(list(document["paths"].items())[:5])
    await route.fulfill(response=answer, json=document)


async def sign_in(page: Page, key: str) -> None:
    await page.get_by_label("API key").fill(key)
    await page.get_by_role("button", name="Sign in").click()


async def test_a_key_opens_the_console_until_it_is_revoked(serving: Serving, browser: Browser) -> None:
    async with serving(admin_key=ADMIN) as house, visiting(browser, house.url) as visit:
        visit.may_fail = True
        ann, bob = await made(house, "ann"), await made(house, "bob")
        theirs = await said(house, bob["key"], "Write a letter to Zoe: Bob's secret.")
        mine = await said(house, ann["key"], "Write a letter to Max: hello.")

        # Broken addresses: no such screen, and a sign-in that leads home.
        page = await visit.open("/s/%E0%A4%A")
        await expect(page.locator("#main")).to_contain_text("There is no such screen.")
        await page.goto(f"{house.url}/sign-in?to=http://[")
        await expect(page.get_by_label("API key")).to_be_visible()
        await page.goto(f"{house.url}/sign-in?to=blob:{house.url}/x")
        await sign_in(page, ann["key"])
        await page.wait_for_url(f"{house.url}/")
        await page.context.clear_cookies()

        # A wrong key, then the right one; the address that was asked for is opened.
        await page.goto(f"{house.url}/sessions?state=WAITING_FOR_APPROVAL")
        await expect(page.locator("#places a")).to_have_count(0)
        await sign_in(page, "lh_wrong")
        await expect(page.locator("#refusal")).to_be_visible()
        await sign_in(page, ann["key"])
        await expect(page.locator("#places a")).to_have_count(len(PLACES))
        assert page.url == f"{house.url}/sessions?state=WAITING_FOR_APPROVAL"
        assert await page.evaluate("document.cookie") == ""
        # Bob's session is nowhere.
        row = page.locator(".session-row[data-session]")
        await expect(row).to_have_count(1)
        await expect(row).to_contain_text("hello")
        await expect(page.locator("#question-count")).to_have_text("1")
        await page.goto(f"{house.url}/s/{theirs}")
        await expect(page.locator(".talk-place")).to_contain_text("no such session")
        await page.goto(f"{house.url}/sessions/{theirs}")
        await expect(page.locator("#main")).to_contain_text("no such session")
        await page.goto(f"{house.url}/operations")
        await expect(page.locator("#main")).to_contain_text("admin")
        assert "Bob's secret" not in await page.content()

        # Signing out ends it here and in the other page.
        other = await visit.open(f"/s/{mine}")
        await expect(other.locator(".question-card")).to_be_visible()
        await page.goto(f"{house.url}/inbox")
        await page.get_by_role("button", name="Sign out ann").click()
        await expect(page.get_by_label("API key")).to_be_visible()
        await other.bring_to_front()
        await expect(other.get_by_label("API key")).to_be_visible()

        # A revoked key: the page that streams goes to the sign-in by itself, and shows nothing of before.
        await sign_in(other, ann["key"])
        await expect(other.locator(".question-card")).to_be_visible()
        headers = {"authorization": f"Bearer {ADMIN}"}
        async with house.http.delete(f"/admin/keys/{ann['id']}", headers=headers) as response:
            assert response.status == 204
        await expect(other.get_by_label("API key")).to_be_visible()
        await expect(other.locator("body")).not_to_contain_text("hello")
        await sign_in(other, ann["key"])
        await expect(other.locator("#refusal")).to_be_visible()

        # Somebody else at the same page sees only their own, at once.
        await sign_in(other, bob["key"])
        await expect(other.locator("#question-count")).to_have_text("1")
        await expect(other.locator(".conversation")).to_have_count(1)
        await expect(other.locator(".conversation")).to_contain_text("Bob's secret")
        await expect(other.locator("body")).not_to_contain_text("hello")

        # An admin sees everything, and what it decides is written down with its name.
        await other.get_by_role("button", name="Sign out bob").click()
        await sign_in(other, ADMIN)
        await expect(other.locator("#question-count")).to_have_text("2")
        await other.goto(f"{house.url}/inbox")
        await expect(other.locator(".question-card")).to_have_count(2)
        card = other.locator(".question-card", has_text="Zoe")
        await expect(card.locator(".question-talk-line")).to_contain_text("of bob")
        async with other.expect_request("**/approval") as posted:
            await card.get_by_role("button", name="Deny").click()
        assert (await posted.value).url == f"{house.url}/admin/sessions/{theirs}/approval"
        await expect(other.locator(".question-card")).to_have_count(1)
        await other.goto(f"{house.url}/s/{theirs}")
        await expect(other.locator(".answer-foot")).to_be_visible()
        await expect(other.locator("details.tool .chip").first).to_contain_text("denied by")
        await expect(other.locator(".composer-closed")).to_contain_text("belongs to bob")

        # The pages of the API's documentation open too.
        docs = await visit.context.new_page()
        await docs.route("**/openapi.json", _shortened)
        await docs.goto(f"{house.url}/docs")
        await expect(docs.locator("body")).to_contain_text("Longhouse")
        await expect(docs.locator(".swagger-ui .opblock").first).to_be_visible()
        await docs.close()
