"""The console through a day: a draft is tried, a talk is followed in many pages, files come, a worker is lost."""

import asyncio
import json
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from playwright.async_api import Browser, Page, expect

from browser_helpers import NARROW, Visit, needs_chromium, visiting
from longhouse.agents.strategies.protocol import Body
from longhouse.journal.messages import ToolResult, User, text_of
from longhouse.models.scripted import Say, ScriptedStatus, call, calls, say, step_of
from longhouse.models.scripted_server import serve as serve_model
from server_helpers import Process, process
from till import Till, open_till

pytestmark = [needs_chromium, pytest.mark.asyncio(loop_scope="session")]

STORY = " ".join(f"word{number}" for number in range(600))
PLACES = 4
"""How many pages of one browser follow their session at once."""
LETTER = {"to": "Anna", "subject": "Friday", "text": "Dear Anna"}
PIXEL = bytes.fromhex(
    "89504e470d0a1a0a0000000d4948445200000001000000010806000000"
    "1f15c4890000000d49444154789c6360000002000154a24f5d0000000049454e44ae426082"
)


BUSY = """() => {
    window.quick = requestAnimationFrame.bind(window);
    window.requestAnimationFrame = (work) => setTimeout(() => quick(work), 100);
}"""
"""A page with much to do draws late: it shrinks and is scrolled meanwhile."""


class Clerk:
    """A model that does what the last message names."""

    is_troubled = True

    def __call__(self, body: Body) -> Say:
        task = next(text_of(one.content) for one in reversed(body.messages) if isinstance(one, User))
        if task == "list":
            return _final("\n\n".join(f"Line {number}" for number in range(60)))
        if task == "story":
            return Say(calls=_final(STORY).calls, chunk=12, delay=0.1)
        if task == "huge" and step_of(body.messages) == 0:
            return _final("x" * 1_000_001)
        if task == "trouble" and self.is_troubled:
            return say("", fault=ScriptedStatus(status=503, message="busy"))
        if task == "pay" and step_of(body.messages) == 0:
            return call("pay")
        if task == "letters" and step_of(body.messages) == 0:
            return calls(call("lettertool", **LETTER), call("lettertool", **LETTER))
        results = [text_of(one.content) for one in body.messages if isinstance(one, ToolResult)]
        system = text_of(body.messages[0].content or "").splitlines()[0]
        return _final(f"{system} You said: {task}. {results[-1] if results else ''}")


def _final(answer: str) -> Say:
    return call("finalanswertool", answer=answer, status="completed")


async def test_a_day_with_the_console(browser: Browser, folder: Path) -> None:
    clerk = Clerk()
    async with serve_model(clerk) as model, open_till() as till:
        settings = {"data_dir": str(folder), "llm_base_url": model.url, "allow_egress": till.place}
        settings["lease_seconds"] = "3"
        async with process(**settings) as first, visiting(browser, first.url) as visit:
            await _publish(first, till)
            await _a_draft_is_tried(visit)
            await _files_are_chosen(visit)
            page = await visit.open("/?agent=clerk")
            await _follow_ups_stay_in_sight(page, clerk)
            await _words_decide_only_one_call(page)
            await _six_pages_of_one_talk(visit, page)
            await _said(page, "pay")
            async with asyncio.timeout(20):
                await till.begun.wait()
            visit.may_fail = True
            first.kill()
            await first.ended()
            port = str(urlsplit(first.url).port)
            async with process("serve", "--port", port, **settings):
                await _a_lost_call_is_settled(page)
                await _the_first_key_and_the_last(page)


async def _publish(house: Process, till: Till) -> None:
    clerk = {
        "name": "clerk", "base_agent_class": "ToolCallingAgent",
        "prompt_pack": {"system_prompt": "I am the first."},
        "tool_policy": {"required": ["finalanswertool"], "allowlist": ["pay", "lettertool"]},
    }  # fmt: skip
    for path, body in (("/admin/tools", till.tool), ("/admin/templates", clerk)):
        async with house.http.post(path, json=body) as response:
            assert response.status < 300, await response.text()


async def _said(page: Page, text: str) -> None:
    await page.locator(".composer textarea").fill(text)
    await page.locator(".composer textarea").press("Enter")


async def _a_draft_is_tried(visit: Visit) -> None:
    page = await visit.open("/catalog/agents/clerk?tab=edit")
    source = page.get_by_role("textbox", name="JSON")
    template: dict[str, Any] = json.loads(await source.input_value())
    template["prompt_pack"]["system_prompt"] = "I am the second."
    await source.fill(json.dumps(template))
    await page.get_by_role("button", name="Save as draft").click()
    side = page.locator(".side-chat")
    for nth, words in enumerate(("Hello", "And now?")):
        await side.get_by_role("textbox", name="Message").fill(words)
        await side.get_by_role("button", name="Send").click()
        answer = side.locator(".entry.reply[data-key]").nth(nth)
        await expect(answer).to_contain_text(f"I am the second. You said: {words}")
        await expect(side.locator(".entry.prompt")).to_have_count(nth + 1)
    await page.get_by_role("button", name="Activate", exact=True).click()
    await expect(page.locator("#main")).to_contain_text("version 2 is active")
    await page.get_by_role("button", name="Roll back").click()
    await expect(page.locator("#main")).to_contain_text("version 1 is active")
    await page.close()


async def _files_are_chosen(visit: Visit) -> None:
    page = await visit.open("/documents")
    notes = [{"name": f"{name}.md", "mimeType": "text/markdown", "buffer": b"# One\n\nPage."} for name in "ab"]
    rows = page.locator("tbody tr")
    await expect(rows).to_have_count(1)  # it comes with Longhouse
    await page.locator("input[type=file]").set_input_files(notes)  # type: ignore[arg-type]
    await expect(rows).to_have_count(3)
    await expect(page.locator(".uploads")).to_contain_text("1 page")
    await expect(page.locator(".uploads")).not_to_contain_text("1 pages")
    await page.goto(f"{visit.url}/?agent=clerk")
    images = [{"name": f"{name}.png", "mimeType": "image/png", "buffer": PIXEL} for name in "ab"]
    await page.locator(".composer input[type=file]").set_input_files(images)  # type: ignore[arg-type]
    await expect(page.locator(".composer .thumb")).to_have_count(2)
    await page.close()


async def _follow_ups_stay_in_sight(page: Page, clerk: Clerk) -> None:
    await page.evaluate(BUSY)
    for number in (1, 2, 3):
        await _said(page, "list")
        await expect(page.locator(".answer-foot")).to_have_count(number)
        await expect(page.locator(".answer-foot").last).to_be_in_viewport()
    await page.evaluate("() => { window.requestAnimationFrame = quick; }")

    # While the model is in trouble, the line below the talk says who works, and why it takes so long.
    await _said(page, "trouble")
    thinking = page.locator(".thinking")
    await expect(thinking).to_contain_text("clerk is thinking")
    await expect(thinking).to_contain_text("tried again in")
    clerk.is_troubled = False
    await expect(page.locator(".answer-foot")).to_have_count(4)

    # An answer that is refused is no secret.
    await _said(page, "huge")
    await expect(page.locator(".note-line", has_text="The answer was refused")).to_be_visible()
    await expect(page.locator(".answer-foot")).to_have_count(5)

    # What had been read of a turn that is stopped stays, and says that it was not kept.
    await _said(page, "story")
    await expect(page.locator(".writing")).to_contain_text("word7")
    await page.get_by_role("button", name="Stop").click()
    await expect(page.locator(".entry.unkept")).to_contain_text("word7")
    await expect(page.locator(".entry.unkept")).to_contain_text("this was not kept")


async def _words_decide_only_one_call(page: Page) -> None:
    await _said(page, "letters")
    cards, message = page.locator(".question-card.approval"), page.get_by_role("textbox", name="Message")
    await expect(cards).to_have_count(2)
    await expect(message).to_have_attribute("placeholder", "Write a message…")
    await _said(page, "да")
    await expect(page.locator(".entry.aside")).to_contain_text("Say which one you mean")
    note = page.locator(".bubble-note")
    await expect(note).to_have_text("the agent reads it once the call is decided")
    await cards.first.get_by_role("button", name="Approve").click()
    await expect(cards).to_have_count(1)
    await expect(message).to_have_attribute("placeholder", "Write a message… “yes” and “no” decide")
    await _said(page, "да")
    await expect(cards).to_have_count(0)
    await expect(note).to_have_text("read together with the decision")
    await expect(page.locator(".answer-foot")).to_have_count(6)


async def _places_are_taken(page: Page, count: int) -> None:
    places = "(await navigator.locks.query()).held.filter((one) => one.name.startsWith('longhouse line '))"
    taken = f"async (count) => {places}.length === count"
    await page.wait_for_function(taken, arg=count)


async def _six_pages_of_one_talk(visit: Visit, page: Page) -> None:
    """A browser has six lines to one server: four pages follow their talk, and one of them the questions of all."""
    others: list[Page] = []
    while len(others) <= PLACES:
        # Pages come in this order only if each has its place before the next one is opened.
        others.append(await visit.open(urlsplit(page.url).path))
        await _places_are_taken(page, min(len(others) + 1, PLACES))
        if len(others) >= PLACES:
            await expect((page, *others)[len(others) - PLACES].locator(".line-state")).to_contain_text("Paused")
    await _said(others[4], "letters")
    for one in others[1:]:
        await expect(one.locator(".question-card.approval")).to_have_count(2)
    for one in (page, *others):
        await expect(one.locator("#question-count")).to_have_text("2")
    for one in (page, others[0]):
        await expect(one.locator(".line-state")).to_contain_text("Paused")
    await others[4].set_viewport_size(NARROW)
    await expect(others[4].get_by_role("button", name="Menu").locator(".count")).to_be_visible()
    for one in others:
        await one.close()

    # Somebody is back at the first one: it goes on where it was.
    await page.locator(".talk").click()
    cards = page.locator(".question-card.approval")
    await expect(cards).to_have_count(2)
    for nth in (1, 0):
        await cards.nth(nth).get_by_role("button", name="Deny").click()
        await expect(cards).to_have_count(nth)
    await expect(page.locator(".answer-foot")).to_have_count(7)
    await expect(page.locator("#question-count")).to_be_hidden()


async def _a_lost_call_is_settled(page: Page) -> None:
    card = page.locator(".question-card.unknown_outcome")
    await expect(card).to_contain_text("Did pay happen?")
    await card.get_by_role("textbox", name="Result").fill("The bank says: paid.")
    await card.get_by_role("button", name="Happened", exact=True).click()
    await expect(card).to_have_count(0)
    await expect(page.locator(".entry.reply[data-key]").last).to_contain_text("The bank says: paid.")


async def _the_first_key_and_the_last(page: Page) -> None:
    await page.get_by_role("link", name="Keys").click()
    await page.get_by_role("button", name="New key").click()
    dialog = page.get_by_role("dialog")
    await dialog.get_by_role("textbox", name="Name").fill("mine")
    await dialog.get_by_role("textbox", name="Owner").fill("ann")
    await dialog.get_by_role("button", name="Make the key").click()
    await dialog.get_by_role("button", name="I have it").click()
    await expect(page.get_by_role("button", name="Sign out ann")).to_be_visible()
    await page.get_by_role("button", name="Revoke").click()
    await expect(dialog).to_contain_text("It is the key of this browser")
    await expect(dialog).to_contain_text("It is the last admin key")
    await dialog.get_by_role("button", name="Revoke").click()
    await expect(page.get_by_label("API key")).to_be_visible()
