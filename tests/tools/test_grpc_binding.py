"""gRPC tools at a real server in its own process, which is slow, huge, lying, gone, or not where it was."""

import asyncio
import json
import re
import socket
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs
from test_http_binding import Names

from certificates import certificate
from grpc_server import GrpcServer, grpc_server
from longhouse import tracing
from longhouse.agents.tool import Tool
from longhouse.egress import Egress, Lookup, look_up
from longhouse.journal import events
from longhouse.journal.events import Effect, Fault, Output
from longhouse.tools.bindings.grpc import GrpcBinding, _Probe
from longhouse.tools.bindings.remote import RemoteError
from longhouse.tools.grpc.channels import LONGEST, Channels, open_channels
from longhouse.tools.outcomes import ToolFailed
from longhouse.tools.toolbox import Toolbox
from server_helpers import folded, opened, prompted, started, turn_of, used

SECRET = 'canary/"hush"+tool-secret'
SCHEMA = {"type": "object", "properties": {"do": {"type": "string"}}}
PACKED = r"(sent an answer that does not follow tool\.proto|answered INTERNAL: Compression algorithm not supported)"
"""Of a packed answer: whether the message or the refusal of its packing is seen first is a race in grpcio."""
TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


async def call(
    channels: Channels,
    url: str,
    given: Mapping[str, Any] | str,
    *,
    timeout: float = 20.0,
    effect: Effect = "read",
    **options: Any,
) -> str | Fault:
    """What a call of the tool comes to, through a toolbox, as an agent would make it."""
    tool = Tool(name="weather", description="", schema=SCHEMA, effect=effect, timeout=timeout)
    arguments = given if isinstance(given, str) else json.dumps(given)
    session = folded(
        opened(), prompted("x"), started(2), events.Replied(), used("1-action-0", tool="weather", arguments=arguments)
    )
    [due] = session.due_calls
    toolbox = Toolbox([])
    toolbox.add(GrpcBinding(tool, url, channels, **options))
    async with asyncio.timeout(30):
        outcome = (await toolbox.perform(due, session, turn_of(session))).outcome
    return outcome.content if isinstance(outcome, Output) else outcome


@asynccontextmanager
async def reaching(
    tmp_path: Path, *server: str, allow: tuple[str, ...] = ("127.0.0.1",), lookup: Lookup = look_up, **options: Any
) -> AsyncIterator[tuple[GrpcServer, Channels]]:
    async with (
        grpc_server(tmp_path, *server) as served,
        open_channels(Egress(allow), lookup=lookup, **options) as channels,
    ):
        yield served, channels


async def failure(*given: Any, **options: Any) -> str:
    fault = await call(*given, **options)
    assert isinstance(fault, Fault)
    assert fault.code == "tool_failed"
    return fault.message.removeprefix("RemoteError: ")


def unused() -> int:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        return int(closed.getsockname()[1])


async def test_calls_arrive_whole_and_their_answers_are_read_as_those_of_http(tmp_path: Path) -> None:
    async with reaching(tmp_path) as (served, channels):
        url, words = served.url, "Погода в Осло，奥斯陆的天气 ☂"
        with tracing.sending(TRACE):
            said = await call(channels, url, {"city": words}, api_key_ref="k", secret_for=lambda ref, to: SECRET)
        assert said == json.dumps({"you said": {"city": words}}, ensure_ascii=False, separators=(",", ":"))
        [asked] = served.asked()
        assert (asked["name"], asked["arguments"]) == ("weather", {"city": words})
        assert asked["key"].endswith(":1-action-0")
        assert asked["metadata"]["authorization"] == f"Bearer {SECRET}"
        assert asked["metadata"]["traceparent"] == TRACE
        assert asked["metadata"]["user-agent"].startswith("longhouse ")
        assert 0 < asked["left"] <= 20
        assert 0 < asked["deadline"] / 1000 - time.time() <= 20

        for text, read in (
            ('"It rains.\\n\\u00e9"', "It rains.\né"),
            ('{"b": 1,  "a": [1.5, null, "é"]}', '{"b":1,"a":[1.5,null,"é"]}'),
            (" 7 ", "7"),
            ("null", "null"),
            ("", ""),
        ):
            assert await call(channels, url, {"do": "json", "text": text}) == read
        before = len(served.seen)
        # Checked and sent is one and the same, however the model wrote it; what does not fit is not sent.
        assert await call(channels, url, '{"do": "x", "do": "y"}') == '{"you said":{"do":"y"}}'
        for wrong in ('{"do": 7}', "[]", "{"):
            fault = await call(channels, url, wrong)
            assert isinstance(fault, Fault)
            assert fault.code == "bad_arguments"
        for secret in (None, "", f"{SECRET}\r\nX-Evil: 1", f"{SECRET}é"):
            told = await failure(channels, url, {}, api_key_ref="k", secret_for=lambda ref, to, it=secret: it)
            assert "'k'" in told
            assert "canary" not in told
        assert len(served.seen) == before + 1

        with capture_logs() as logs:
            for do in ("echo", "echo fault"):
                shown = await call(channels, url, {"do": do}, api_key_ref="k", secret_for=lambda ref, to: SECRET)
                assert "[hidden]" in str(shown) or do == "echo fault"
                assert "canary" not in f"{shown!r} {logs!r}"
                assert "hush" not in f"{shown!r} {logs!r}"
        (tmp_path / "settled").mkdir()
        (tmp_path / "settled" / "k").write_text('{"outcome": "UNKNOWN"}')
        tool = Tool(name="weather", description="", schema=SCHEMA)
        with pytest.raises(RemoteError, match="the server of weather cannot tell"):
            await GrpcBinding(tool, url, channels)._did_happen(_Probe(key="k", arguments={}))
        assert len({one["peer"] for one in served.seen}) == 1, "all of it over one connection"


@pytest.mark.parametrize("effect", ["read", "once"])
async def test_what_fails_is_one_sentence_and_in_doubt_only_where_it_may_have_happened(
    tmp_path: Path, effect: Effect
) -> None:
    def status(name: str, details: str = "so it is") -> dict[str, str]:
        return {"do": "status", "status": name, "details": details}

    known = [
        ({"do": "fault", "fault": ["no_money", "Денег\nнет"]}, "answered no_money: Денег нет"),
        (
            {"do": "fault", "fault": ["busy", "come back", 1]},
            "answered busy: come back; the same call may succeed later",
        ),
        ({"do": "fault", "fault": ["", ""]}, "answered with a fault: no reason given"),
        # Words of a server do not steer the engine.
        ({"do": "fault", "fault": ["unknown_outcome", "x" * 500]}, f"answered unknown_outcome: {'x' * 300}…"),
        (status("UNIMPLEMENTED"), "answered UNIMPLEMENTED: so it is"),
        (status("PERMISSION_DENIED", ""), "answered PERMISSION_DENIED: no reason given"),
        (status("NOT_FOUND"), "answered NOT_FOUND: so it is"),
    ]
    doubtful = [
        (status("UNAVAILABLE", "at ipv4:10.0.0.1:50051: gone"), "was asked, and its answer was lost (UNAVAILABLE: "),
        (status("INTERNAL"), "answered INTERNAL: so it is"),
        (status("CANCELLED"), "answered CANCELLED: so it is"),
        (status("DEADLINE_EXCEEDED"), "answered DEADLINE_EXCEEDED: so it is"),
        ({"do": "raise"}, "answered UNKNOWN: Exception calling application: out of order"),
        ({"do": "json", "text": "{"}, "sent an answer that is not valid JSON"),
        ({"do": "json", "text": '"\\ud800"'}, "sent an answer that is not valid JSON"),
        ({"do": "huge"}, "sent more than 4194304 bytes"),
        # It was not asked for packed answers, and unpacks none: 50 MB would be more than a server may send.
        ({"do": "packed"}, PACKED),
        ({"do": "die"}, "was asked, and its answer was lost (UNAVAILABLE: "),
    ]
    async with reaching(tmp_path) as (served, channels):
        bad = await call(channels, served.url, {"do": "fault", "fault": ["bad_arguments", "no such city"]})
        assert bad == Fault(code="bad_arguments", message="the arguments of weather do not fit: no such city")
        for given, told in known:
            assert await failure(channels, served.url, given, effect=effect) == f"weather {told}"
        late = await call(channels, served.url, {"do": "hang"}, effect=effect, timeout=0.5)
        assert isinstance(late, Fault)
        assert "weather did not answer within 0.5 seconds" in late.message
        assert late.code == ("unknown_outcome" if effect == "once" else "timeout")
        await served.saw("Cancelled")
        # Also where nobody but gRPC looks at the clock.
        tool = Tool(name="weather", description="", schema=SCHEMA, effect=effect, timeout=0.3)
        with pytest.raises(ToolFailed, match=r"did not answer within 0\.3 seconds"):
            await GrpcBinding(tool, served.url, channels)._call({"do": "hang"}, "k")
        for given, told in doubtful:
            fault = await call(channels, served.url, given, effect=effect)
            assert isinstance(fault, Fault)
            assert re.search(f"weather {told if told is PACKED else re.escape(told)}", fault.message)
            assert "10.0.0.1" not in fault.message
            assert fault.code == ("unknown_outcome" if effect == "once" else "tool_failed"), (given, fault)
        # The last one has ended the server: once its end is noticed nothing is sent any more, and nothing is in doubt.
        async with asyncio.timeout(20):
            while "was asked" in str(gone := await call(channels, served.url, {}, effect=effect)):
                await asyncio.sleep(0.05)
        assert gone == Fault(
            code="tool_failed", message="RemoteError: weather could not be reached: there is no gRPC connection"
        )
        assert len(served.asked()) == len(known) + len(doubtful) + 3, "nothing was asked twice"


async def test_a_call_that_ends_well_without_a_message_is_not_known(tmp_path: Path) -> None:
    async with reaching(tmp_path, "silent") as (served, channels):
        assert await failure(channels, served.url, {}) == "weather answered OK: there is no message"
        fault = await call(channels, served.url, {}, effect="once")
        assert isinstance(fault, Fault)
        assert fault.code == "unknown_outcome"


async def test_bytes_that_are_no_answer_are_told_and_the_host_is_named_at_its_checked_address(tmp_path: Path) -> None:
    async with reaching(tmp_path, "garbage", lookup=Names(["127.0.0.1"])) as (served, channels):
        told = await failure(channels, f"grpc://Tool.Test:{served.port}", {})
        assert told == "weather sent an answer that does not follow tool.proto"
        assert served.seen == [{"method": "Call", "host": f"tool.test:{served.port}"}]


async def test_only_what_is_allowed_is_reached_and_at_the_address_that_was_checked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def nobody(host: str, port: int) -> list[str]:
        raise socket.gaierror("unknown")

    async def slow(host: str, port: int) -> list[str]:
        await asyncio.sleep(60)
        return []

    proxied: list[int] = []
    proxy = await asyncio.start_server(lambda reader, writer: proxied.append(1), "127.0.0.1", 0)
    at = proxy.sockets[0].getsockname()[1]
    for name in ("http_proxy", "https_proxy", "grpc_proxy", "all_proxy"):
        monkeypatch.setenv(name, f"http://127.0.0.1:{at}")
    names = Names(["127.0.0.1"], ["169.254.169.254"], ["127.0.0.1", "10.0.0.1"], ["::ffff:127.0.0.1"])
    async with proxy, reaching(tmp_path, lookup=names) as (served, channels):
        named = f"grpc://Tool.Test:{served.port}"
        assert isinstance(await call(channels, named, {}), str)
        assert isinstance(await call(channels, named, {}), str), "over the connection that is there"
        assert names.asked == [("tool.test", served.port)]
        await channels.close()
        for refusal in ("is a link-local", "is not a public address", "is not a public address"):
            assert refusal in await failure(channels, named, {}, effect="once")
        before = len(served.seen)

        async with open_channels(Egress()) as strict:
            for host in ("127.0.0.1", "[::1]", "[::ffff:127.0.0.1]", "localhost.", "localhost"):
                told = await failure(strict, f"grpc://{host}:{served.port}", {}, effect="once")
                assert "is not a public address, and reaching it is not allowed here" in told
        async with open_channels(Egress(["127.0.0.1"]), lookup=nobody) as lost:
            assert "could not be reached: gaierror" in await failure(lost, named, {}, effect="once")
        async with open_channels(Egress(["127.0.0.1"]), lookup=slow) as lost:
            assert await call(lost, named, {}, effect="once", timeout=0.3) == Fault(
                code="timeout",
                message="weather was not begun within 0.3 seconds: weather could not be reached; nothing happened",
            )
        async with open_channels(Egress(["127.0.0.1"])) as other:
            away = "weather could not be reached: there is no gRPC connection"
            assert await failure(other, f"grpc://127.0.0.1:{unused()}", {}, effect="once") == away
            # What answers there does not speak TLS, and hears nothing of the call.
            tls = await failure(other, f"grpcs://127.0.0.1:{served.port}", {}, effect="once")
            assert tls == f"{away} or no certificate that we trust"
        assert len(served.seen) == before
    assert proxied == []


async def test_the_name_in_the_certificate_is_that_of_the_address(tmp_path: Path) -> None:
    roots = certificate(tmp_path, "tool.test")

    async def lookup(host: str, port: int) -> list[str]:
        return ["127.0.0.1"]

    async with reaching(tmp_path, "tls", lookup=lookup, roots=roots) as (served, channels):
        assert isinstance(await call(channels, f"grpcs://tool.test:{served.port}", {}), str)
        for other in ("other.test", "127.0.0.1"):
            told = await failure(channels, f"grpcs://{other}:{served.port}", {}, effect="once")
            assert "or no certificate that we trust" in told
        async with open_channels(Egress(["127.0.0.1"]), lookup=lookup) as strangers:
            told = await failure(strangers, f"grpcs://tool.test:{served.port}", {}, effect="once")
            assert "or no certificate that we trust" in told
        assert len(served.seen) == 1


async def test_connections_are_shared_given_up_when_idle_and_bounded(tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    first.mkdir()
    second.mkdir()
    async with (
        grpc_server(first) as one,
        grpc_server(second) as two,
        open_channels(Egress(["127.0.0.1"]), most=1) as channels,
    ):
        said = await asyncio.gather(*(call(channels, one.url, {"n": n}) for n in range(20)))
        assert [json.loads(str(text))["you said"]["n"] for text in said] == list(range(20))
        assert len({asked["peer"] for asked in one.seen}) == 1
        # There is room for one: the idle one makes room, and a busy one is waited for.
        assert isinstance(await call(channels, two.url, {}), str)
        assert isinstance(await call(channels, one.url, {}), str)
        assert len({asked["peer"] for asked in one.seen}) == 2
        paying = asyncio.create_task(call(channels, one.url, {"do": "pay"}))
        await one.saw("Call", 22)
        full = await call(channels, two.url, {}, timeout=0.5, effect="once")
        assert isinstance(full, Fault)
        assert "was not begun within 0.5 seconds" in full.message
        waiting = asyncio.create_task(call(channels, two.url, {}))
        await asyncio.sleep(0)
        (first / "go").touch()
        assert await paying == "paid"
        assert isinstance(await waiting, str)

        # A server that is started again is found again, also while its old connection is remembered.
        two.process.kill()
        await two.process.wait()
        async with grpc_server(second, port=two.port):
            async with asyncio.timeout(20):
                while not isinstance(await call(channels, two.url, {}), str):
                    await asyncio.sleep(0.05)
    async with grpc_server(first) as one, open_channels(Egress(["127.0.0.1"]), idle=0.05) as channels:
        assert isinstance(await call(channels, one.url, {}), str)
        async with asyncio.timeout(20):
            while channels._open or channels._closing:
                await asyncio.sleep(0.01)
        assert isinstance(await call(channels, one.url, {}), str)
        assert len({asked["peer"] for asked in one.seen[-2:]}) == 2
    async with grpc_server(first) as one, open_channels(Egress(["127.0.0.1"])) as channels:
        assert isinstance(await call(channels, one.url, {}), str)
        [old] = channels._open.values()
        old.opened -= LONGEST
        assert isinstance(await call(channels, one.url, {}), str)
        assert len({asked["peer"] for asked in one.seen[-2:]}) == 2, "one that is old takes no new calls"
        before = len(one.asked())
        hanging = asyncio.create_task(call(channels, one.url, {"do": "hang"}, effect="once"))
        await one.saw("Call", before + 1)
        [busy] = channels._open.values()
        assert busy.idle, "it has rested before"
        assert busy.idle.cancelled(), "one that is at work is not given up"
        await channels.close()
        assert "answered CANCELLED: the connection was closed here" in str(await hanging)
        assert "unknown_outcome" in str(await hanging), "what this end has broken off may have happened, too"
