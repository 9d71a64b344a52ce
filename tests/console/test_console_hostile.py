"""Hostile text in a browser, wherever a model, a tool or a user writes: it is shown as text and does nothing."""

import json
from typing import Any, ClassVar
from urllib.parse import quote

import aiohttp
import pytest
from console_scene import said
from playwright.async_api import Browser, Page, expect

from browser_helpers import needs_chromium, visiting
from longhouse.agents.builtin import BUILT_IN
from longhouse.agents.strategies.protocol import Body
from longhouse.agents.template import Template, ToolPolicy
from longhouse.journal.messages import User, text_of
from longhouse.models.scripted import Call, Say, ScriptedStatus, call, say, step_of
from longhouse.tools import BaseTool, ToolContext
from server_helpers import Serving

pytestmark = [needs_chromium, pytest.mark.asyncio(loop_scope="session")]

ADMIN = "k3y-of-the-house-9f27"
TURN = "\u202e"
EVIL = (
    f"{TURN}<img src=x onerror=window.hacked=1>\u2066<script>window.hacked=2</script><svg onload=window.hacked=3></svg>"
    "<iframe src='https://evil.example/frame'></iframe><style>@import 'https://evil.example/x.css';</style>"
    "[go](javascript:window.hacked=4) [go](data:text/html,<script>window.hacked=5</script>) "
    "![see](https://evil.example/x.png) "
    '<a href="javascript:window.hacked=6">a</a> <https://evil.example/auto> "\'>`${window.hacked=7}`'
)
BLOCK = (
    f"# {EVIL}\n\n* item **bold** _em_ `code`\n  1. deeper {EVIL}\n\n> quoted\n\n"
    f"| a | b |\n|---|--:|\n| {EVIL} | 2 |\n\n```html\n{EVIL}\n```\n\n"
)
SLOW = (
    "`" * 40_000, "[" * 40_000, "*" * 40_000, "_a" * 20_000, "> " * 5_000, f"# {'#' * 40_000}x", f"|\n{' ' * 40_000}x",
    "|h" * 2_000 + "\n|-|\n" + "|\n" * 2_000, "|h" * 2_000 + "\n" + "|-" * 2_000 + "\n" + "|\n" * 2_000,
)  # fmt: skip
"""Each would be read for a minute by an expression that looks back, or be a table of millions of cells."""
MEGABYTE = "\n\n".join((*SLOW, BLOCK * (800_000 // len(BLOCK)), "the last line"))
ALIEN = (
    "img, iframe, object, embed, base, style, script:not([src^='/console/']), [onerror], [onload], [onclick], [ping], "
    "a[href^='javascript' i], a[href^='data' i]"
)


class EchoTool(BaseTool):
    """Says what it was given."""

    text: str = ""

    async def __call__(self, context: ToolContext, config: Any = None, **kwargs: Any) -> str:
        return self.text


class PayTool(EchoTool):
    """Pays; not before a person has agreed."""

    needs_approval: ClassVar[bool] = True


def evil(body: Body) -> Say:
    """A model under somebody else's control; the first word of the task says where it writes."""
    task = next(text_of(one.content) for one in body.messages if isinstance(one, User)).split()[0]
    if task == "tool" and step_of(body.messages) < 3:
        echo = call("echotool", text=EVIL)
        unknown = Say(
            calls=(Call(name="<img src=x onerror=window.hacked=8>", arguments=f'{{"{json.dumps(EVIL)[1:-1]}": 1}}'),)
        )
        broken = Say(calls=(Call(name="echotool", arguments=EVIL),), text=EVIL, reasoning=EVIL)
        return (echo, unknown, broken)[step_of(body.messages)]
    if task == "question":
        return call("clarificationtool", questions=[EVIL])
    if task == "approval":
        return call("paytool", text=EVIL)
    if task == "error":
        return say("", fault=ScriptedStatus(status=400, message=EVIL))
    # Arguments of a call are bounded; what a model simply says is not.
    return say(MEGABYTE) if task == "long" else call("finalanswertool", answer=EVIL, status="completed")


POLICY = ToolPolicy(allowlist=("echotool", "paytool", "clarificationtool", "finalanswertool"))
AGENT = Template(name="victim", tool_policy=POLICY)


async def test_hostile_text_is_text_everywhere(serving: Serving, browser: Browser) -> None:
    async with (
        serving(evil, templates=(*BUILT_IN, AGENT), tools=[EchoTool, PayTool], admin_key=ADMIN) as house,
        aiohttp.ClientSession(house.url, headers={"authorization": f"Bearer {ADMIN}"}) as http,
        visiting(browser, house.url) as visit,
    ):
        tasks = ("answer", "tool", "question", "approval", "error", "long")
        ids = {task: await said(http, "victim", f"{task} {EVIL}", user=EVIL[:60]) for task in tasks}
        document = await _brought(http)
        page = await visit.open()
        await page.get_by_label("API key").fill(ADMIN)
        await page.get_by_role("button", name="Sign in").click()
        await page.locator(".conversation").first.wait_for()
        assert TURN not in await page.locator(".conversations").inner_text()

        for task, there in (("answer", ".answer-foot"), ("tool", ".answer-foot"), ("question", ".question-card"),
                            ("approval", ".question-card"), ("error", ".failure")):  # fmt: skip
            await _shows(page, f"{house.url}/s/{ids[task]}", there)
            assert TURN not in await page.title()
        await _shows(page, f"{house.url}/s/{ids['long']}", ".answer-foot")
        more = page.locator(".entry.reply[data-key] button", has_text="more characters")
        while await more.count():
            await more.click()
        await expect(page.locator(".entry.reply[data-key]")).to_contain_text("the last line")
        await _is_harmless(page)

        await _shows(page, f"{house.url}/inbox", ".question-card.approval")
        assert TURN not in await page.locator(".question-card.approval").inner_text()
        await _shows(page, f"{house.url}/sessions", ".session-row[data-session]")
        assert TURN not in await page.locator(".sessions").inner_text()
        for tab in ("timeline", "model", "messages", "events", "log"):
            await _shows(page, f"{house.url}/sessions/{ids['tool']}?tab={tab}", ".tab-body > *")
        await _shows(page, f"{house.url}/sessions/{ids['error']}", ".session-error")
        await _shows(page, f"{house.url}/documents", "tbody tr")
        await _shows(page, f"{house.url}/documents/{quote(document)}", ".page-text")
        await page.goto(f"{house.url}/memory")
        await page.locator(".memory-row", has_text="onerror").click()
        await expect(page.locator(".memory-text")).to_have_value(EVIL)
        await _is_harmless(page)
        for path, there in (("/catalog/agents", ".card"), ("/catalog/agents/hostile", "#main h2, #main h3"),
                            ("/catalog/tools", "#main"), ("/catalog/tools/hostile_tool", "#main h2, #main h3"),
                            ("/keys", ".key-card")):  # fmt: skip
            await _shows(page, house.url + path, there)
        await page.goto(f"{house.url}/operations")
        await expect(page.locator(".sentences")).to_contain_text("failed")
        await _is_harmless(page)


async def _brought(http: aiohttp.ClientSession) -> str:
    """Hostile text in what is uploaded and published; the document's id."""
    tool = {
        "name": "hostile_tool", "description_short": EVIL[:200], "tags": ["x"],
        "input_schema": {"type": "object", "properties": {
            "text": {"type": "string", "description": EVIL, "examples": [f"{TURN}for example"]},
            "kind": {"type": "string", "enum": [f"pay{TURN}", "ask"]}, f"to{TURN}": {"type": "integer"},
        }},
        "runtime_binding": {"remote_endpoint": "https://evil.example/tool"},
    }  # fmt: skip
    template = {
        "name": "hostile", "base_agent_class": "ToolCallingAgent",
        "prompt_pack": {"system_prompt": EVIL.replace("{", "").replace("}", "")},
        "multi_agent_meta": {"capabilities": EVIL},
        "tool_policy": {"required": ["finalanswertool"], "allowlist": ["hostile_tool"]},
    }  # fmt: skip
    name, image = quote("<img src=x onerror=window.hacked=9>.md"), "<img src=x onerror=window.hacked=10>"
    sent: list[tuple[str, str, dict[str, Any]]] = [
        ("POST", "/admin/tools", {"json": tool}), ("POST", "/admin/templates", {"json": template}),
        ("POST", "/admin/keys", {"json": {"name": image, "owner": "mallory", "role": "user"}}),
        ("PUT", f"/v1/memory/files/{quote('<img src=x onerror=1>.md')}?scope=owner", {"json": {"content": EVIL}}),
        ("POST", f"/v1/documents?filename={name}", {"data": f"# {EVIL}\n\n{EVIL}\n".encode()}),
    ]  # fmt: skip
    for method, path, body in sent:
        async with http.request(method, path, **body) as response:
            assert response.status < 300, (path, await response.text())
            answer = await response.json()
    return str(answer["reg_id"])


async def _shows(page: Page, address: str, there: str) -> None:
    """Opens a screen and everything that is folded in it; the text is there, and harmless."""
    await page.goto(address)
    await expect(page.locator(there).first).to_be_visible()
    for _ in range(2):
        await page.evaluate("for (const one of document.querySelectorAll('#main details:not([open])')) one.open = true")
    await expect(page.locator("#main")).to_contain_text("onerror")
    await _is_harmless(page)


async def _is_harmless(page: Page) -> None:
    found = await page.evaluate(
        """alien => [
          window.hacked ?? null,
          [...document.querySelectorAll(alien)].map(one => one.outerHTML),
          /.{0,40}[\u202a-\u202e\u2066-\u2069]/.exec(document.body.textContent)?.[0] ?? null,
          [...document.querySelectorAll('[title], [placeholder], [aria-label]')].find(one =>
            ['title', 'placeholder', 'aria-label'].some(name =>
              /[\u202a-\u202e\u2066-\u2069]/.test(one.getAttribute(name)))
          )?.outerHTML ?? null,
        ]""",
        ALIEN,
    )
    assert found == [None, [], None, None], page.url
