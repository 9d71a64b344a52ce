"""What providers complain of, and who may try again."""

import email.utils
from datetime import timedelta
from typing import Any

import pytest
from scripted_peers import (
    KEY,
    STOP,
    Peer,
    answer,
    chunk,
    error_for,
    event,
    heard,
    peer_that,
    sends,
)

from longhouse import clock
from longhouse.errors import ProviderError
from longhouse.journal.events import Usage
from longhouse.models.protocol import paid_for


@pytest.mark.parametrize("status", [408, 409, 425, 429, 500, 502, 503, 529])
async def test_passing_troubles_can_be_retried(status: int) -> None:
    body = b'{"error":{"message":"Slow down, please.","type":"t","param":null,"code":null}}'
    error = await error_for(sends(answer(body, kind="application/json", status=f"{status} No")))
    assert error.retryable
    assert error.retry_after is None
    assert f"answered {status}: Slow down, please." in str(error)


@pytest.mark.parametrize("status", [400, 401, 403, 404, 413, 422])
async def test_our_own_mistakes_cannot_be_retried(status: int) -> None:
    headers = ["Retry-After: 3"]
    error = await error_for(
        sends(answer(b'{"error":"No."}', kind="application/json", status=f"{status} No", headers=headers))
    )
    assert not error.retryable
    assert error.retry_after is None
    assert f"answered {status}: No{'; is the model' if status == 404 else '.'}" in str(error)


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        (["Retry-After: 7"], 7.0),
        (["Retry-After: 0.5"], 0.5),
        (["Retry-After: 99999"], 120.0),
        (["Retry-After: inf"], 120.0),
        (["retry-after-ms: 1500", "Retry-After: 9"], 1.5),
        (["retry-after-ms: nonsense", "Retry-After: 9"], 9.0),
        (["Retry-After: -5"], None),
        (["Retry-After: nan"], None),
        (["Retry-After: soon"], None),
        (["Retry-After: Mon, 01 Jan 0001 00:00:00 -0000"], 0.0),
        (["Retry-After: Mon, 01 Jan 2001 00:00:00 GMT"], 0.0),
    ],
)
async def test_a_providers_pause_is_honoured_within_bounds(headers: list[str], seconds: float | None) -> None:
    error = await error_for(sends(answer(b"{}", kind="application/json", status="429 No", headers=headers)))
    assert error.retry_after == seconds


async def test_a_pause_may_be_given_as_a_date() -> None:
    date = email.utils.format_datetime(clock.now() + timedelta(seconds=30), usegmt=True)
    error = await error_for(sends(answer(b"", status="503 No", headers=[f"Retry-After: {date}"])))
    assert error.retry_after == pytest.approx(29.5, abs=1)


async def test_a_provider_may_forbid_the_retry() -> None:
    error = await error_for(sends(answer(b"", status="500 No", headers=["x-should-retry: false"])))
    assert not error.retryable


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b'{"error":{"message":"one\\n two","code":7}}', "one two"),
        (b'[{"error":{"message":"in a list"}}]', "in a list"),
        (b'{"object":"error","message":"flat"}', "flat"),
        (b'{"detail":[{"loc":["body"]}]}', '[{"loc": ["body"]}]'),
        (b"plain words", "plain words"),
        (b"<html>Bad gateway</html>", "Bad Gateway"),
        (b"", "Bad Gateway"),
        (b"[]", "Bad Gateway"),
        (b'{"error":{"message":"' + KEY.encode() + b' is wrong"}}', "[secret] is wrong"),
        (b"x" * 290 + b" " + KEY.encode() + b"y" * 100_000, "x" * 290 + " [secret]y…"),
    ],
)
async def test_the_providers_own_words_in_one_bounded_line(body: bytes, words: str) -> None:
    error = await error_for(sends(answer(body, kind="application/json", status="502 Bad Gateway")))
    host = str(error).split(" ")[0]
    assert str(error) == f"{host} answered 502: {words}"


async def test_no_secret_of_the_address_is_told() -> None:
    async with peer_that(sends(answer(b'{"error":"bad hunter2"}', kind="application/json", status="401 No"))) as peer:
        with pytest.raises(ProviderError) as caught:
            await heard(Peer(url=peer.url.replace("//", "//ann:hunter2@")))
    assert "ann" not in str(caught.value)
    assert "hunter2" not in str(caught.value)


async def test_what_users_are_told_names_no_host_and_quotes_nobody() -> None:
    async with peer_that(
        sends(answer(b'{"error":"10.1.2.3:80 is down"}', kind="application/json", status="502 No"))
    ) as peer:
        with pytest.raises(ProviderError) as caught:
            await heard(peer)
    for error in (caught.value, paid_for(caught.value, Usage(total_tokens=3))):
        assert error.public_message == "the model answered 502"
        assert "10.1.2.3:80 is down" in str(error)


async def test_a_redirect_is_not_followed() -> None:
    async with peer_that(sends(answer(b"", status="307 Go", headers=["Location: /v1/elsewhere"]))) as peer:
        with pytest.raises(ProviderError, match="redirect") as caught:
            await heard(peer)
    assert not caught.value.retryable
    assert len(peer.heads) == 1


async def test_a_page_in_place_of_an_answer() -> None:
    error = await error_for(sends(answer(b"<html>hello</html>", kind="text/html; charset=utf-8")))
    assert error.retryable
    assert "sent something that is not an answer: text/html" in str(error)


@pytest.mark.parametrize(
    "body", [b"data: <html>\n\n", b'data: {"choices": 7}\n\n', b"data: " + b"[" * 100_000 + b"\n\n"]
)
async def test_events_that_are_no_chunks(body: bytes) -> None:
    error = await error_for(sends(answer(body + STOP)))
    assert error.retryable
    assert "invalid answer" in str(error)


@pytest.mark.parametrize("body", [b"", b"{}", b'{"choices":[]}', b"[1]", b"<html>"])
async def test_plain_json_that_is_no_answer(body: bytes) -> None:
    assert (await error_for(sends(answer(body, kind="application/json")))).retryable


@pytest.mark.parametrize(
    ("error", "retryable"),
    [
        ({"message": "overloaded", "type": "server_error", "code": None}, True),
        ({"message": "overloaded", "code": 502}, True),
        ({"message": "overloaded", "code": "429"}, True),
        ({"message": "overloaded", "code": 400}, False),
        ({"message": "overloaded", "type": "invalid_request_error", "code": "context_length_exceeded"}, False),
        ("overloaded", True),
        ({"reason": {"text": "overloaded"}}, True),
    ],
)
async def test_an_error_in_the_middle_of_a_stream(error: Any, retryable: bool) -> None:
    raised = await error_for(sends(answer(chunk(content="Well, ")), event({"error": error})))
    assert raised.retryable is retryable
    assert "overloaded" in str(raised)


async def test_an_error_with_status_200_in_plain_json() -> None:
    error = await error_for(sends(answer(b'{"error":{"message":"no such model","code":404}}', kind="application/json")))
    assert not error.retryable
    assert "no such model" in str(error)
