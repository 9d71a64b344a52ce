"""A shop that has used Longhouse for a while: what the screens of the console are looked at with."""

from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

import aiohttp

from longhouse.agents.strategies.protocol import Body
from longhouse.journal.messages import System, User, text_of
from longhouse.models.scripted import Say, ScriptedStatus, call, calls, say, step_of

ANSWER = """## Order 4711

It left the warehouse on **Monday** and is in Bergen now. What the handbook promises for it:

| Step | Promise | So far |
|---|---|---:|
| packed | 1 day | 6 h |
| on its way | 4 days | 2 days |
| refund if late | 10 % | none |

1. Nothing has to be done before *Thursday*.
2. After that, ask with `order_status`:

```python
status = shop.order(4711).status()
print(status.expected_at)
```
"""
PLAN = """Three days in Bergen, within **€ 900**:

- *Friday*: the funicular to Fløyen, dinner at the fish market
- *Saturday*: the ferry to Mostraumen; take a raincoat
- *Sunday*: the Hanseatic museum, and the train to Oslo at 15:59
"""
NOBODY = "127.0.0.1:9"
"""Where the webhook of the scene would be received; the house must be allowed to ask there."""
HANDBOOK = "# Handbook of the shop\n\n" + "\n".join(
    f"## {number} {title}\n\nThis chapter is about {title.lower()}. {text * 12}\n\n"
    f"### {number}.1 Details\n\n{text * 8}\n"
    for number, (title, text) in enumerate(
        (
            ("Orders", "An order is packed within one day and arrives within four. "),
            ("Returns", "A customer may send things back for thirty days, without a reason. "),
            ("Invoices", "An invoice is sent when the order leaves the house. "),
            ("Опоздания", "Если заказ опоздал, мы возвращаем десять процентов. "),
            ("发票", "订单发出时寄送发票。"),
        ),
        1,
    )
)
TALKS = (
    "What time is it in Oslo?", "Can I return shoes that I wore once?", "Когда придёт мой заказ?", "发票什么时候寄出?",
    "Please send the invoice of May again", "How late may a parcel be?", "Which chapters does the handbook have?",
)  # fmt: skip


def shop(body: Body) -> Say:
    """The model of the shop: it plays each agent by the first line of its prompt."""
    system = body.messages[0]
    name = text_of(system.content).split(".")[0] if isinstance(system, System) else ""
    task = next((text_of(one.content) for one in reversed(body.messages) if isinstance(one, User)), "")
    step = step_of(body.messages)
    if "planner" in name:
        return _planner(step)
    if "scout" in name:
        return _scout(task, step)
    if "You write letters" in text_of(system.content or ""):
        return _secretary(step)
    return _support(task, step)


def _support(task: str, step: int) -> Say:
    if "4711" in task:
        search = call("smart_search", query="late orders", reg_id="handbook", limit=2)
        thought = "The customer asks about an order. The handbook says what we promise; then I look at the clock."
        return (
            Say(calls=(*search.calls, *call("clocktool", timezone="Europe/Oslo").calls), reasoning=thought)
            if not step
            else _final(ANSWER)
        )
    if "invoice" in task:
        return call("clarificationtool", questions=["Which invoice do you mean: the one of May, or the one of June?"])
    if "parcel" in task:
        return say("", fault=ScriptedStatus(status=400, message="The model refused: the prompt has too many tokens."))
    return _final(f"The handbook answers this in its first chapter: “{task}”") if step else call("clocktool")


def _planner(step: int) -> Say:
    first = call("agent_scout", task="Find what to do in Bergen at the end of May, for two people.")
    second = call("agent_scout", task="Find the cheapest trains between Bergen and Oslo on a Sunday.")
    return calls(first, second) if not step else _final(PLAN)


def _scout(task: str, step: int) -> Say:
    return _final(f"I looked it up: {task}") if step else call("clocktool", timezone="Europe/Oslo")


def _secretary(step: int) -> Say:
    letter = {
        "to": "Anna Berg",
        "subject": "Your order 4711",
        "text": "Dear Anna,\n\nit arrives on Thursday.\n\nThe shop",
    }
    return call("lettertool", **letter) if not step else _final("The letter is written.")


def _final(answer: str) -> Say:
    return call("finalanswertool", answer=answer, status="completed")


@dataclass
class Scene:
    """Sessions of the scene."""

    answered: str
    asking: str
    approving: str
    planned: str
    failed: str
    schedule: str
    webhook: str

    def screens(self) -> dict[str, tuple[str, str]]:
        """Name -> address, and what is there once it is shown."""
        session = f"/sessions/{self.planned}"
        return {
            "chat": (f"/s/{self.answered}", ".answer-foot"),
            "chat-question": (f"/s/{self.asking}", ".question-card"),
            "chat-agents": (f"/s/{self.planned}", "details.agent"),
            "chat-failed": (f"/s/{self.failed}", ".failure"),
            "inbox": ("/inbox", ".question-card"),
            "sessions": ("/sessions", ".session-row[data-session]"),
            "session": (session, ".timeline"),
            "session-model": (f"{session}?tab=model", ".tab-body > *"),
            "session-messages": (f"{session}?tab=messages", ".tab-body > *"),
            "session-events": (f"{session}?tab=events", ".event-row"),
            "session-files": (f"{session}?tab=files", ".part"),
            "session-memory": (f"{session}?tab=memory", ".part"),
            "session-log": (f"{session}?tab=log", ".log-entry"),
            "agents": ("/catalog/agents", ".card"),
            "agent": ("/catalog/agents/support", "#main h2, #main h3"),
            "agent-edit": ("/catalog/agents/support?tab=edit", "#main textarea"),
            "agent-versions": ("/catalog/agents/support?tab=versions", ".tab-body > *"),
            "tools": ("/catalog/tools", ".card, tbody tr"),
            "tool-search": ("/catalog/tools?tab=search&q=send%20a%20bill", ".tab-body > *"),
            "tool": ("/catalog/tools/send_invoice", "#main h2, #main h3"),
            "documents": ("/documents", "tbody tr"),
            "document": ("/documents/handbook", ".page-text"),
            "memory": ("/memory", ".memory-row"),
            "schedules": ("/schedules", "tbody tr"),
            "schedule": (f"/schedules/{self.schedule}", "tbody tr"),
            "webhooks": ("/webhooks", "tbody tr"),
            "webhook": (f"/webhooks/{self.webhook}", "tbody tr"),
            "operations": ("/operations", ".sentences li"),
            "keys": ("/keys", ".key-card, .empty"),
        }


async def furnish(http: aiohttp.ClientSession) -> Scene:
    """Publishes the agents of the shop, brings its documents and memory, and has the talks of a day."""
    for path, body in _catalog():
        await _sent(http, "POST", path, body)
    await _sent(http, "POST", "/v1/documents?filename=handbook.md", HANDBOOK.encode())
    for path, content in (
        ("people/anna.md", "# Anna Berg\n\n- prefers short answers\n- lives in Oslo\n"),
        ("projects/встреча 会议.md", "Встреча во вторник.\n会议在星期二。"),
    ):
        await _sent(http, "PUT", f"/v1/memory/files/{quote(path)}?scope=owner", {"content": content})
    morning = {
        "name": "The morning", "template": "support", "prompt": "Which orders are late?\nКакие заказы опаздывают?",
        "cron": "0 9 * * MON-FRI", "time_zone": "Europe/Oslo", "missed": "skip",
    }  # fmt: skip
    inventory = {"template": "planner", "prompt": "Plan the inventory.", "at": "2035-01-02T08:00", "paused": True}
    schedules = [await _sent(http, "POST", "/v1/schedules", one) for one in (morning, inventory)]
    await _sent(http, "POST", f"/v1/schedules/{schedules[0]['id']}/run")
    hook = {"url": f"http://{NOBODY}/longhouse", "description": "the help desk", "events": ["question.opened"]}
    webhook = await _sent(http, "POST", "/v1/webhooks", hook)
    await _sent(http, "POST", f"/v1/webhooks/{webhook['id']}/test")
    for nth, task in enumerate(TALKS):
        await said(http, "support", task, user=("anna", "boris", "chen")[nth % 3])
    return Scene(
        answered=await said(http, "support", "Where is order 4711, and when does it arrive?"),
        planned=await said(http, "planner", "Plan three days in Bergen for two, below 900 euros."),
        approving=await said(http, "secretary", "Write to Anna Berg that her order arrives on Thursday."),
        asking=await said(http, "support", "Please send my invoice again."),
        failed=await said(http, "support", "Why is my parcel late?"),
        schedule=schedules[0]["id"],
        webhook=webhook["id"],
    )


def _catalog() -> list[tuple[str, dict[str, Any]]]:
    properties = {
        "customer": {"type": "string", "description": "The customer's number"},
        "amount": {"type": "number", "minimum": 0, "description": "In euros"},
        "language": {"type": "string", "enum": ["en", "de", "ru", "zh"], "default": "en"},
    }
    invoice = {
        "name": "send_invoice", "description_short": "Sends an invoice to a customer by e-mail.",
        "tags": ["billing", "mail"], "effect": "once", "needs_approval": True,
        "input_schema": {"type": "object", "properties": properties, "required": ["customer", "amount"]},
        "runtime_binding": {"remote_endpoint": "https://billing.example/invoices"},
    }  # fmt: skip
    plain = ["clarificationtool", "clocktool", "smart_search", "get_toc", "send_invoice"]
    support = _template("support", "Answers customers about orders, invoices and returns.", plain)
    newer = _template(
        "support", "Answers customers about orders, invoices and returns; asks before money moves.", plain
    )
    newer["prompt_pack"]["system_prompt"] += "\nAnswer in the customer's language."
    scout = _template("scout", "Looks things up, and says where it found them.", ["clocktool"])
    planner = _template("planner", "Plans travels with the help of scouts.", ["agent.scout"])
    return [
        ("/admin/tools", invoice), *(("/admin/templates", one) for one in (support, newer, scout, planner)),
    ]  # fmt: skip


def _template(name: str, capabilities: str, tools: list[str]) -> dict[str, Any]:
    return {
        "name": name, "base_agent_class": "ToolCallingAgent",
        "multi_agent_meta": {"capabilities": capabilities, "tags": ["shop"]},
        "prompt_pack": {"system_prompt": f"You are the {name} of a shop.\nBe short and kind."},
        "tool_policy": {"required": ["finalanswertool"], "allowlist": tools},
    }  # fmt: skip


async def said(http: aiohttp.ClientSession, agent: str, text: str, **extra: Any) -> str:
    """Says this; the session that answered, asks or failed."""
    body = {"model": agent, "messages": [{"role": "user", "content": text}], **extra}
    async with http.post("/v1/chat/completions", json={**body, "stream": True}) as response:
        found = await response.text()
        assert response.status == 200, found
    return str(response.headers.get("x-session-id") or found.split('"model":"', 1)[1].split('"', 1)[0])


async def _sent(http: aiohttp.ClientSession, method: str, path: str, body: dict[str, Any] | bytes | None = None) -> Any:
    given: dict[str, Any] = {"data": body} if isinstance(body, bytes) else {"json": body}
    async with http.request(method, path, **given) as response:
        assert response.status < 300, await response.text()
        return await response.json()
