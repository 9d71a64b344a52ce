"""Examples of requests and responses of the Admin API, for the OpenAPI document, and the types of its catalog."""

from dataclasses import fields
from datetime import datetime
from typing import Annotated, Any, Final, get_type_hints

import pydantic
from pydantic import Field

from longhouse.agents.template import Template
from longhouse.agents.tool_descriptor import ToolDescriptor
from longhouse.api import pagination, wire
from longhouse.api.http.json_route import Answers
from longhouse.api.pagination import Page
from longhouse.catalog.drafts import MOST
from longhouse.catalog.security import EffectiveTool

TOOL: Final[dict[str, Any]] = {
    "name": "stock_of_item",
    "type": "domain",
    "tags": ["warehouse"],
    "description_short": "How many pieces of an item are in stock.",
    "input_schema": {
        "type": "object",
        "properties": {"sku": {"type": "string", "description": "The number on the label"}},
        "required": ["sku"],
    },
    "runtime_binding": {"remote_endpoint": "https://warehouse.example/stock", "api_key_ref": "warehouse"},
    "security_policy": {"risk_level": "low", "rate_limits": {"per_minute": 60}},
    "effect": "read",
    "timeout": 10.0,
}
TEMPLATE: Final[dict[str, Any]] = {
    "name": "warehouse_clerk",
    "base_agent_class": "ToolCallingAgent",
    "prompt_pack": {"system_prompt": "You answer questions about our stock. Today is {current_date}."},
    "llm_policy": {"model": "gpt-4o-mini", "temperature": 0.2},
    "execution_policy": {"max_iterations": 8},
    "tool_policy": {"required": ["finalanswertool"], "allowlist": ["clarificationtool"]},
    "multi_agent_meta": {"capabilities": "Knows what is in stock.", "tags": ["warehouse"]},
}
ONE: Final[dict[str, Any]] = {"tool": ToolDescriptor, "template": Template}
ONE_OR_MANY: Final[dict[str, Any]] = {
    "tool": ToolDescriptor | Annotated[list[ToolDescriptor], Field(max_length=MOST)],
    "template": Template | Annotated[list[Template], Field(max_length=MOST)],
}


def _shown_type(kind: str) -> Any:
    """The type of a descriptor in a response: as it was published, with what the catalog knows of it."""
    cls = ONE[kind]
    hints = get_type_hints(cls, include_extras=True)
    # What a release knew nothing of is in no row that it has written.
    own: dict[str, Any] = {
        one.name: (hints[one.name], None) for one in fields(cls) if one.name not in ("name", "version")
    }
    added: dict[str, Any] = {
        f"{kind}_id": (str, ...),
        "name": (str, ...),
        "version": (int, ...),
        "is_active": (bool, ...),
        "latest": (int, None),
        "digest": (str, None),
        "published_by": (str, None),
        "published_at": (datetime, None),
        "changed_at": (datetime, None),
        "security_overlay": (dict[str, Any], None),
    }
    if kind == "tool":
        added["effective"] = (EffectiveTool | None, None)
    lazy = pydantic.ConfigDict(defer_build=True)  # nothing is ever validated with it
    return pydantic.create_model(f"Shown{kind.capitalize()}", __config__=lazy, **own, **added)


SHOWN: Final = {kind: _shown_type(kind) for kind in ONE}
PAGES: Final[dict[str, Any]] = {kind: Page[shown] for kind, shown in SHOWN.items()}  # type: ignore[valid-type]
EXAMPLES: Final = {"tool": TOOL, "template": TEMPLATE}
PATCHES: Final[dict[str, Any]] = {"tool": {"timeout": 30.0}, "template": {"llm_policy": {"temperature": 0.0}}}

ADDED: Final[dict[str, Any]] = {
    "version": 2,
    "is_active": True,
    "owner": None,
    "latest": 2,
    "digest": "9f2c…",
    "published_by": "key_0123456789abcdef0123456789abcdef",
    "published_at": "2026-01-31T12:00:00Z",
}
SESSION: Final[dict[str, Any]] = {
    "session_id": "warehouse_clerk_8c5e2f0a-6d1b-4c3e-9a57-1f0e2d3c4b5a",
    "template_id": "warehouse_clerk",
    "template": "warehouse_clerk",
    "version": 2,
    "owner": "shop",
    "user": None,
    "conversation_id": "conv_1",
    "label": "",
    "parent": None,
    "trace_id": "trace_1",
    "state": "COMPLETED",
    "title": "How many red boxes are there?",
    "task": "How many red boxes are there?",
    "turns": 1,
    "steps": 2,
    "tokens": 1834,
    "work_seconds": 3.912,
    "waiting_seconds": 0.0,
    "questions": 0,
    "error": None,
    "created_at": "2026-01-31T12:00:00Z",
    "updated_at": "2026-01-31T12:00:04Z",
}
FACETS: Final[dict[str, Any]] = {
    "sessions": 7,
    "is_complete": True,
    "states": {"COMPLETED": 5, "WAITING_FOR_APPROVAL": 2},
    "agents": {"warehouse_clerk": 7},
    "owners": {"shop": 7},
    "failing_tools": {"stock_of_item": 1},
}
INSTANCE: Final[dict[str, Any]] = {
    "instance_id": "warehouse_clerk-5b1c…",
    "template_id": "warehouse_clerk",
    "version": 2,
    "status": "IDLE",
    "node": "host-1",
    "worker": "worker_1",
    "session_id": None,
    "last_used_at": "2026-01-31T12:00:04Z",
    "metrics": {"served": 12, "failed": 0, "history": [{"status": "IDLE", "at": "2026-01-31T12:00:04Z"}]},
}
WORKER: Final[dict[str, Any]] = {
    "worker_id": "worker_1",
    "node": "host-1",
    "pid": 4711,
    "slots": 32,
    "started_at": "2026-01-31T11:00:00Z",
    "beat_at": "2026-01-31T12:00:04Z",
    "is_alive": True,
    "sessions": 3,
    "version": "0.3.0",
}


def listed(description: str, row: Any, page: Any = None) -> dict[str, Any]:
    """A page of rows like this one; `page`: its type, where the route names none."""
    return wire.answer(description, pagination.page([row]), page)


def error(description: str, message: str, *, code: str | None = None, param: str | None = None) -> dict[str, Any]:
    return wire.answer(description, wire.envelope(message, kind="invalid_request_error", code=code, param=param))


def shown(kind: str) -> dict[str, Any]:
    """A descriptor in a response, with the fields that the catalog adds."""
    return {f"{kind}_id": EXAMPLES[kind]["name"], **EXAMPLES[kind], **ADDED}


def placed(kind: str) -> dict[str, Any]:
    return {"name": EXAMPLES[kind]["name"], "version": 2, "is_active": True}


def compared(kind: str) -> dict[str, Any]:
    changed = [{"path": "timeout", "from": 10.0, "to": 30.0}]
    return {"name": EXAMPLES[kind]["name"], "from": 1, "to": 2, "differences": changed}


def missing(kind: str) -> dict[int | str, dict[str, Any]]:
    message = f"There is no {kind} 'stock', or no such version of it."
    return {404: error("There is none.", message, code=f"{kind}_not_found")}


def named(
    kind: str, summary: str, description: str, example: Any = None, answer: Any = None, *, errors: Answers | None = None
) -> dict[str, Any]:
    """The documentation of a route that names a tool or a template; without an example, it answers without a body.

    `answer`: the type of its body, where that depends on the kind."""
    done = {200 if example else 204: wire.answer(description, example, answer)}
    return {
        "summary": summary.format(kind),
        "status_code": 200 if example else 204,
        "responses": {**done, **missing(kind), **(errors or {})},
    }


def publishing(kind: str) -> dict[str, Any]:
    """The documentation of a route that publishes."""
    taken = "name: a tool of this name comes with the program; give yours another name."
    wrong = "timeout: Input should be greater than 0."
    responses = {
        201: wire.answer("A new version.", placed(kind)),
        200: wire.answer("This content was there already, and keeps its version.", placed(kind)),
        400: error(
            "Something is wrong; the message names every field.", f"Nothing is published. {wrong}", param="timeout"
        ),
        409: error(
            "The name belongs to somebody else, or others publish at the same time.",
            f"Nothing is published. {taken}",
            code="name_taken",
            param="name",
        ),
    }
    return {"status_code": 201, "openapi_extra": wire.example(**EXAMPLES[kind]), "responses": responses}
