"""`longhouse webhooks …`: create, list, test, rotate, resume and delete webhooks, and read their log."""

import uuid
from typing import Annotated, Final

import pydantic
import typer

from longhouse import clock
from longhouse.api.webhooks import LONGEST_OVERLAP, NewWebhook
from longhouse.app.store import open_store, with_database
from longhouse.cli.one_line import plain
from longhouse.cli.running import group, invalid_option
from longhouse.config.effective import configure
from longhouse.errors import SetupError
from longhouse.integrations.webhooks.collector import payload_of
from longhouse.journal.session import LOCAL_OWNER
from longhouse.settings import Settings
from longhouse.store.automation import webhook_deliveries, webhooks
from longhouse.store.automation.webhook_deliveries import TEST, DeliveryStatus, ShownDelivery
from longhouse.store.automation.webhooks import ShownWebhook, TooMany, Viewer
from longhouse.store.database import Database

PAGE: Final = 200

WebhookId = Annotated[str, typer.Argument(help="The id, as `longhouse webhooks list` shows it.")]
Owner = Annotated[str, typer.Option(help="Whose sessions it tells of.")]


async def create_webhook(
    settings: Settings,
    url: Annotated[str, typer.Argument(help="Where events are sent by POST.")],
    *,
    owner: Owner = LOCAL_OWNER,
    events: Annotated[
        list[str] | None, typer.Option("--event", help="What is told; several may be named. Else all.")
    ] = None,
    agent: Annotated[str | None, typer.Option(help="Sessions of this agent alone.")] = None,
    description: Annotated[str, typer.Option(help="What it is for.")] = "",
) -> None:
    """Create a webhook. Its secret is printed once and cannot be shown again."""
    given = {"events": events} if events else {}
    try:
        new = NewWebhook.model_validate({"url": url, "agent": agent, "description": description, **given})
    except pydantic.ValidationError as error:
        raise invalid_option(error, {"url": "url", "events": "--event"}) from None
    if refused := configure(settings).webhook_egress.problem(url):
        raise SetupError(f"url cannot be used: {refused}.")
    async with open_store(settings) as (db, _):
        try:
            made, secret = await webhooks.create(db, _viewer(owner), **new.model_dump(), status="active")
        except TooMany:
            raise SetupError(f"{owner} has {webhooks.MOST} webhooks already: delete one that is not needed.") from None
    typer.echo(f"{_described(made)}. Keep the secret, it is not shown again:", err=True)
    typer.echo(secret)


@with_database
async def list_webhooks(db: Database, owner: Owner = LOCAL_OWNER) -> None:
    """List the webhooks of an owner, newest first."""
    for one in await webhooks.listed(db, _viewer(owner), limit=PAGE):
        typer.echo(_described(one))


@with_database
async def show_log(
    db: Database,
    webhook_id: WebhookId,
    owner: Owner = LOCAL_OWNER,
    status: Annotated[DeliveryStatus | None, typer.Option(help="Deliveries of this status alone.")] = None,
    limit: Annotated[int, typer.Option(min=1, max=PAGE, help="How many at most.")] = 50,
) -> None:
    """Show what was sent and what waits, newest first."""
    if await webhooks.find(db, _viewer(owner), webhook_id) is None:
        raise _missing(webhook_id)
    for one in await webhook_deliveries.log_of(db, webhook_id, status=status, limit=limit):
        typer.echo(_sent(one))


@with_database
async def send_test(db: Database, webhook_id: WebhookId, owner: Owner = LOCAL_OWNER) -> None:
    """Have a worker send a test event; the log tells how it went."""
    _check_active(await webhooks.find(db, _viewer(owner), webhook_id), webhook_id)
    payload = payload_of(TEST, clock.now(), {"webhook_id": webhook_id})
    typer.echo(_sent(await webhook_deliveries.add_test(db, webhook_id, uuid.uuid4().hex, payload)))


@with_database
async def retry_delivery(
    db: Database,
    webhook_id: WebhookId,
    delivery: Annotated[str, typer.Argument(help="The id, as `longhouse webhooks log` shows it.")],
    owner: Owner = LOCAL_OWNER,
) -> None:
    """Have a worker send a delivery again."""
    _check_active(await webhooks.find(db, _viewer(owner), webhook_id), webhook_id)
    found = await webhook_deliveries.retry(db, webhook_id, delivery)
    if found is None:
        raise SetupError(f"there is no delivery {delivery!r}; `longhouse webhooks log` shows all.")
    typer.echo(_sent(found))


@with_database
async def rotate_secret(
    db: Database,
    webhook_id: WebhookId,
    owner: Owner = LOCAL_OWNER,
    overlap: Annotated[
        int, typer.Option(min=0, max=LONGEST_OVERLAP, help="Seconds for which the old secret signs too.")
    ] = 0,
) -> None:
    """Give a webhook a new secret. It is printed once."""
    rotated = await webhooks.rotate(db, _viewer(owner), webhook_id, overlap=overlap)
    if rotated is None:
        raise _missing(webhook_id)
    made, secret = rotated
    typer.echo(f"{_described(made)}. Keep the secret, it is not shown again:", err=True)
    typer.echo(secret)


@with_database
async def resume_webhook(db: Database, webhook_id: WebhookId, owner: Owner = LOCAL_OWNER) -> None:
    """Have a webhook that is paused or disabled go on, with what has waited."""
    changed = await webhooks.change(db, _viewer(owner), webhook_id, {"status": "active"})
    if changed is None:
        raise _missing(webhook_id)
    typer.echo(_described(changed))


@with_database
async def delete_webhook(db: Database, webhook_id: WebhookId, owner: Owner = LOCAL_OWNER) -> None:
    """Delete a webhook with its log."""
    if not await webhooks.delete(db, _viewer(owner), webhook_id):
        raise _missing(webhook_id)
    typer.echo(f"{webhook_id} is deleted")


def _viewer(owner: str) -> Viewer:
    return Viewer(owner, "", only_own=False)


def _missing(webhook_id: str) -> SetupError:
    return SetupError(f"there is no webhook {webhook_id!r} of this owner; `longhouse webhooks list` shows all.")


def _check_active(found: ShownWebhook | None, webhook_id: str) -> None:
    """Raises if the webhook is not active: an event would wait unseen."""
    if found is None:
        raise _missing(webhook_id)
    if found.status != "active":
        raise SetupError(f"the webhook is {found.status}: `longhouse webhooks resume {webhook_id}` has it go on.")


def _described(one: ShownWebhook) -> str:
    parts = (
        f"{one.id}  {one.status}, {plain(one.url)}, {', '.join(one.events)}",
        f"of {one.agent}" if one.agent else "",
        plain(one.description),
        f"its former secret signs until {one.former_until:%Y-%m-%d %H:%M}" if one.former_until else "",
        plain(one.reason or ""),
    )
    return ", ".join(filter(None, parts))


def _sent(one: ShownDelivery) -> str:
    sent = f"{one.id}  {one.created_at:%Y-%m-%d %H:%M:%S}  {one.type}, {one.status}, {one.attempts} attempts"
    return ", ".join(filter(None, (sent, one.session_id, plain(one.last_error or ""))))


cli = group(
    {
        "create": create_webhook,
        "list": list_webhooks,
        "log": show_log,
        "test": send_test,
        "retry": retry_delivery,
        "rotate": rotate_secret,
        "resume": resume_webhook,
        "delete": delete_webhook,
    }
)
