"""Whatever our own OpenAPI document allows, and much that it does not, is answered as the document says."""

import asyncio
import re
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any, Final

import requests
import schemathesis
from attack_helpers import ask
from hypothesis import HealthCheck, Phase, given, settings
from key_helpers import ADMIN, Client, admin_of, client_of, keyed
from schemathesis import Case, GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.config import SchemathesisConfig
from schemathesis.core.failures import Failure, FailureGroup
from schemathesis.openapi.checks import RejectedPositiveData
from schemathesis.specs.openapi import checks
from schemathesis.specs.openapi.schemas import OpenApiSchema  # in a thread Python 3.11 might not parse it

from conformance import closed
from longhouse.api.admin.docs import EXAMPLES
from server_helpers import AGENT, House, Serving

REQUESTS: Final = 1
"""Made for each operation, fitting and not; each is sent as it is, and about things that exist."""
CONFORMANCE: Final = [
    not_a_server_error,
    checks.status_code_conformance,
    checks.content_type_conformance,
    checks.response_headers_conformance,
    checks.response_schema_conformance,
]
"""What is checked of every answer, whatever was asked."""
AS_MADE: Final = [*CONFORMANCE, checks.negative_data_rejection, checks.positive_data_acceptance]
"""And of the answers to what was made from the document: what fits it is taken, what does not is refused."""
BEYOND: Final = {
    "": "nothing was said to be done, or a text holds a NUL: no single field is wrong",
    "after": "an id to continue from is one of this session",
    "at": "a schedule fires in the future",
    "base_url": "an address is one that may be asked, and that answers",
    "before": "a cursor is what an earlier page said",
    "clarifications": "one of two fields is needed",
    "cron": "a cron expression names days that come",
    "expires_at": "a key expires in the future",
    "file": "a document can be read",
    "filename": "a file has a name that can be printed",
    "model": "a response names its agent, or one to go on from",
    "messages": "the last message is the user's, and a tool message answers a call before it",
    "name": "the name of a key can be printed",
    "description": "what a webhook is for can be printed",
    "path": "the path of a memory file can be printed",
    "since": "a span has an order, and an end",
    "url": "an address is one that may be reached",
    "time_zone": "a time zone is one of the IANA database",
    "user": "a user, or a conversation, is named",
}
"""By the `param` of the error: rules that no schema can say, and by which what fits the schemas may be refused."""
FRACTION: Final = "valid integer"
"""A whole number that is written as 4.0 is one to a schema, and none to us."""
PATIENCE: Final = 20.0
"""Seconds that an answer may take to begin."""
REFUSED: Final = {
    "GET /v1/sessions/{session_id}/artifacts/{artifact_id}",
    "GET /v1/sessions/{session_id}/images/{digest}",
    "GET /admin/sessions/{session_id}/images/{digest}",
    "POST /v1/sessions/{session_id}/approval",
    "POST /admin/models/probe",
    "GET /admin/sessions/{session_id}/artifacts/{artifact_id}",
    "POST /admin/sessions/{session_id}/approval",
}
"""Operations that nothing here can succeed with: no file was made, nothing waits for approval, no endpoint is there."""


@dataclass
class Caller:
    """Sends requests. Of a stream only its beginning is awaited: one that stays open is an answer, and is left."""

    url: str
    known: dict[str, str]
    document: Any
    http: requests.Session = field(default_factory=requests.Session)
    statuses: list[tuple[str, int]] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)

    def acquaint(self, case: Case[Any]) -> None:
        """The same request about things that exist; one that should fit is made to succeed, with the example body."""
        path = case.operation.path
        named = {**self.known, "name": EXAMPLES["template" if "templates" in path else "tool"]["name"]}
        if path.startswith("/admin/"):
            named |= {
                key.removeprefix("admin_"): value for key, value in self.known.items() if key.startswith("admin_")
            }
        case.path_parameters.update({key: named[key] for key in named.keys() & case.path_parameters.keys()})
        if case.meta and case.meta.generation.mode is GenerationMode.POSITIVE:
            case.headers.clear()
            case.query = {key: value for key, value in case.query.items() if key == "until" and path.endswith("events")}
            told = self.document["paths"][path][case.method.lower()].get("requestBody")
            if told and "application/json" in told["content"]:
                case.body = told["content"]["application/json"]["example"]
            elif told:
                case.body, case.media_type, case.query = (
                    b"Rules.",
                    "application/octet-stream",
                    {"filename": "rules.txt"},
                )

    def send(self, case: Case[Any]) -> None:
        """As it was made, and about things that exist."""
        operation = f"{case.method} {case.operation.path}"
        self.statuses.append((operation, self.status(case, AS_MADE)))
        self.acquaint(case)
        self.statuses.append((operation, self.status(case, CONFORMANCE)))

    def status(self, case: Case[Any], checked: list[Any]) -> int:
        asked = case.as_transport_kwargs(base_url=self.url)
        asked["headers"] = {**asked.get("headers", {}), "authorization": f"Bearer {ADMIN}"}
        with self.http.request(**asked, stream=True, timeout=PATIENCE) as answer:
            if answer.headers.get("content-type", "").startswith("text/event-stream"):
                first = next(answer.iter_content(None), b"")
                answer._content = first[: first.rfind(b"\n\n") + 2]
            try:
                case.validate_response(answer, checks=checked)
            except FailureGroup as group:
                failed = [one for one in group.exceptions if not is_beyond(one, answer)]
                self.failures += [f"{one.title}: {one.message}\n{asked}\n{answer.text[:500]}\n" for one in failed]
            return answer.status_code

    def close(self) -> None:
        self.http.close()


def is_beyond(failure: Failure, answer: requests.Response) -> bool:
    """Whether a request fits the schemas and was refused by a rule that they cannot say."""
    if not isinstance(failure, RejectedPositiveData) or answer.status_code != 400:
        return False
    error = answer.json()["error"]
    return re.split(r"[.\[]", error["param"] or "")[0] in BEYOND or FRACTION in error["message"]


def play(caller: Caller) -> None:
    """Calls every operation, also with what exists."""
    # Every request has a key: those without one are the tests of keys.
    config = SchemathesisConfig.from_dict({"generation": {"with-security-parameters": False}})
    schema: OpenApiSchema = schemathesis.openapi.from_dict(caller.document, config=config)
    for operation in in_order(schema):
        requests_of(caller, operation, GenerationMode.POSITIVE)()
        if can_be_wrong(caller.document["paths"][operation.path][operation.method]):
            requests_of(caller, operation, GenerationMode.NEGATIVE)()


def can_be_wrong(described: Any) -> bool:
    """Whether a request may break what is described of it: any text fits a path that says nothing of its parts.

    Hypothesis would find that out too, by hundreds of attempts.
    """
    given = described.get("parameters", ())
    return has_form(described) or any(one["in"] != "path" or not is_any_text(one["schema"]) for one in given)


def has_form(described: Any) -> bool:
    """Whether the body has a form to break: JSON-RPC answers whatever it is sent, by an error of its own."""
    bodies = described.get("requestBody", {}).get("content", {}).values()
    return any(body["schema"] for body in bodies)


def is_any_text(schema: Any) -> bool:
    return bool(schema["type"] == "string" and schema.keys() <= {"type", "title", "description", "examples"})


def requests_of(caller: Caller, operation: Any, mode: GenerationMode) -> Callable[[], None]:
    @given(case=operation.as_strategy(generation_mode=mode))
    @settings(
        max_examples=REQUESTS,
        derandomize=True,  # the same requests in every run: what fails once fails again
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    def sent(case: Case[Any]) -> None:
        caller.send(case)

    return sent


def in_order(schema: Any) -> Iterator[Any]:
    """Those last that take something away; what belongs to a thing before the thing itself."""
    found = [result.ok() for result in schema.get_all_operations()]
    last = ("cancel", "deactivate")

    def place(one: Any) -> tuple[bool, bool, int, str]:
        is_delete = one.method == "delete"
        return is_delete, one.path.endswith(last), -one.path.count("/") if is_delete else 0, one.path

    yield from sorted(found, key=place)


async def prepared(house: House) -> dict[str, str]:
    """Sessions that ask, a tool and a template in two versions, a key, a memory file: what a path can name."""
    admin = admin_of(house)
    session, other, theirs = [(await admin.say(words))["model"] for words in ("hi", "hello", "good day")]
    for kind, change in (("tool", {"timeout": 1.0}), ("template", {"follow": "pinned"})):
        for body in (EXAMPLES[kind], {**EXAMPLES[kind], **change}):
            assert await admin.status("POST", f"/admin/{kind}s", body) == 201
    client = await client_of(house, "ann")
    # What is erased by its user or its conversation, by its owner and by an admin, is asked for by nobody else.
    for who, user, chat in ((admin, "u-1", "c-1"), (client, "u-2", "c-2"), (client, "u-3", "c-3")):
        assert "model" in await who.say("hi", user=user, chat_id=chat)
    assert await admin.status("PUT", "/v1/memory/files/notes.md", {"content": "x"}) == 201
    response = await made(admin, "/v1/responses", {"model": AGENT, "input": "hi", "background": True})
    talk = await made(admin, "/v1/conversations", {"items": [{"role": "user", "content": "hi"}]})
    schedule = await made(admin, "/v1/schedules", {"template": AGENT, "prompt": "hi", "cron": "@yearly"}, 201)
    [item] = (await admin.got(f"/v1/conversations/{talk['id']}/items"))["data"]
    hook = await made(admin, "/v1/webhooks", {"url": "https://example.com/hook"}, 201)
    sent = await made(admin, f"/v1/webhooks/{hook['id']}/test", None, 202)
    # An agent may ask only so often in one turn: each way to answer has a session of its own.
    named = {
        "response_id": response["id"],
        "conversation_id": talk["id"],
        "item_id": item["id"],
        "schedule_id": schedule["id"],
        "session_id": session,
        "admin_session_id": theirs,
        "agent_id": other,
        "model": session,
        "key_id": client.id,
        "webhook_id": hook["id"],
        "delivery_id": sent["id"],
    }
    erased = {"user": "u-1", "owner": "ann", "admin_user": "u-2", "admin_conversation_id": "c-3"}
    return {**named, **erased, "template": AGENT, "reg_id": "rules", "version": "1", "step": "1", "path": "notes.md"}


async def made(client: Client, path: str, body: Any, status: int = 200) -> Any:
    async with client.ask("POST", path, body) as response:
        assert response.status == status, await response.text()
        return await response.json()


async def test_every_request_is_answered_as_the_document_says(serving: Serving) -> None:
    async with keyed(serving, ask, rate_limit=1_000_000, max_concurrent=1_000, sessions_per_hour=1_000_000) as house:
        admin = admin_of(house)
        known, document = await prepared(house), closed(await admin.got("/openapi.json"))
        with closing(Caller(house.url, known, document)) as caller:
            await asyncio.to_thread(play, caller)
        assert not caller.failures, "\n".join(caller.failures)
        described = {f"{method.upper()} {path}" for path, item in document["paths"].items() for method in item}
        assert {operation for operation, _ in caller.statuses} == described
        served = {operation for operation, status in caller.statuses if status < 300}
        assert described - served == REFUSED, "every operation was also seen to succeed"
        assert await admin.status("GET", "/ready") == 200
