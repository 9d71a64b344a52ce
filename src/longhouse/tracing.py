"""Trace context: the spans of a turn have ids that every process derives from the journal, so that they fit together.

No span is held open, and none is handed from process to process: a worker that calls a model or a tool names the span
that will be sent when the turn has ended, by whichever process ends it.
"""

import hashlib
import re
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from typing import Final

import msgspec

HEADER: Final = "traceparent"
_CONTEXT: Final = re.compile(r"(?!ff)([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?", re.ASCII)
_TRACE: Final = re.compile(r"(?!0{32})[0-9a-f]{32}", re.ASCII)
_NO_SPAN: Final = "0" * 16
_sent: ContextVar[str] = ContextVar(HEADER, default="")

UNTRACED: Final = nullcontext()
"""A block whose requests carry no trace context."""


def accepted(header: str | None) -> str:
    """The trace context of a request (W3C) in the form of version 00; empty if there is none, or one that is wrong."""
    found = _CONTEXT.fullmatch((header or "").strip()[:256])
    if not found or not _TRACE.fullmatch(found[2]) or found[3] == _NO_SPAN or (found[1] == "00" and found[5]):
        return ""
    return f"00-{found[2]}-{found[3]}-{int(found[4], 16) & 1:02x}"


def turn_span(session: str, prompt: int) -> str:
    return _span("turn", session, prompt)


def step_span(session: str, prompt: int, nth: int) -> str:
    """The span of the step after `nth` replies of the turn."""
    return _span("step", session, prompt, nth)


def chat_span(session: str, prompt: int, nth: int) -> str:
    """The span of its model call; calls that failed and were tried again are one with the last."""
    return _span("chat", session, prompt, nth)


def summary_span(session: str, seq: int) -> str:
    return _span("summary", session, seq)


def title_span(session: str, prompt: int) -> str:
    """The span of the model call for a title, after the turn."""
    return _span("title", session, prompt)


def call_span(session: str, call: str) -> str:
    return _span("call", session, call)


def _span(*parts: object) -> str:
    return hashlib.blake2b("\0".join(map(str, parts)).encode(errors="replace"), digest_size=8).hexdigest()


class TraceContext(msgspec.Struct, frozen=True):
    """The trace of a turn, as a client's request or the turn itself names it."""

    trace_id: str
    parent: str
    """The client's span; empty if the client named none."""
    sampled: bool

    def header(self, span: str) -> str:
        """What a request that belongs to this span carries."""
        return f"00-{self.trace_id}-{span}-{int(self.sampled):02x}"


class Tracing(msgspec.Struct, frozen=True):
    """Which turns are traced."""

    share: float = 1.0
    """The share of turns whose client does not say whether they are; sub-agents follow the turn that they work for."""

    def context(self, traceparent: str, trace: str) -> TraceContext:
        """`traceparent`: the context of the client's request, if it had one; `trace`: the turn's own."""
        if traceparent:
            _, trace_id, parent, flags = traceparent.split("-")
            return TraceContext(trace_id, parent, flags == "01")
        # The trace of early releases may be any word.
        trace_id = trace if _TRACE.fullmatch(trace) else hashlib.blake2b(trace.encode(), digest_size=16).hexdigest()
        return TraceContext(trace_id, "", int(trace_id[16:], 16) < self.share * 2**64)

    def sending(self, traceparent: str, trace: str, span: str) -> AbstractContextManager[None]:
        """Requests that are sent in this block belong to this span of the turn."""
        return sending(self.context(traceparent, trace).header(span))


@contextmanager
def sending(header: str) -> Iterator[None]:
    """Requests that are sent in this block carry this trace context."""
    before = _sent.set(header)
    try:
        yield
    finally:
        _sent.reset(before)


def sent() -> dict[str, str]:
    """The trace context as a field of a request that is sent now; empty if it carries none."""
    header = _sent.get()
    return {HEADER: header} if header else {}
