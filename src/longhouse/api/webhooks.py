"""Webhooks: who is told of what happens in the caller's sessions, and the log of what was sent."""

import uuid
from typing import Annotated, Any, Final, Literal, TypeVar, get_args

import msgspec
import structlog
from fastapi import Query
from pydantic import Field

from longhouse import clock
from longhouse.api import auth, pagination, wire
from longhouse.api.admin import docs
from longhouse.api.caller import Caller
from longhouse.api.http.json_route import of_app, refuses, strict_router
from longhouse.api.pagination import Omittable, Page
from longhouse.egress import LONGEST_URL, Egress
from longhouse.errors import CallerError
from longhouse.integrations.webhooks.collector import payload_of
from longhouse.store.automation import webhook_deliveries, webhooks
from longhouse.store.automation.webhook_deliveries import TEST, DeliveryStatus, ShownDelivery
from longhouse.store.automation.webhooks import EventType, ShownWebhook, TooMany, Viewer
from longhouse.store.database import Database

log = structlog.get_logger()

Found = TypeVar("Found")

EVENTS: Final[tuple[EventType, ...]] = get_args(EventType)
LONGEST_OVERLAP: Final = 30 * 24 * 3600
NO_STORE: Final = {"cache-control": "no-store"}


Url = Annotated[str, Field(min_length=1, max_length=LONGEST_URL, description="Where events are sent by POST")]
Events = Annotated[wire.Many[EventType], Field(min_length=1, max_length=20, description="What is told; else all")]
Agent = Annotated[wire.Id | None, Field(description="Sessions of this agent alone; null: of all")]


class NewWebhook(wire.StrictModel):
    url: Url
    events: Events = Field(default_factory=lambda: list(EVENTS))
    agent: Agent = None
    description: wire.Line = ""


class ChangedWebhook(NewWebhook):
    """What is not named stays."""

    url: Url = "https://example.com"
    status: Literal["active", "disabled"] = "active"


class SecretRotation(wire.StrictModel):
    overlap_seconds: Annotated[int, pagination.Digits] = Field(
        0, ge=0, le=LONGEST_OVERLAP, description="Seconds for which deliveries are signed with the old secret too"
    )


class LogQuery(pagination.Paged):
    status: Omittable[DeliveryStatus] = Field(None, description="Deliveries of this status alone")


class WebhookWithSecret(ShownWebhook, frozen=True, kw_only=True):
    secret: str
    """Not shown again."""


class WebhookService(msgspec.Struct, frozen=True):
    """What the routes are served with."""

    db: Database
    egress: Egress

    async def find(self, caller: Caller, webhook_id: str) -> ShownWebhook:
        return _there(await webhooks.find(self.db, viewer_of(caller), webhook_id))

    def check_url(self, url: str) -> None:
        """Raises if the address may not be reached, by the rules of remote tools."""
        if problem := self.egress.problem(url):
            raise CallerError(f"url cannot be used: {problem}.", param="url")


SHOWN: Final[dict[str, Any]] = {
    "id": "wh_0123456789abcdef0123456789abcdef",
    "object": "webhook",
    "url": "https://example.com/longhouse",
    "events": ["question.opened", "approval.needed"],
    "agent": "support",
    "description": "the help desk",
    "status": "active",
    "reason": None,
    "failing_since": None,
    "former_until": None,
    "key_id": "key_0123456789abcdef0123456789abcdef",
    "created_at": "2026-01-31T12:00:00Z",
    "updated_at": "2026-01-31T12:00:00Z",
}
WITH_SECRET: Final[dict[str, Any]] = {**SHOWN, "secret": "whsec_<44 characters>"}
SENT: Final[dict[str, Any]] = {
    "id": "msg_0123456789abcdef0123456789abcdef",
    "object": "webhook.delivery",
    "webhook_id": SHOWN["id"],
    "type": "session.rested",
    "session_id": "support_6f9619ff-8b86-d011-b42d-00cf4fc964ff",
    "status": "pending",
    "attempts": 1,
    "next_attempt_at": "2026-01-31T12:05:05Z",
    "attempted_at": "2026-01-31T12:00:05Z",
    "last_status": 500,
    "last_error": "The receiver answered 500: no reason given",
    "payload": {
        "type": "session.rested",
        "timestamp": "2026-01-31T12:00:04+00:00",
        "data": {
            "session_id": "support_6f9619ff-8b86-d011-b42d-00cf4fc964ff",
            "conversation_id": "c-1",
            "agent": "support",
            "user": None,
            "state": "COMPLETED",
        },
    },
    "created_at": "2026-01-31T12:00:04Z",
}

router = strict_router("Webhooks", auth.user)
TheWebhooks = Annotated[WebhookService, of_app("webhooks")]
PATH: Final = "/v1/webhooks/{webhook_id}"


@router.post(
    "/v1/webhooks",
    status_code=201,
    openapi_extra=wire.example(url="https://example.com/longhouse", events=["question.opened", "approval.needed"]),
    responses={201: wire.answer("The webhook; its secret is not shown again.", WITH_SECRET), **refuses(409)},
)
async def create_webhook(caller: auth.User, held: TheWebhooks, asked: NewWebhook) -> wire.Json[WebhookWithSecret]:
    """Creates a webhook: what happens in the caller's sessions from now on is sent there, signed with its secret."""
    _check_agent(caller, asked.agent)
    held.check_url(asked.url)
    values = {**asked.model_dump(), "events": _once(asked.events), "status": "active"}
    try:
        made, secret = await webhooks.create(held.db, viewer_of(caller), **values)
    except TooMany:
        message = f"There are {webhooks.MOST} webhooks already: delete one that is not needed."
        raise CallerError(message, status=409, code="too_many_webhooks") from None
    log.info("webhook_created", webhook=made.id, owner=caller.owner, by=caller.key)
    return wire.Json(_with_secret(made, secret), status_code=201, headers=NO_STORE)


@router.get("/v1/webhooks", responses={200: docs.listed("One page of webhooks.", SHOWN)})
async def list_webhooks(
    caller: auth.User, held: TheWebhooks, asked: pagination.PagedQuery
) -> wire.Json[Page[ShownWebhook]]:
    """The caller's webhooks, newest first; a key that is limited to templates sees those that were made with it."""
    found = await webhooks.listed(held.db, viewer_of(caller), before=asked.before, limit=asked.fetched)
    return wire.Json(asked.page(found, pagination.by("created_at")))


@router.get(PATH, responses={200: wire.answer("The webhook.", SHOWN)})
async def get_webhook(caller: auth.User, held: TheWebhooks, webhook_id: str) -> wire.Json[ShownWebhook]:
    """One webhook, without its secret."""
    return wire.Json(await held.find(caller, webhook_id))


@router.patch(
    PATH,
    openapi_extra=wire.example(status="active"),
    responses={200: wire.answer("The webhook as it is now.", SHOWN)},
)
async def change_webhook(
    caller: auth.User, held: TheWebhooks, webhook_id: str, asked: ChangedWebhook
) -> wire.Json[ShownWebhook]:
    """Changes a webhook. `status: active` has a paused one go on with what has waited; while it is `disabled`, nothing
    is recorded for it."""
    changes = asked.model_dump(exclude_unset=True)
    if not changes:
        raise CallerError("Say what to change.")
    if "agent" in changes:
        _check_agent(caller, asked.agent)
    if "url" in changes:
        held.check_url(asked.url)
    if "events" in changes:
        changes["events"] = _once(asked.events)
    changed = _there(await webhooks.change(held.db, viewer_of(caller), webhook_id, changes))
    log.info("webhook_changed", webhook=changed.id, owner=caller.owner, by=caller.key, changed=sorted(changes))
    return wire.Json(changed)


@router.delete(PATH, status_code=204)
async def delete_webhook(caller: auth.User, held: TheWebhooks, webhook_id: str) -> wire.NoContent:
    """Deletes a webhook with its log; what was not delivered yet is not sent any more."""
    if not await webhooks.delete(held.db, viewer_of(caller), webhook_id):
        raise _no_webhook()
    log.info("webhook_deleted", webhook=webhook_id, owner=caller.owner, by=caller.key)
    return wire.NoContent()


@router.post(f"{PATH}/rotate", responses={200: wire.answer("The new secret, which is not shown again.", WITH_SECRET)})
async def rotate_secret(
    caller: auth.User, held: TheWebhooks, webhook_id: str, asked: Annotated[SecretRotation, Query()]
) -> wire.Json[WebhookWithSecret]:
    """Gives a webhook a new secret. For `overlap_seconds` each delivery is signed with the old one too."""
    viewer, overlap = viewer_of(caller), asked.overlap_seconds
    made, secret = _there(await webhooks.rotate(held.db, viewer, webhook_id, overlap=overlap))
    log.info("webhook_rotated", webhook=made.id, owner=caller.owner, by=caller.key, overlap=overlap)
    return wire.Json(_with_secret(made, secret), headers=NO_STORE)


@router.post(
    f"{PATH}/test",
    status_code=202,
    responses={202: wire.answer("The delivery, which is sent in a moment.", SENT), **refuses(409)},
)
async def send_test(caller: auth.User, held: TheWebhooks, webhook_id: str) -> wire.Json[ShownDelivery]:
    """Sends an event of the type `webhook.test`; the log tells how it went."""
    found = _active(await held.find(caller, webhook_id))
    payload = payload_of(TEST, clock.now(), {"webhook_id": found.id})
    made = await webhook_deliveries.add_test(held.db, found.id, uuid.uuid4().hex, payload)
    return wire.Json(made, status_code=202)


@router.get(f"{PATH}/deliveries", responses={200: docs.listed("One page of the log.", SENT)})
async def list_deliveries(
    caller: auth.User, held: TheWebhooks, webhook_id: str, asked: Annotated[LogQuery, Query()]
) -> wire.Json[Page[ShownDelivery]]:
    """The log: what was sent and what waits, newest first; `status`, `limit` (≤ 200), `before`."""
    webhook = await held.find(caller, webhook_id)
    found = await webhook_deliveries.log_of(
        held.db,
        webhook.id,
        status=asked.status,
        templates=_templates(caller),
        before=asked.before,
        limit=asked.fetched,
    )
    return wire.Json(asked.page(found, pagination.by("created_at")))


@router.post(
    f"{PATH}/deliveries/{{delivery_id}}/retry",
    status_code=202,
    responses={202: wire.answer("The delivery, which is sent in a moment.", SENT), **refuses(409)},
)
async def retry_delivery(
    caller: auth.User, held: TheWebhooks, webhook_id: str, delivery_id: str
) -> wire.Json[ShownDelivery]:
    """Sends a delivery again, with the same `webhook-id`, whether it had failed or not; its attempts begin anew."""
    webhook = _active(await held.find(caller, webhook_id))
    found = await webhook_deliveries.retry(held.db, webhook.id, delivery_id, templates=_templates(caller))
    if found is None:
        raise wire.not_found("There is no such delivery.", code="delivery_not_found")
    return wire.Json(found, status_code=202)


def viewer_of(caller: Caller) -> Viewer:
    return Viewer(caller.owner, caller.key, only_own=caller.templates is not None)


def _templates(caller: Caller) -> list[str] | None:
    return None if caller.templates is None else sorted(caller.templates)


def _check_agent(caller: Caller, agent: str | None) -> None:
    if agent is not None and not caller.may_use(agent):
        message = f"agent: this key may not use the agent {agent!r}."
        raise CallerError(message, status=403, code="template_not_allowed", param="agent")


def _once(events: list[EventType]) -> list[EventType]:
    return list(dict.fromkeys(events))


def _there(found: Found | None) -> Found:
    if found is None:
        raise _no_webhook()
    return found


def _no_webhook() -> CallerError:
    return wire.not_found("There is no such webhook.", code="webhook_not_found")


def _active(found: ShownWebhook) -> ShownWebhook:
    if found.status != "active":
        message = f"The webhook is {found.status}: set its status to active first."
        raise CallerError(message, status=409, code="webhook_not_active")
    return found


def _with_secret(webhook: ShownWebhook, secret: str) -> WebhookWithSecret:
    return WebhookWithSecret(**msgspec.structs.asdict(webhook), secret=secret)
