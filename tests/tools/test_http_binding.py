"""Remote tools at real endpoints, which are slow, huge, endless, lying, gone, or lead somewhere else."""

import asyncio
import gzip
import json
import re
import socket
import zlib
from typing import Any

import pytest
from aiohttp import web
from fake_endpoint import Answer, endpoint, saying
from structlog.testing import capture_logs
from yarl import URL

from longhouse.agents.tool import Tool
from longhouse.egress import Egress, Lookup, look_up
from longhouse.journal import events
from longhouse.journal.events import Effect, Fault, Output
from longhouse.models.http.client import Endpoint
from longhouse.models.http.failure import HttpFailure
from longhouse.models.http.pool import HttpPool
from longhouse.redaction import redaction_of
from longhouse.tools.bindings.http import RemoteBinding, open_remote
from longhouse.tools.context import ToolContext
from longhouse.tools.toolbox import Toolbox
from server_helpers import folded, opened, prompted, started, turn_of, used

SECRET = 'canary/"hush"+tool-secret'
CONTEXT = ToolContext("s", "c", "local", None, "agent", "1-action-0", "s:1-action-0")
SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer"}}}


def packed(text: bytes) -> bytes:
    """The same bytes in every process: tests are told apart by them."""
    return gzip.compress(text, mtime=0)


async def call(
    url: str,
    arguments: str = '{"city": "Oslo"}',
    *,
    allow: tuple[str, ...] = ("127.0.0.1",),
    lookup: Lookup = look_up,
    timeout: float = 20.0,
    effect: Effect = "read",
    **options: Any,
) -> str | Fault:
    """What a call of the tool at this address comes to, through a toolbox, as an agent would make it."""
    tool = Tool(name="weather", description="", schema=SCHEMA, effect=effect, timeout=timeout)
    session = folded(
        opened(), prompted("x"), started(2), events.Replied(), used("1-action-0", tool="weather", arguments=arguments)
    )
    [due] = session.due_calls
    async with open_remote(Egress(allow), lookup=lookup) as http, asyncio.timeout(30):
        toolbox = Toolbox([])
        toolbox.add(RemoteBinding(tool, url, http, **options))
        outcome = (await toolbox.perform(due, session, turn_of(session))).outcome
    return outcome.content if isinstance(outcome, Output) else outcome


async def answer_to(answer: Answer, **options: Any) -> str | Fault:
    async with endpoint(answer) as served:
        return await call(served.url, **options)


async def failure(answer: Answer, **options: Any) -> str:
    fault = await answer_to(answer, **options)
    assert isinstance(fault, Fault)
    assert fault.code == "tool_failed"
    return fault.message


@pytest.mark.parametrize(
    ("said", "read"),
    [
        ('"It rains.\\n\\u00e9"', "It rains.\né"),
        ('{"b": 1,  "a": [1.5, null, "é"]}', '{"b":1,"a":[1.5,null,"é"]}'),
        ("[ ]", "[]"),
        (" 7 ", "7"),
        ("123456789012345678901234567890", "123456789012345678901234567890"),
        ("null", "null"),
    ],
)
async def test_a_text_answers_as_it_is_and_all_else_as_compact_json(said: str, read: str) -> None:
    assert await answer_to(saying(said)) == read
    assert await answer_to(saying(said, kind="application/vnd.weather+json; charset=utf-8")) == read


async def test_the_arguments_go_out_as_json_under_the_key_of_the_call() -> None:
    async with endpoint() as served:
        assert await call(f"{served.url}?unit=c", '{"city": "Bergen", "city": "Oslo", "days": 2}') == "done"
        [asked] = served.asked
    assert asked.path == "/do?unit=c"
    # Checked and sent is one and the same, however the model wrote it.
    assert asked.body == '{"city":"Oslo","days":2}'
    assert asked.headers["Idempotency-Key"].endswith(":1-action-0")
    assert (asked.headers["Content-Type"], asked.headers["Accept"]) == ("application/json", "application/json")
    assert asked.headers["Host"] == f"127.0.0.1:{served.port}"
    assert asked.headers["Connection"] == "close"
    assert "Authorization" not in asked.headers
    assert "Cookie" not in asked.headers


@pytest.mark.parametrize("arguments", ['{"days": "two"}', '{"city": 7, "days": 1.5}', "[]", "{", ""])
async def test_arguments_that_do_not_fit_are_never_sent(arguments: str) -> None:
    async with endpoint() as served:
        outcome = await call(served.url, arguments)
        if not arguments:  # nothing is asked of this tool, so nothing is an answer
            assert outcome == "done"
            return
        assert served.asked == []
    assert isinstance(outcome, Fault)
    assert outcome.code == "bad_arguments"
    assert "the arguments of weather do not fit: " in outcome.message


async def test_a_secret_goes_along_as_a_bearer_token() -> None:
    async with endpoint() as served:
        assert (
            await call(
                served.url, api_key_ref="weather_key", secret_for=lambda ref, url: {"weather_key": SECRET}.get(ref)
            )
            == "done"
        )
        assert served.asked[0].headers["Authorization"] == f"Bearer {SECRET}"


@pytest.mark.parametrize("secret", [None, "", f"{SECRET}\r\nX-Evil: 1", f"{SECRET}é"])
async def test_a_secret_that_cannot_be_sent_is_told_by_its_reference_only(secret: str | None) -> None:
    async with endpoint() as served:
        outcome = await call(served.url, api_key_ref="weather_key", secret_for=lambda ref, url: secret)
        assert served.asked == []
    assert isinstance(outcome, Fault)
    assert "'weather_key'" in outcome.message
    assert "canary" not in outcome.message


def echoing(status: int, kind: str, escape_slash: bool = False) -> Answer:
    """An endpoint that shows everybody what it was sent, in a long story."""

    async def answer(request: web.BaseRequest) -> web.StreamResponse:
        told = json.dumps({"filler": "x" * 240, "headers": dict(request.headers)})
        text = told.replace("/", "\\/") if escape_slash else told
        return web.Response(text=text, status=status, headers={"Content-Type": kind})

    return answer


@pytest.mark.parametrize("status", [200, 401, 500])
@pytest.mark.parametrize("escape_slash", [False, True])
@pytest.mark.parametrize("kind", ["application/json", "text/plain"])
async def test_a_secret_that_comes_back_is_shown_to_nobody(status: int, kind: str, escape_slash: bool) -> None:
    with capture_logs() as logs:
        outcome = await answer_to(
            echoing(status, kind, escape_slash), api_key_ref="k", secret_for=lambda ref, url: SECRET, timeout=10.0
        )
    shown = f"{outcome!r} {logs!r}"
    assert "canary" not in shown
    assert "hush" not in shown


async def test_a_binding_does_not_show_its_secret() -> None:
    async with open_remote(Egress()) as http:
        tool = Tool(name="weather", description="", schema=SCHEMA)
        binding = RemoteBinding(tool, "https://example.com", http, api_key_ref="k", secret_for=lambda ref, url: SECRET)
        assert SECRET not in f"{binding!r} {vars(binding)!r}"


async def test_a_slow_endpoint_ends_with_the_time_of_the_tool() -> None:
    async def slow(request: web.BaseRequest) -> web.StreamResponse:
        await asyncio.sleep(60)
        return web.Response()

    assert await answer_to(slow, timeout=0.3) == Fault(
        code="timeout", message="weather did not answer within 0.3 seconds"
    )


async def test_an_answer_that_comes_in_drops_ends_with_the_time_of_the_tool() -> None:
    async with endpoint() as served:
        served.answer = lambda request: served.endless(request, b" ", every=0.02)
        outcome = await call(served.url, timeout=0.3)
    assert isinstance(outcome, Fault)
    assert outcome.code == "timeout"


async def test_an_answer_without_end_is_cut_off() -> None:
    async with endpoint() as served:
        served.answer = lambda request: served.endless(request, b'"' + b"x" * 65_535)
        outcome = await call(served.url, most_bytes=200_000)
        assert served.sent < 20_000_000
    assert isinstance(outcome, Fault)
    assert outcome.message == "RemoteError: weather sent more than 200000 bytes"


@pytest.mark.parametrize(("size", "is_cut"), [(1000, False), (1001, True)])
@pytest.mark.parametrize("is_packed", [False, True])
async def test_the_limit_is_of_the_unpacked_answer(size: int, is_cut: bool, is_packed: bool) -> None:
    body = b'"' + b"x" * (size - 2) + b'"'
    answer = saying(packed(body), headers={"Content-Encoding": "gzip"}) if is_packed else saying(body)
    outcome = await answer_to(answer, most_bytes=1000)
    assert isinstance(outcome, Fault) is is_cut
    assert is_cut or outcome == "x" * 998


async def test_a_gzip_bomb_is_not_unpacked() -> None:
    packer = zlib.compressobj(9, wbits=31)
    bomb = b"".join(packer.compress(b" " * 2**20) for _ in range(50)) + packer.flush()
    assert len(bomb) < 300_000
    assert await failure(saying(bomb, headers={"Content-Encoding": "gzip"})) == (
        "RemoteError: weather sent more than 4194304 bytes"
    )


@pytest.mark.parametrize(
    ("body", "packing", "told"),
    [
        (b"not packed at all", "gzip", "sent an answer that cannot be unpacked"),
        (packed(b'"done"')[:-12], "gzip", "not valid JSON"),
        (b"\x0b\x02\x80x\x03", "br", "packed in a way that was not asked for"),
        (packed(packed(b'"done"')), "gzip, gzip", "packed in a way that was not asked for"),
    ],
)
async def test_an_answer_that_cannot_be_unpacked_is_told(body: bytes, packing: str, told: str) -> None:
    assert told in await failure(saying(body, headers={"Content-Encoding": packing}))


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
async def test_no_redirect_is_followed(status: int) -> None:
    async with endpoint() as elsewhere, endpoint() as served:
        for target in (elsewhere.url, "http://169.254.169.254/latest/meta-data/", "file:///etc/passwd"):
            served.answer = saying("", status, headers={"Location": target})
            outcome = await call(served.url)
            assert outcome == Fault(
                code="tool_failed", message=f"RemoteError: weather answered {status}, a redirect, which is not followed"
            )
        assert elsewhere.asked == []


@pytest.mark.parametrize("kind", ["text/html", "text/plain", "application/octet-stream", "application/jsonx", ""])
async def test_an_answer_that_is_not_called_json_is_not_read(kind: str) -> None:
    assert "which is not JSON" in await failure(saying("<html>hello</html>", kind=kind))


@pytest.mark.parametrize(
    "body", ["", "<html>hello</html>", "{", "{'a': 1}", '{"a": NaN}', b'"\xff"', '"\\ud800"', "[" * 100_000, "1 2"]
)
async def test_an_answer_that_only_says_that_it_is_json_is_told(body: str | bytes) -> None:
    assert await failure(saying(body)) == "RemoteError: weather sent an answer that is not valid JSON"


async def test_an_answer_without_content_says_nothing() -> None:
    assert await answer_to(saying("", 204)) == ""


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        (saying('{"error": "no such\\ncity"}', 404), '404: {"error": "no such\\ncity"}'),
        (saying("out\nof\torder\x1b[31m", 500, "text/plain"), "500: out of order [31m"),
        (saying("<html>long page</html>", 502, "text/html"), "502: no reason given"),
        (saying("", 503), "503: no reason given"),
        (saying("x" * 100_000, 500), f"500: {'x' * 300}…"),
        (saying(packed(b"packed words"), 400, headers={"Content-Encoding": "gzip"}), "400: packed words"),
    ],
)
async def test_an_endpoint_that_fails_is_quoted_in_one_bounded_line(answer: Answer, told: str) -> None:
    assert await failure(answer) == f"RemoteError: weather answered {told}"


async def test_an_error_without_end_is_quoted_and_left() -> None:
    async with endpoint() as served:

        async def wailing(request: web.BaseRequest) -> Any:
            response = web.StreamResponse(status=500)
            await response.prepare(request)
            while True:
                await response.write(b"woe " * 1000)

        served.answer = wailing
        outcome = await call(served.url)
    assert isinstance(outcome, Fault)
    assert outcome.message.startswith("RemoteError: weather answered 500: woe woe")


async def hang_up(request: web.BaseRequest) -> web.StreamResponse:
    assert request.transport
    request.transport.abort()
    return web.Response()


async def break_off(request: web.BaseRequest) -> web.StreamResponse:
    """Promises more than comes."""
    response = web.StreamResponse(headers={"Content-Type": "application/json", "Content-Length": "100"})
    await response.prepare(request)
    await response.write(b'"pai')
    assert request.transport
    request.transport.close()
    return response


async def dawdle(request: web.BaseRequest) -> web.StreamResponse:
    await asyncio.sleep(60)
    return web.Response()


async def test_an_endpoint_that_hangs_up_is_asked_only_once() -> None:
    async with endpoint(hang_up) as served:
        outcome = await call(served.url)
        assert len(served.asked) == 1
    assert isinstance(outcome, Fault)
    assert outcome.code == "tool_failed"
    assert outcome.message.startswith("RemoteError: weather was asked, and its answer was lost (")


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (hang_up, "weather was asked, and its answer was lost ("),
        (break_off, "weather was asked, and its answer was lost ("),
        (dawdle, "weather did not answer within 1 seconds"),
        (saying("{"), "weather sent an answer that is not valid JSON"),
        (saying("paid", kind="text/plain"), "weather answered with text/plain, which is not JSON"),
        (saying(b"paid", headers={"Content-Encoding": "gzip"}), "weather sent an answer that cannot be unpacked"),
        (saying("upstream is gone", 502, "text/plain"), "weather answered 502: upstream is gone"),
        (saying("upstream is slow", 504, "text/plain"), "weather answered 504: upstream is slow"),
        *(
            (saying("timed out", one, "text/plain"), f"weather answered {one}: timed out")
            for one in (408, 499, 520, 524, 600, 999)
        ),
        *(
            (saying("", one, headers={"Location": "/done"}), f"weather answered {one}, a redirect")
            for one in (302, 303)
        ),
    ],
)
async def test_an_effect_whose_answer_is_lost_is_not_known(answer: Answer, why: str) -> None:
    async with endpoint(answer) as served:
        outcome = await call(served.url, effect="once", timeout=1.0)
        assert len(served.asked) == 1
    assert isinstance(outcome, Fault)
    assert outcome.code == "unknown_outcome"
    assert outcome.message.startswith(f"it is not known whether weather took effect: {why}")
    assert outcome.message.endswith("; do not repeat it without checking")
    assert "could not be reached" not in outcome.message


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        (saying("no such account", 404, "text/plain"), "weather answered 404: no such account"),
        (saying("out of order", 500, "text/plain"), "weather answered 500: out of order"),
        *[
            (
                saying("", status, headers={"Location": "/elsewhere"}),
                f"weather answered {status}, a redirect, which is not followed",
            )
            for status in (301, 307, 308)
        ],
        (saying(b"no", 400, headers={"Content-Encoding": "br"}), "weather answered 400: no reason given"),
    ],
)
async def test_an_effect_that_the_endpoint_refuses_is_known_not_to_be(answer: Answer, told: str) -> None:
    fault = await answer_to(answer, effect="once")
    assert fault == Fault(code="tool_failed", message=f"RemoteError: {told}")


async def test_an_effect_of_which_nothing_was_sent_is_known_not_to_be() -> None:
    async def nobody(host: str, port: int) -> list[str]:
        raise socket.gaierror("unknown")

    async def slow(host: str, port: int) -> list[str]:
        await asyncio.sleep(60)
        return []

    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        port = closed.getsockname()[1]
    async with endpoint() as served:
        refused = [
            await call(f"http://127.0.0.1:{port}/", effect="once"),
            await call("http://tool.test/", lookup=nobody, effect="once"),
            await call(served.url, allow=(), effect="once"),
            # What answers there does not speak TLS, and hears nothing of the call.
            await call(served.url.replace("http:", "https:"), effect="once"),
        ]
        assert served.asked == []
    for outcome in refused:
        assert isinstance(outcome, Fault)
        assert outcome.code == "tool_failed"
        assert outcome.message.startswith("RemoteError: weather could not be reached: ")
    assert await call("http://tool.test/", lookup=slow, effect="once", timeout=0.3) == Fault(
        code="timeout",
        message="weather was not begun within 0.3 seconds: weather could not be reached; nothing happened",
    )
    # Who ends the run, and with it the call, is not told of the call's outcome instead.
    broken_off = asyncio.create_task(call("http://tool.test/", lookup=slow, effect="once"))
    await asyncio.sleep(0.05)
    broken_off.cancel()
    with pytest.raises(asyncio.CancelledError):
        await broken_off


async def test_an_endpoint_that_is_gone_is_told() -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        port = closed.getsockname()[1]
    outcome = await call(f"http://127.0.0.1:{port}/")
    assert outcome == Fault(
        code="tool_failed", message="RemoteError: weather could not be reached: ConnectionRefusedError"
    )


async def test_a_name_that_nobody_knows_is_told() -> None:
    async def lookup(host: str, port: int) -> list[str]:
        raise socket.gaierror("unknown")

    outcome = await call("http://tool.test/", lookup=lookup)
    assert isinstance(outcome, Fault)
    assert outcome.message == "RemoteError: weather could not be reached: gaierror"


@pytest.mark.parametrize("host", ["127.0.0.1", "[::1]", "[::ffff:127.0.0.1]", "localhost.", "localhost"])
async def test_what_is_not_allowed_is_not_reached_even_if_it_was_published(host: str) -> None:
    async with endpoint() as served:
        outcome = await call(f"http://{host}:{served.port}/", allow=())
        assert served.asked == []
    assert isinstance(outcome, Fault)
    assert "is not a public address, and reaching it is not allowed here" in outcome.message


class Names:
    """A name server that changes its mind."""

    def __init__(self, *answers: list[str]) -> None:
        self.answers = list(answers)
        self.asked: list[tuple[str, int]] = []

    async def __call__(self, host: str, port: int) -> list[str]:
        self.asked.append((host, port))
        return self.answers.pop(0)


async def test_the_address_that_was_checked_is_the_one_that_is_called() -> None:
    async with endpoint() as served:
        names = Names(["127.0.0.1"], ["10.0.0.1"])
        assert await call(f"http://Tool.Test:{served.port}/", lookup=names) == "done"
        assert names.asked == [("tool.test", served.port)]
        assert served.asked[0].headers["Host"] == f"tool.test:{served.port}"


@pytest.mark.parametrize("later", [["169.254.169.254"], ["127.0.0.1", "10.0.0.1"], ["::ffff:127.0.0.1"]])
async def test_a_name_that_changes_between_calls_is_checked_again(later: list[str]) -> None:
    async with endpoint() as served:
        names = Names(["127.0.0.1"], later)
        url = f"http://tool.test:{served.port}/"
        assert Egress().problem(url) is None
        async with open_remote(Egress(["127.0.0.1"]), lookup=names) as http:
            assert await _posted(http, url) == 200
            with pytest.raises(HttpFailure) as refused:
                await _posted(http, url)
            assert re.search(r"is not a public address|is a link-local", refused.value.why)
        assert len(served.asked) == 1


async def _posted(http: HttpPool, url: str) -> int:
    there = Endpoint(pool=http, url=URL(url), headers={}, redaction=redaction_of([]))
    async with there.post(b"{}", most_bytes=1000) as response:
        await response.body()
        return response.status


async def test_a_proxy_of_the_environment_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    async with endpoint() as proxy, endpoint() as served:
        for name in ("http_proxy", "HTTP_PROXY", "all_proxy"):
            monkeypatch.setenv(name, f"http://127.0.0.1:{proxy.port}")
        assert await call(served.url) == "done"
        assert proxy.asked == []


async def test_cookies_are_not_kept() -> None:
    async with endpoint(saying('"done"', headers={"Set-Cookie": "id=1; Path=/"})) as served:
        async with open_remote(Egress(["127.0.0.1"])) as http:
            await _posted(http, served.url)
            await _posted(http, served.url)
        assert all("Cookie" not in one.headers for one in served.asked)
