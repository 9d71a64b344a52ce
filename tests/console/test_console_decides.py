"""Deciding in a browser: a card shows the whole of what runs, and who has read it decides on that call alone."""

from typing import Any, ClassVar

import pytest
from console_scene import said
from playwright.async_api import Browser, Locator, Page, Request, expect

from browser_helpers import Visit, needs_chromium, visiting
from client_tools import Program
from longhouse.agents.builtin import BUILT_IN
from longhouse.agents.strategies.protocol import Body
from longhouse.agents.template import Template, ToolPolicy
from longhouse.journal.events import Effect
from longhouse.journal.messages import User, text_of
from longhouse.models.scripted import Call, Say, call, step_of
from longhouse.tools import BaseTool, ToolContext
from longhouse.tools.outcomes import CallError
from server_helpers import House, Serving, lost_in_a_step

pytestmark = [needs_chromium, pytest.mark.asyncio(loop_scope="session")]

PILE = "\u0336\u0489\u20dd\u030a" * 8
HARD = (
    '{"note": "' + "Thank you. " * 400 + 'The last words.", "to": "Z' + PILE + 'oe", "amount": 12345678901234567890, '
    '"more": {"iban": 98765432109876543210, "rates": [1.10, -0]}, "a name\\nto    Bob": ""}'
)
STROKE = "(one, given) => one.dispatchEvent(new KeyboardEvent('keydown', { key: 'a', bubbles: true, ...given }))"
LONG = "All is well. " * 3_000 + "Pay Mallory too."


class WireTool(BaseTool):
    """Sends money; not before a person has agreed."""

    needs_approval: ClassVar[bool] = True
    to: str = ""
    note: str = ""
    amount: int = 0
    more: dict[str, Any] = {}  # noqa: RUF012 - a field of pydantic, which copies it

    async def __call__(self, context: ToolContext, config: Any = None, **kwargs: Any) -> str:
        return "sent"


class DropTool(BaseTool):
    """Drops a letter somewhere: nobody knows where."""

    effect: ClassVar[Effect] = "once"

    async def __call__(self, context: ToolContext, config: Any = None, **kwargs: Any) -> str:
        raise CallError("the line broke", in_doubt=True)


def clerk(body: Body) -> Say:
    """Does what the first word of the task says, once."""
    task = next(text_of(one.content) for one in body.messages if isinstance(one, User))
    if step_of(body.messages):
        return call("finalanswertool", answer="Done.", status="completed")
    match task.split():
        case ["delegate", *rest]:
            return call("agent_clerk", task=" ".join(rest))
        case ["hard"]:
            return Say(calls=(Call(name="wiretool", arguments=HARD),))
        case ["long"]:
            return call("wiretool", note=LONG)
        case ["lost", *_]:
            return call("finalanswertool", answer="Found.", status="completed")
        case ["drop"]:
            return call("droptool")
        case [_, to]:
            return call("wiretool", to=to)
    raise AssertionError(task)


PLAIN = ("wiretool", "droptool", "finalanswertool")
AGENTS = (
    Template(name="clerk", tool_policy=ToolPolicy(allowlist=PLAIN)),
    Template(name="boss", tool_policy=ToolPolicy(allowlist=("agent.clerk", "finalanswertool"))),
)


async def test_nothing_is_decided_that_nobody_has_read(serving: Serving, browser: Browser) -> None:
    async with (
        serving(clerk, templates=(*BUILT_IN, *AGENTS), tools=[WireTool, DropTool]) as house,
        visiting(browser, house.url) as visit,
    ):
        tasks = ("wire Ann", "wire Ben", "wire Cem", "hard", "long", "drop")
        ids = {task: await said(house.http, "clerk", task) for task in tasks}
        boss = await said(house.http, "boss", "delegate wire Dan")
        page, posted = await visit.open("/inbox"), list[Request]()
        page.on("request", lambda request: posted.append(request) if request.method == "POST" else None)
        cards = page.locator(".question-card")
        await expect(cards).to_have_count(7)
        await _shows_all_that_runs(cards.filter(has_text="Thank you"))
        await _is_read_to_its_end(cards.filter(has_text="All is well"))

        # While the line is lost nothing can be pressed, neither here nor in the chat.
        visit.may_fail = True
        chat = await visit.open(f"/s/{ids['wire Ann']}")
        approve = chat.get_by_role("button", name="Approve")
        await expect(approve).to_be_enabled()
        await visit.context.set_offline(True)
        for line in list(house.connections._open):
            line.transport.abort()
        await expect(approve).to_be_disabled()
        await expect(cards.first.get_by_role("button", name="Approve")).to_be_disabled()
        await cards.first.focus()
        await page.keyboard.press("a")
        await visit.context.set_offline(False)
        await expect(approve).to_be_enabled()
        await chat.close()
        await expect(cards.first.get_by_role("button", name="Approve")).to_be_enabled()

        # What a sub-agent asks is decided at its own session, and at no name that another call may get.
        asked = cards.filter(has_text="Dan")
        await asked.get_by_role("button", name="Approve").click()
        await expect(cards).to_have_count(6)
        [child] = [one for one in await _sessions(house) if one["parent"] == boss]
        assert [request.url for request in posted] == [f"{house.url}/admin/sessions/{child['session_id']}/approval"]
        assert posted.pop().post_data_json == {"call_id": "1-action-0", "decision": "approve", "comment": ""}

        await _is_decided_by_who_read_it(page, house, cards, ids, posted)
        kinds = [await house.kinds(ids[task]) for task in tasks]
        assert [one.count("Decided") for one in kinds] == [1, 1, 0, 0, 0, 1], "the last: by the worker"
        await _a_lost_step_is_tried_again_or_given_up(house, visit, page)


async def test_a_call_that_the_client_runs_can_only_be_given_up(serving: Serving, browser: Browser) -> None:
    script = [call("get_weather", city="Oslo"), call("finalanswertool", answer="I cannot know.")]
    async with serving(script) as house, visiting(browser, house.url) as visit:
        session_id = (await Program(house).say("Rain?"))["model"]
        inbox = await visit.open("/inbox")
        card = inbox.locator(".question-card.client")
        await expect(card).to_contain_text("get_weather runs at the client")
        await expect(card.get_by_role("button")).to_have_text(["Give up"])
        chat = await visit.open(f"/s/{session_id}")
        await expect(chat.locator(".question-card.client")).to_contain_text("Oslo")
        await expect(chat.get_by_role("img", name="waits for client")).to_be_visible()
        await chat.locator(".question-card.client").get_by_role("button", name="Give up").click()
        await expect(chat.locator(".talk")).to_contain_text("I cannot know.")
        await expect(card).to_have_count(0)


async def _shows_all_that_runs(card: Locator) -> None:
    names = await card.locator("dt").all_inner_texts()
    assert names == ["note", "to", "amount", "more", "a name\\nto    Bob"]
    shown = card.locator(".question-arguments")
    for exact in ("12345678901234567890", "98765432109876543210", "1.10", "-0"):
        await expect(shown).to_contain_text(exact)
    # No value is so high that another one is out of sight, and no letter is painted over another value.
    box = await shown.bounding_box()
    assert box is not None
    assert box["height"] < 500
    assert await shown.evaluate("one => one.scrollHeight - one.clientHeight") == 0
    value = await card.locator("dd").nth(1).inner_text()
    assert value.startswith("Z" + PILE[:4] + "\\u0336\\u0489")
    await expect(shown).not_to_contain_text("The last words.")
    await card.get_by_role("button", name="Show all 4,415 characters").click()
    await expect(shown).to_contain_text("The last words.")


async def _is_read_to_its_end(card: Locator) -> None:
    await expect(card.get_by_role("button", name="Deny")).to_be_enabled()
    await expect(card.get_by_role("button", name="Approve")).to_be_disabled()
    await card.get_by_role("button", name="Show all", exact=True).click()
    await expect(card).to_contain_text("Pay Mallory too.")
    await expect(card.get_by_role("button", name="Approve")).to_be_enabled()


async def _is_decided_by_who_read_it(
    page: Page, house: House, cards: Locator, ids: dict[str, str], posted: list[Request]
) -> None:
    """`a` and `d` of the keyboard: on the chosen approval, once, and not on one that nobody chose."""
    await cards.filter(has_text="droptool").focus()
    for key in ("a", "d"):
        await page.keyboard.press(key)
    # Somebody else decides on the chosen one: none is chosen then.
    await cards.filter(has_text="Ann").focus()
    body = {"call_id": "1-action-0", "decision": "deny"}
    async with house.http.post(f"/v1/sessions/{ids['wire Ann']}/approval", json=body) as response:
        assert response.status == 202
    await expect(cards).to_have_count(5)
    await page.keyboard.press("a")
    assert await page.evaluate("document.activeElement === document.body")
    assert posted == []

    # A key that is held down decides nothing more, and one that comes with the next card did not mean that one.
    chosen = cards.filter(has_text="Ben")
    await chosen.focus()
    await chosen.evaluate(STROKE, {"repeat": True})
    assert posted == []
    await page.evaluate(
        f"document.addEventListener('focusin', ({{ target }}) => ({STROKE})(target, {{}}), {{ once: true }})"
    )
    await page.keyboard.press("a")
    await expect(cards).to_have_count(4)
    await expect(cards.filter(has_text="Cem")).to_be_focused()
    assert len(posted) == 1


async def _a_lost_step_is_tried_again_or_given_up(house: House, visit: Visit, inbox: Page) -> None:
    again, given_up = [await lost_in_a_step(house.db, "clerk", "lost") for _ in range(2)]
    waiting = inbox.locator(".question-card.worker_lost")
    await expect(waiting).to_have_count(2)
    chat = await visit.open(f"/s/{again}")
    card, talk = chat.locator(".question-card.worker_lost"), chat.locator(".talk")
    await expect(card).to_contain_text("Try this step again?")
    await expect(chat.get_by_placeholder("“try again” and “give up” decide")).to_be_visible()
    await card.get_by_role("button", name="Try again").click()
    await expect(chat.locator(".answer-foot")).to_have_count(1)
    await expect(card).to_have_count(0)
    await expect(talk).to_contain_text("The step is tried again.")
    await expect(talk).to_contain_text("Found.")
    await expect(waiting).to_have_count(1)
    await waiting.get_by_role("button", name="Give up").click()
    await expect(waiting).to_have_count(0)
    await chat.goto(f"{house.url}/s/{given_up}")
    await expect(talk).to_contain_text("The step was given up.")
    await expect(talk).to_contain_text("This turn failed.")
    await chat.close()


async def _sessions(house: House) -> list[dict[str, Any]]:
    async with house.http.get("/v1/sessions?limit=100") as response:
        found: list[dict[str, Any]] = (await response.json())["data"]
        return found
