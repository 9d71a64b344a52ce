"""The console in a browser while its server is killed and started again: it says so, goes on, and repeats nothing."""

from collections import Counter
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from playwright.async_api import Browser, expect

from browser_helpers import entries, needs_chromium, visiting
from longhouse.agents.strategies.protocol import Body
from longhouse.models.scripted import Say, call, step_of
from longhouse.models.scripted_server import serve as serve_model
from server_helpers import process

pytestmark = [needs_chromium, pytest.mark.asyncio(loop_scope="session")]

STORY = " ".join(f"word{number}" for number in range(300))


class Writer:
    """A model that looks at the clock twice, then writes an answer: slowly, until it may be quick."""

    is_slow = True

    def __call__(self, body: Body) -> Say:
        if step_of(body.messages) < 2:
            return call("clocktool")
        reply = call("finalanswertool", answer=f"{STORY} The end.", status="completed")
        return Say(calls=reply.calls, chunk=6, delay=0.2) if self.is_slow else reply


async def test_a_page_goes_on_when_the_server_is_killed_while_it_streams(browser: Browser, folder: Path) -> None:
    writer = Writer()
    async with serve_model(writer) as model:
        settings = {"data_dir": str(folder), "llm_base_url": model.url}
        await _killed_and_back(browser, writer, settings, folder)


async def _killed_and_back(browser: Browser, writer: Writer, settings: dict[str, str], folder: Path) -> None:
    async with process(**settings) as first, visiting(browser, first.url) as visit:
        visit.may_fail = True
        watcher = await visit.open("/sessions")
        page = await visit.open("/?agent=tool_calling_agent")
        await page.fill(".composer textarea", "Write a long story.")
        await page.press(".composer textarea", "Enter")
        await expect(page.locator(".writing")).to_contain_text("word7")
        session = urlsplit(page.url).path.removeprefix("/s/")
        # A second page reads the same journal as a list of events.
        events = await visit.open(f"/sessions/{session}?tab=events")
        await expect(events.locator(".live-state")).to_contain_text("live")
        first.kill()
        await first.ended()
        await expect(events.locator(".live-state")).to_contain_text("reconnecting")
        await page.bring_to_front()
        await expect(page.locator(".line-state")).to_contain_text("reconnecting")
        writer.is_slow = False
        port = str(urlsplit(first.url).port)
        async with process("serve", "--port", port, **settings) as second:
            await expect(page.locator(".answer-foot")).to_have_count(1)
            await expect(page.locator(".line-state")).to_be_hidden()
            await expect(page.get_by_text("The end.")).to_have_count(1)
            await expect(page.locator(".talk").get_by_text("word7 ")).to_have_count(1)
            await expect(page.locator("details.tool")).to_have_count(2)
            shown = await entries(page)
            assert max(Counter(shown).values()) == 1

            facts = await second.facts(session)
            kinds = [fact["event"]["kind"] for fact in facts]
            assert "Resumed" in kinds
            await events.bring_to_front()
            await expect(events.locator(".event-row")).to_have_count(len(facts))
            told = await events.locator(".event-kind").all_inner_texts()
            assert told == kinds
            assert [int(one) for one in await events.locator(".event-seq").all_inner_texts()] == list(
                range(1, len(facts) + 1)
            )
            await events.get_by_role("tab", name="Timeline").click()
            await expect(events.locator(".loss-note")).to_contain_text("A worker was lost while this ran. It went on.")
            await watcher.bring_to_front()
            await expect(watcher.locator(".session-row .badge").first).to_have_text("completed")

            await page.bring_to_front()
            await page.reload()
            await expect(page.locator(".answer-foot")).to_have_count(1)
            assert await entries(page) == shown
