"""Chat model behind an OpenAI-compatible endpoint. Every failure becomes a ProviderError of one sentence."""

import email.utils
import hashlib
import json
import re
from collections.abc import AsyncGenerator, Mapping
from contextlib import suppress
from functools import lru_cache
from typing import Any, Final

import msgspec

from longhouse import clock
from longhouse.agents.strategies.protocol import Body, streamed
from longhouse.errors import ProviderError
from longhouse.models.http.client import Endpoint, StatusFailure
from longhouse.models.http.failure import HttpFailure, is_retryable
from longhouse.models.protocol import Delta, Model, paid_for
from longhouse.models.sse import StreamReader, StreamRefused, UnreadableEvent

MOST_BYTES: Final = 32 * 2**20
"""Upper bound of one response body: a real answer is shorter, and an endless one is cut off here."""
LONGEST_WAIT: Final = 120.0
"""Upper bound of Retry-After, in seconds: a provider that asks for more is retried after this time."""


class OpenAIModel:
    """A model behind an OpenAI-compatible endpoint; the request body names the model."""

    def __init__(self, endpoint: Endpoint, *, most_bytes: int = MOST_BYTES) -> None:
        headers = {"Accept": "text/event-stream, application/json"}
        self._endpoint = endpoint.at("chat", "completions", headers=headers)
        self.address = str(self._endpoint.url)
        self._most_bytes = most_bytes

    async def stream(self, body: Body) -> AsyncGenerator[Delta, None]:
        """Sends one request. Closing the generator closes the connection at once, so the provider stops generating."""
        endpoint, reading = self._endpoint, StreamReader()
        try:
            async with endpoint.post(*_encoded(body), most_bytes=self._most_bytes) as answer:
                if answer.kind not in ("text/event-stream", "application/json") and "content-type" in answer.headers:
                    # Retryable: this is mostly a proxy's error page while the model is down.
                    raise HttpFailure("sent something that is not an answer", endpoint.redaction.quoted(answer.kind))
                if answer.kind == "application/json" and (delta := reading.whole(await answer.body())):
                    yield delta
                while not reading.done and (read := await answer.read()):
                    if delta := reading.feed(read):
                        yield delta
                if not reading.finished and (delta := reading.end()):
                    yield delta
                await answer.drain()
        except HttpFailure as failure:
            # A connection that breaks after the end of the answer is no failure.
            if not (reading.finished and failure.kind):
                raise provider_error(endpoint, failure) from None
        except StreamRefused as refused:
            raise self._refused(refused.error) from refused
        except UnreadableEvent as error:
            words = endpoint.redaction.quoted(str(error))
            trouble = provider_error(endpoint, HttpFailure("sent an invalid answer", words))
            raise paid_for(trouble, error.usage) from error
        if not reading.finished:
            raise provider_error(endpoint, HttpFailure("broke off its answer"))

    def _refused(self, error: Any) -> ProviderError:
        given = error if isinstance(error, dict) else {}
        words, code = self._endpoint.redaction.quoted(_message(error)), str(given.get("code"))
        is_status = code.isdecimal() and len(code) == 3
        retryable = is_retryable(int(code)) if is_status else given.get("type") != "invalid_request_error"
        failure = HttpFailure("answered with an error", words or "no reason given", retryable=retryable)
        return provider_error(self._endpoint, failure)


def source_of(model: Model, name: str) -> str:
    """Who is asked, as a digest: the endpoint, and the family of the model of this name; empty for a model that wants
    nothing back."""
    return _digest(model.address, name) if isinstance(model, OpenAIModel) else ""


@lru_cache(maxsize=256)
def _digest(address: str, name: str) -> str:
    bare = name.lower().rpartition("/")[2]
    family = re.split("[^a-z]", bare, maxsplit=1)[0] or bare
    return hashlib.sha256(f"{address} {family}".encode()).hexdigest()[:32]


def _encoded(body: Body) -> list[bytes]:
    try:
        return streamed(body)
    except UnicodeEncodeError as error:
        raise ProviderError("the request contains text that JSON cannot encode", retryable=False) from error


def provider_error(endpoint: Endpoint, failure: HttpFailure) -> ProviderError:
    """The failure as a ProviderError; the endpoint's name and its own words are for the operator only."""
    why, retryable, retry_after = failure.why, failure.retryable, None
    if isinstance(failure, StatusFailure) and why:
        why = endpoint.redaction.quoted(_error_text(failure.error_body) or failure.reason or "no reason given")
        retryable = {"true": True, "false": False}.get(failure.headers.get("x-should-retry", ""), retryable)
        retry_after = _retry_after(failure.headers) if retryable else None
    hint = ""
    if isinstance(failure, StatusFailure) and failure.status == 404:
        why = why.rstrip(".")
        hint = "; is the model's name right, and does the base URL end as the provider says, mostly with /v1?"
    message = f"{endpoint.name} {failure.what}" + (f": {why}" if why else "") + hint
    public = f"the model {failure.what}{hint}"
    return ProviderError(message, retryable=retryable, retry_after=retry_after, public_message=public)


def _error_text(error_body: bytes) -> str:
    """The message of an error body, from any of the usual envelopes."""
    try:
        found = msgspec.json.decode(error_body, type=dict[str, Any] | list[dict[str, Any]])
    except (ValueError, RecursionError):
        text = error_body.decode(errors="replace").strip()
        return "" if text.startswith("<") else text
    envelope = found if isinstance(found, dict) else found[0] if found else {}
    return _message(envelope.get("error") or envelope.get("message") or envelope.get("detail"))


def _message(error: Any) -> str:
    message = error.get("message") if isinstance(error, dict) else error
    if isinstance(message, str) and message:
        return message
    return json.dumps(error) if error else ""


def _retry_after(headers: Mapping[str, str]) -> float | None:
    for name, unit in (("retry-after-ms", 0.001), ("retry-after", 1.0)):
        seconds = _seconds(headers.get(name, ""))
        if seconds is not None and seconds >= 0:
            return min(seconds * unit, LONGEST_WAIT)
    return None


def _seconds(text: str) -> float | None:
    with suppress(ValueError):
        return float(text)
    with suppress(ValueError, OverflowError):
        moment = email.utils.parsedate_to_datetime(text)
        return max(0.0, moment.timestamp() - clock.now().timestamp())
    return None
