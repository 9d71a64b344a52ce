"""The console in a browser: the first visit with the demo model, and one approval that two pages see."""

from collections import Counter

import pytest
from playwright.async_api import Browser, expect

from browser_helpers import NARROW, entries, needs_chromium, visiting
from longhouse.models.scripted import Say
from server_helpers import Serving

pytestmark = [needs_chromium, pytest.mark.asyncio(loop_scope="session")]


async def test_the_first_visit_leads_to_answers(serving: Serving, browser: Browser) -> None:
    async with serving() as house, visiting(browser, house.url) as visit:
        page = await visit.open()
        await expect(page.locator(".demo-strip")).to_contain_text("Demo model.")
        await expect(page.locator(".example")).to_have_count(3)

        # A question is answered in place; then the tool's card and the answer are there.
        await page.get_by_role("button", name="A question").click()
        card = page.locator(".question-card.clarification")
        await expect(card).to_contain_text("which city are you in?")
        await expect(page.get_by_role("textbox", name="Message")).to_be_focused()
        await expect(page).to_have_title("(1) What time is it where I am? · Longhouse")
        await card.get_by_role("textbox", name="Your answer").fill("Oslo")
        await card.get_by_role("button", name="Answer").click()
        await expect(page.locator(".answer-foot")).to_be_visible()
        await expect(page.locator(".entry.reply[data-key]").last).to_contain_text("You answered: 'Oslo'.")
        await expect(page.locator(".question-card")).to_have_count(0)
        await expect(page).to_have_title("What time is it where I am? · Longhouse")
        tool = page.locator("details.tool", has_text="clocktool")
        await tool.locator("summary").click()
        await expect(tool.locator(".tool-body")).to_contain_text("UTC")
        await expect(tool.locator(".tool-body")).to_contain_text("Result")

        # Reloaded, the page shows the same from the journal.
        shown = await entries(page)
        assert max(Counter(shown).values()) == 1
        await page.reload()
        await expect(page.locator(".answer-foot")).to_be_visible()
        assert await entries(page) == shown

        # A follow-up goes to the same session.
        address = page.url
        await page.get_by_role("textbox", name="Message").fill("And now?")
        await page.keyboard.press("Enter")
        await expect(page.locator(".question-card")).to_be_visible()
        assert page.url == address
        await page.get_by_role("textbox", name="Message").fill("Bergen")
        await page.keyboard.press("Enter")
        await expect(page.locator(".answer-foot")).to_have_count(2)

        # A sub-agent is a card within the talk, and a session of its own.
        await page.keyboard.press("Escape")
        await page.get_by_role("link", name="New", exact=True).click()
        await page.get_by_role("button", name="A sub-agent").click()
        await expect(page.locator(".answer-foot")).to_be_visible()
        agents = page.locator("details.agent")
        await expect(agents).to_have_count(2)
        await agents.last.locator("summary").first.click()
        await expect(agents.last).to_contain_text("My name is Aliya and I live in Oslo.")
        await agents.last.get_by_role("link", name="Open as its own session").click()
        await expect(page.locator(".composer-closed")).to_contain_text("A sub-agent works here for another agent.")
        await expect(page.locator(".answer-foot")).to_have_count(2)

        # The keyboard: help, then the inbox.
        await page.keyboard.press("?")
        await expect(page.locator("dialog")).to_contain_text("New conversation")
        await page.keyboard.press("Escape")
        await page.keyboard.press("g")
        await expect(page.locator("#main")).to_contain_text("Nothing waits for a person.")


async def test_an_approval_given_in_the_inbox_is_seen_once_in_the_chat(serving: Serving, browser: Browser) -> None:
    async with serving() as house, visiting(browser, house.url) as visit:
        inbox = await visit.open("/inbox")
        await expect(inbox.locator("#main")).to_contain_text("Nothing waits for a person.")
        chat = await visit.open()
        await chat.get_by_role("button", name="An approval").click()
        asked = chat.locator(".question-card.approval")
        await expect(asked).to_contain_text("May lettertool run?")
        await expect(asked).to_contain_text("Bob")

        # The inbox was open before, heard of it, and decides with a key of the keyboard.
        await inbox.bring_to_front()
        card = inbox.locator(".question-card.approval")
        await expect(card).to_have_count(1)
        await expect(card).to_contain_text("Write a letter to Bob")
        await card.get_by_role("textbox", name="Comment").fill("Go ahead.")
        await inbox.locator("#top h1").click()
        await inbox.keyboard.press("j")
        await inbox.keyboard.press("a")
        await expect(inbox.locator("#main")).to_contain_text("Nothing waits for a person.")
        await expect(inbox.locator("#question-count")).to_be_hidden()

        # The chat in the other page goes on by itself.
        await expect(chat.locator(".answer-foot")).to_have_count(1)
        await expect(chat.locator(".question-card")).to_have_count(0)
        tool = chat.locator("details.tool", has_text="lettertool")
        await expect(tool).to_have_count(1)
        await expect(tool.locator(".chip")).to_have_count(1)
        await expect(tool.locator(".chip")).to_contain_text("approved")
        await tool.locator("summary").click()
        await expect(tool.locator(".tool-body")).to_contain_text("Go ahead.")
        await expect(chat.locator(".link-chip")).to_have_count(1)
        [session] = [row["session_id"] for row in (await (await house.http.get("/v1/sessions")).json())["data"]]
        assert (await house.kinds(session)).count("Decided") == 1
        shown = await entries(chat)
        assert max(Counter(shown).values()) == 1
        await chat.reload()
        await expect(chat.locator(".answer-foot")).to_have_count(1)
        assert await entries(chat) == shown


async def test_on_a_telephone_the_menu_closes_and_stars_stay_stars(serving: Serving, browser: Browser) -> None:
    sums = "2 * 3 * 4 is 24, 2 ** 3 ** 4 is more, a_b_c is a name; *this* and **that** are marked."
    async with serving([Say(text=sums)]) as house, visiting(browser, house.url) as visit:
        answer = await house.say("Reckon.", model="tool_calling_agent")
        page = await visit.open(f"/s/{answer['model']}")
        reply = page.locator(".entry.reply[data-key]").last
        await expect(reply.locator("em")).to_have_text(["this"])
        await expect(reply.locator("strong")).to_have_text(["that"])
        await expect(reply).to_contain_text(
            "2 * 3 * 4 is 24, 2 ** 3 ** 4 is more, a_b_c is a name; this and that are marked."
        )

        await page.set_viewport_size(NARROW)
        menu, places = page.get_by_role("button", name="Menu"), page.locator("#side")
        await expect(places).to_be_hidden()
        await menu.click()
        await expect(places).to_be_visible()
        await expect(menu).to_have_attribute("aria-expanded", "true")
        await page.keyboard.press("Escape")
        await expect(places).to_be_hidden()
        await expect(menu).to_be_focused()
        await menu.click()
        await page.locator("#scrim").click(position={"x": NARROW["width"] - 10, "y": 400})
        await expect(places).to_be_hidden()
        await expect(menu).to_have_attribute("aria-expanded", "false")
        await menu.click()
        await places.get_by_role("link", name="Inbox").click()
        await expect(page.locator("#main")).to_contain_text("Nothing waits for a person.")
        await expect(places).to_be_hidden()
        await expect(menu).to_have_attribute("aria-expanded", "false")
