"""Whatever a tool does, an outcome comes back."""

import asyncio
import functools
import json
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any, ClassVar

import pydantic
import pytest
from structlog.testing import capture_logs

from longhouse.agents.tool import Tool
from longhouse.agents.tool_descriptor import RuntimeBinding, ToolDescriptor
from longhouse.journal import events
from longhouse.journal.events import Effect, Fault, Output
from longhouse.journal.session import Open, Session, Turn
from longhouse.store.catalog.catalog import Catalog
from longhouse.store.database import Database
from longhouse.tools import BaseTool, ToolContext, execution, toolbox
from longhouse.tools.bindings.base import BUILT_IN, OWN_PROBE, Binding
from longhouse.tools.toolbox import MAX_ARGUMENTS, Result, Toolbox
from server_helpers import folded, opened, prompted, returned, started, turn_of, used


class Probe(BaseTool):
    """Does what the test says."""

    timeout: ClassVar[float] = 20.0
    max_output: ClassVar[int] = 40
    do: ClassVar[Callable[[ToolContext], Any]] = staticmethod(lambda context: "done")

    count: int = pydantic.Field(default=1, ge=0)
    tags: list[str] = pydantic.Field(default_factory=list)

    async def __call__(self, context: ToolContext, config: Any = None, **kwargs: Any) -> Any:
        return type(self).do(context)


def probe(do: Callable[[ToolContext], Any]) -> type[BaseTool]:
    return type("Doing", (Probe,), {"do": staticmethod(do), "tool_name": "probe", "__module__": __name__})


class Slow(BaseTool):
    timeout: ClassVar[float] = 0.02

    async def __call__(self, context: ToolContext, config: Any = None, **kwargs: Any) -> str:
        await asyncio.sleep(30)
        return "never"


def session_of(*tools: str, arguments: str = "{}", before: tuple[events.Event, ...] = ()) -> Session:
    calls = [used(f"1-action-{nth}", tool=tool, arguments=arguments) for nth, tool in enumerate(tools)]
    return folded(opened(), prompted("x"), started(2), *before, events.Replied(), *calls)


async def perform(
    tool: type[BaseTool], arguments: str = "{}", session: Session | None = None, toolbox: Toolbox | None = None
) -> Result:
    session = session or session_of(tool.tool_name, arguments=arguments)
    [call] = session.due_calls
    async with asyncio.timeout(10):
        return await (toolbox or Toolbox([tool])).perform(call, session, turn_of(session))


def _due(tool: type[BaseTool]) -> tuple[Open, Session, Turn]:
    session = session_of(tool.tool_name)
    [call] = session.due_calls
    return call, session, turn_of(session)


async def failure(tool: type[BaseTool], arguments: str = "{}") -> Fault:
    result = await perform(tool, arguments)
    assert isinstance(result.outcome, Fault)
    assert result.writes == {}
    return result.outcome


async def test_a_tool_gets_its_session_its_counters_and_its_key() -> None:
    seen: list[ToolContext] = []
    before = (events.Replied(), used("0-action-0"), returned("0-action-0", adds={"searches_used": 4}))
    session = session_of("probe", before=before)

    def see(context: ToolContext) -> str:
        seen.append(context)
        return "ok"

    result = await perform(probe(see), session=session)
    assert result == Result(Output(content="ok"))
    [context] = seen
    assert (context.session_id, context.conversation_id, context.call) == (session.id, "c", "1-action-0")
    assert context.key == f"{session.id}:1-action-0"
    assert (context.state, context.iteration, context.searches_used) == ("RESEARCHING", 2, 4)
    assert (context.clarifications_used, context.searches, context.sources) == (0, [], {})
    assert (context.execution_result, context.current_step_reasoning) == (None, None)


async def test_what_a_tool_writes_to_its_context_comes_back_to_be_journaled() -> None:
    def write(context: ToolContext) -> str:
        context.searches.append({"query": "rain"})
        context.sources["https://x"] = {"title": "X"}
        context.searches_used += 1
        context.current_step_reasoning = {"plan": ("a", "b")}
        return "ok"

    session = session_of("probe")
    result = await perform(probe(write), session=session)
    assert result.writes == {"current_step_reasoning": {"plan": ["a", "b"]}}
    assert result.adds == {
        "searches_used": 1,
        "searches": [{"query": "rain"}],
        "sources": {"https://x": {"title": "X"}},
    }
    kept = events.Returned(call="1-action-0", outcome=result.outcome, writes=result.writes, adds=result.adds)
    session = folded(kept, session=session)
    assert session.context == {
        "current_step_reasoning": {"plan": ["a", "b"]},
        "searches": [{"query": "rain"}],
        "sources": {"https://x": {"title": "X"}},
    }
    assert session.turn is not None
    assert session.turn.searches_used == 1


async def test_what_a_tool_takes_away_is_set_not_added() -> None:
    kept = {"sources": {"u": 1, "v": 2}, "searches": ["a", "b"]}
    session = session_of("probe", before=(events.Replied(), used("0-action-0"), returned("0-action-0", writes=kept)))

    def take_away(context: ToolContext) -> str:
        del context.sources["u"]
        context.searches.pop(0)
        return "ok"

    result = await perform(probe(take_away), session=session)
    assert result.writes == {"sources": {"v": 2}, "searches": ["b"]}
    assert result.adds == {}


async def test_a_change_deep_inside_is_noticed_and_leaves_the_session_as_it_was() -> None:
    kept = {"sources": {"u": {"title": "old"}}, "searches": [["q"]]}
    before = (events.Replied(), used("0-action-0"), returned("0-action-0", writes=kept))
    session = session_of("probe", before=before)

    def change(context: ToolContext) -> str:
        context.sources["u"]["title"] = "new"
        return "ok"

    result = await perform(probe(change), session=session)
    assert result.adds == {"sources": {"u": {"title": "new"}}}
    assert session.context == {"sources": {"u": {"title": "old"}}, "searches": [["q"]]}


class Source(pydantic.BaseModel):
    url: str
    score: float


async def test_models_in_the_context_are_kept_as_plain_json() -> None:
    def write(context: ToolContext) -> str:
        context.sources["u"] = Source(url="u", score=0.5)
        context.searches.append((1, float("nan"), "a\x00b"))
        return "ok"

    result = await perform(probe(write))
    assert result.adds == {"searches": [[1, None, "a\ufffdb"]], "sources": {"u": {"url": "u", "score": 0.5}}}
    assert json.loads(json.dumps(result.adds)) == result.adds


async def test_values_of_every_kind_are_kept_as_the_journal_stores_them() -> None:
    """The first are copied as JSON, the others walked through: what both have is the same."""
    odd = {"число": 10**30, "比": 1e22, "-0": -0.0, "t": (True, None), "\\u0000": "\\u0000 é\u2028\U0001f600"}
    plain = {**odd, "t": [True, None]}
    cases: list[tuple[dict[str, Any], dict[str, Any]]] = [
        ({}, {}),
        ({"b": "\x00\ud800", "\ud800": 1, "n": float("inf")}, {"b": "\ufffd\ufffd", "\ufffd": 1, "n": None}),
        ({"many": [[]] * 100}, {"many": [[]] * 100}),
    ]
    for more, kept in cases:

        def write(context: ToolContext, more: dict[str, Any] = more) -> str:
            context.custom_context = odd | more
            return "ok"

        result = await perform(probe(write))
        assert result.adds == {"custom_context": plain | kept}
        assert [type(one) for one in result.adds["custom_context"].values()][:2] == [int, float]


@pytest.mark.parametrize("number", [-(10**4300) + 1, 10**4400], ids=["unread", "unwritten"])
@pytest.mark.parametrize("beside", [None, "a\x00b", [[]] * 100])
async def test_a_number_that_no_journal_could_be_read_with_is_refused(number: int, beside: Any) -> None:
    """However it is copied: the first one can be written as JSON, and is not read again."""
    fault = await failure(probe(lambda context: setattr(context, "custom_context", {"n": number, "b": beside})))
    assert fault.code == "tool_failed"
    assert "a whole number of more than 4298 digits" in fault.message


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("execution_result", {"not": "text"}),
        ("searches_used", "many"),
        ("searches", None),
        ("sources", ["a"]),
        ("state", 3),
        ("current_step_reasoning", object()),
    ],
)
async def test_what_a_journal_cannot_carry_is_refused_in_words(name: str, value: object) -> None:
    fault = await failure(probe(lambda context: setattr(context, name, value)))
    assert fault.code == "tool_failed"


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (ValueError("no such city"), "ValueError: no such city"),
        (TimeoutError("the far side is slow"), "TimeoutError: the far side is slow"),
        (asyncio.CancelledError("by itself"), "CancelledError: by itself"),
        (SystemExit(3), "SystemExit: 3"),
        (StopIteration(), "RuntimeError: coroutine raised StopIteration"),
        (RuntimeError("a\x00b\ud800"), "RuntimeError: a\ufffdb\ufffd"),
    ],
)
async def test_whatever_a_tool_raises_becomes_a_fault(error: BaseException, message: str) -> None:
    def fail(context: ToolContext) -> str:
        raise error

    assert await failure(probe(fail)) == Fault(code="tool_failed", message=message)


async def test_a_long_complaint_is_cut() -> None:
    def fail(context: ToolContext) -> str:
        raise ValueError("x" * 100_000)

    assert len((await failure(probe(fail))).message) == 2000


async def test_an_output_that_cannot_be_read_is_a_fault() -> None:
    class Rude:
        def __str__(self) -> str:
            raise ValueError("no words")

    assert (await failure(probe(lambda context: Rude()))).message == "ValueError: no words"


async def test_a_tool_that_raises_leaves_nothing_in_the_context() -> None:
    def fail(context: ToolContext) -> str:
        context.sources["u"] = 1
        raise ValueError("half done")

    assert (await perform(probe(fail))).writes == {}


async def test_a_tool_that_takes_too_long_is_told_apart_from_one_that_fails() -> None:
    assert await failure(Slow) == Fault(code="timeout", message="slow did not answer within 0.02 seconds")


async def test_an_effect_that_takes_too_long_is_not_known() -> None:
    class Pay(Slow):
        effect: ClassVar[Effect] = "once"

    result = await perform(Pay)
    assert result.doubt == "pay did not answer within 0.02 seconds"
    assert isinstance(result.outcome, Fault)
    assert result.outcome.code == "unknown_outcome"
    assert result.outcome.message.startswith("it is not known whether pay took effect: pay did not answer")


@pytest.mark.parametrize("error", [TimeoutError("late"), ConnectionResetError("gone"), EOFError("cut"), SystemExit(1)])
@pytest.mark.parametrize("is_wrapped", [False, True])
async def test_an_effect_whose_answer_was_lost_is_not_known(error: BaseException, is_wrapped: bool) -> None:
    class Pay(BaseTool):
        effect: ClassVar[Effect] = "once"

        async def __call__(self, context: ToolContext, config: Any = None, **kwargs: Any) -> str:
            try:
                raise error
            except BaseException:
                if not is_wrapped:
                    raise
                raise RuntimeError("paying failed") from error

    result = await perform(Pay)
    assert "paying failed" in result.doubt if is_wrapped else str(error) in result.doubt
    assert isinstance(result.outcome, Fault)
    assert result.outcome.code == "unknown_outcome"


@pytest.mark.parametrize("error", [ValueError("no money"), ConnectionRefusedError("closed"), FileNotFoundError("none")])
async def test_an_effect_that_says_that_it_failed_has_failed(error: Exception) -> None:
    def fail(context: ToolContext) -> str:
        raise error

    made = probe(fail)
    made.effect = "once"
    result = await perform(made)
    assert (result.doubt, result.outcome) == ("", Fault(code="tool_failed", message=f"{type(error).__name__}: {error}"))


async def test_an_effect_whose_result_cannot_be_read_is_not_known() -> None:
    class Rude:
        def __str__(self) -> str:
            raise ValueError("no words")

    for do in (
        lambda context: Rude(), lambda context: object(), lambda context: context.sources.update(a=object()),
    ):  # fmt: skip
        made = probe(do)
        made.effect = "once"
        with capture_logs() as log:
            result = await perform(made)
        [said] = log
        assert (said["log_level"], said["message"]) == ("warning", "a tool has run, and what it gave is no JSON")
        assert result.doubt
        assert isinstance(result.outcome, Fault)
        assert result.outcome.code == "unknown_outcome"


async def test_what_goes_wrong_around_a_call_elsewhere_is_not_known() -> None:
    """Nobody but the tool's own code, or the binding that knows, says that a request did nothing."""

    async def broken(context: ToolContext, config: Any) -> str:
        raise ValueError("an answer that nobody has thought of")

    effects: dict[Effect, str] = {"once": "unknown_outcome", "read": "tool_failed"}
    for effect, code in effects.items():
        tool = Tool(name="far", description="", schema={"type": "object"}, effect=effect)
        toolbox = Toolbox([])
        toolbox.add(Binding(tool, lambda arguments: broken, is_elsewhere=True))
        session = session_of("far")
        [call] = session.due_calls
        outcome = (await toolbox.perform(call, session, turn_of(session))).outcome
        assert isinstance(outcome, Fault)
        assert outcome.code == code


async def test_an_effect_that_ends_while_it_is_told_to_stop_is_known() -> None:
    class Careful(BaseTool):
        """Ends what it has begun."""

        effect: ClassVar[Effect] = "once"
        timeout: ClassVar[float] = 0.02

        async def __call__(self, context: ToolContext, config: Any = None, **kwargs: Any) -> str:
            try:
                await asyncio.sleep(60)
            except asyncio.CancelledError:
                return "paid"
            return "never"

    result = await perform(Careful)
    assert (result.outcome, result.doubt) == (Output(content="paid"), "")


class Deaf(BaseTool):
    """Does not stop when it is told to."""

    timeout: ClassVar[float] = 0.05
    told: ClassVar[int]
    over: ClassVar[asyncio.Event]

    async def __call__(self, context: ToolContext, config: Any = None, **kwargs: Any) -> str:
        while not self.over.is_set():
            try:
                await self.over.wait()
            except asyncio.CancelledError:
                Deaf.told += 1
        return "over"


@pytest.fixture
def _deaf() -> Iterator[None]:
    Deaf.told, Deaf.over = 0, asyncio.Event()
    yield
    # Its loop is closed by now, which has not waited for it.
    assert not Deaf.over.is_set()


@pytest.mark.usefixtures("_deaf")
async def test_a_tool_that_is_deaf_is_left_behind_when_its_time_is_up() -> None:
    toolbox = Toolbox([Deaf, Probe])
    with capture_logs() as logs:
        late = await asyncio.gather(perform(Deaf, toolbox=toolbox), perform(Deaf, toolbox=toolbox))
    assert [one.outcome for one in late] == [
        Fault(code="timeout", message="deaf did not answer within 0.05 seconds")
    ] * 2
    assert (Deaf.told, toolbox.left_behind) == (2, 2)
    warned = [(one["event"], one["tool"], one["call"]) for one in logs if one["log_level"] == "warning"]
    assert sorted(warned) == [
        (event, "deaf", "1-action-0") for event in ("tool_task_abandoned", "tool_timed_out") for _ in range(2)
    ]
    assert (await perform(Probe, toolbox=toolbox)).outcome == Output(content="done")
    assert all("_ended" not in repr(task) for task in asyncio.all_tasks()), "who ends the loop waits for none of them"


@pytest.mark.usefixtures("_deaf")
async def test_a_run_does_not_wait_for_a_deaf_tool_either() -> None:
    class Deafer(Deaf):
        timeout: ClassVar[float] = 60.0

    task = asyncio.create_task(perform(Deafer))
    await asyncio.sleep(0.05)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        async with asyncio.timeout(10):
            await task
    assert Deaf.told == 1


async def test_what_was_left_behind_is_forgotten_once_it_ends() -> None:
    Deaf.told, Deaf.over = 0, asyncio.Event()
    toolbox = Toolbox([Deaf])
    await perform(Deaf, toolbox=toolbox)
    assert toolbox.left_behind == 1
    Deaf.over.set()
    await until(lambda: toolbox.left_behind == 0)


async def test_a_call_that_is_cancelled_from_outside_is_cancelled() -> None:
    class Endless(Slow):
        timeout: ClassVar[float] = 30.0

    task = asyncio.create_task(perform(Endless))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_a_built_in_tool_needs_no_task_to_be_late_to_fail_and_to_be_cancelled() -> None:
    here = asyncio.current_task()

    def built_in(base: type[BaseTool], **content: Any) -> type[BaseTool]:
        return type("One", (base,), {"__module__": f"{BUILT_IN}one", "timeout": 0.02, **content})

    def leaves(context: ToolContext) -> str:
        raise asyncio.CancelledError

    def exits(context: ToolContext) -> str:
        raise SystemExit("enough")

    class Stubborn(Slow):
        async def __call__(self, context: ToolContext, config: Any = None, **kwargs: Any) -> str:
            try:
                return await super().__call__(context)
            except asyncio.CancelledError:
                return "over"

    same = built_in(Probe, do=staticmethod(lambda context: asyncio.current_task() is here), timeout=20.0)
    foreign = built_in(Probe, do=staticmethod(lambda context: asyncio.current_task() is here), __module__=__name__)
    assert [(await Toolbox([one]).perform(*_due(one))).outcome for one in (same, foreign)] == [
        Output(content="true"),
        Output(content="false"),
    ]
    assert await failure(built_in(Slow)) == Fault(code="timeout", message="one did not answer within 0.02 seconds")
    assert (await perform(built_in(Stubborn))).outcome == Output(content="over"), "a known result is not thrown away"
    for do, message in ((leaves, "CancelledError: "), (exits, "SystemExit: enough")):
        assert await failure(built_in(Probe, do=staticmethod(do))) == Fault(code="tool_failed", message=message)
    assert here is not None
    assert not here.cancelling()
    task = asyncio.create_task(perform(built_in(Slow, timeout=30.0)))
    await asyncio.sleep(0.01)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_output_is_text_clean_and_bounded() -> None:
    assert (await perform(probe(lambda context: {"n": [None, True]}))).outcome == Output(content='{"n":[null,true]}')
    assert (await perform(probe(lambda context: {"n": b"1", "o": object}))).outcome == Output(
        content='{"n":"MQ==","o":"<class \'object\'>"}'
    ), "what JSON has no form for is text within it"
    assert (await perform(probe(lambda context: "a\x00\udc00"))).outcome == Output(content="a\ufffd\ufffd")
    assert (await perform(probe(lambda context: "x" * 40))).outcome == Output(content="x" * 40)
    long = await perform(probe(lambda context: "x" * 50))
    assert long.outcome == Output(content="x" * 40 + "\n[cut: 10 of 50 characters left out]")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ('{"count": "many"}', "the arguments of probe do not fit: count: Input should be a valid integer"),
        ('{"count": -1}', "count: Input should be greater than or equal to 0"),
        ('{"tags": ["a", 2]}', "tags.1: Input should be a valid string"),
        ("[]", "arguments: It should be an object"),
        ('{"count": 1', "arguments: Invalid JSON: EOF while parsing"),
        ("nonsense", "Invalid JSON"),
        (" " * (MAX_ARGUMENTS + 1), f"the arguments are longer than {MAX_ARGUMENTS} characters"),
    ],
)
async def test_bad_arguments_are_explained(arguments: str, message: str) -> None:
    fault = await failure(Probe, arguments)
    assert fault.code == "bad_arguments"
    assert message in fault.message
    assert await Toolbox([Probe]).check(Probe.described(), arguments) == fault


async def test_no_arguments_at_all_are_an_empty_object() -> None:
    assert (await perform(Probe, "")).outcome == Output(content="done")
    assert await Toolbox([Probe]).check(Probe.described(), "") is None


async def test_a_tool_that_is_not_there_is_named() -> None:
    session = session_of("gone")
    result = await Toolbox([Probe]).perform(session.due_calls[0], session, turn_of(session))
    assert result.outcome == Fault(
        code="unknown_tool", message="there is no tool 'gone'; use one of those you are offered"
    )


async def test_a_tool_that_does_not_say_what_it_does_is_a_fault() -> None:
    class Lazy(BaseTool):
        """Does nothing."""

    assert "Lazy does not say what it does" in (await failure(Lazy)).message


class Blocking(BaseTool):
    """Blocks, and the loop goes on."""

    release: ClassVar[threading.Event]

    def __call__(self, context: ToolContext, config: Any = None, **kwargs: Any) -> str:
        assert self.release.wait(10)
        context.searches_used = 1
        return threading.current_thread().name


async def test_a_blocking_tool_runs_in_a_thread_while_the_loop_goes_on() -> None:
    Blocking.release = threading.Event()
    task = asyncio.create_task(perform(Blocking))
    for _ in range(20):
        await asyncio.sleep(0)
    assert not task.done()
    Blocking.release.set()
    result = await task
    assert isinstance(result.outcome, Output)
    assert result.outcome.content != threading.main_thread().name
    assert result.adds == {"searches_used": 1}


async def until(is_so: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not is_so():
            await asyncio.sleep(0.005)


class Stuck(BaseTool):
    """Hangs in a thread of its own."""

    timeout: ClassVar[float] = 0.1
    release: ClassVar[threading.Event]
    began: ClassVar[list[str]]

    def __call__(self, context: ToolContext, config: Any = None, **kwargs: Any) -> str:
        self.began.append(context.key)
        assert self.release.wait(30)
        return "released"


class StuckOnce(Stuck):
    """Hangs, and must not happen twice."""

    effect: ClassVar[Effect] = "once"


@pytest.fixture
def _stuck() -> Iterator[None]:
    Stuck.release, Stuck.began = threading.Event(), []
    yield
    Stuck.release.set()


@pytest.mark.usefixtures("_stuck")
async def test_blocking_tools_that_hang_take_no_threads_from_others() -> None:
    Blocking.release = threading.Event()
    Blocking.release.set()
    toolbox = Toolbox([Stuck, Blocking])
    late = await asyncio.gather(*(perform(Stuck, toolbox=toolbox) for _ in range(execution.EACH)))
    assert {one.outcome for one in late} == {Fault(code="timeout", message="stuck did not answer within 0.1 seconds")}
    assert toolbox.left_behind == execution.EACH
    # Neither those of other tools, nor those that files are read and names are looked up in.
    assert isinstance((await perform(Blocking, toolbox=toolbox)).outcome, Output)
    assert await asyncio.wait_for(asyncio.to_thread(lambda: "read"), 10) == "read"
    # One more of these would hang too: it is told so, and not begun.
    refused = await perform(Stuck, toolbox=toolbox)
    assert refused.outcome == Fault(
        code="tool_failed",
        message="NotBegun: 16 calls of stuck still run after their timeout; it is not called meanwhile",
    )
    assert len(Stuck.began) == execution.EACH
    Stuck.release.set()
    await until(lambda: toolbox.left_behind == 0)
    assert (await perform(Stuck, toolbox=toolbox)).outcome == Output(content="released")


@pytest.mark.usefixtures("_stuck")
async def test_a_blocking_effect_is_known_not_to_be_until_it_has_a_thread() -> None:
    toolbox = Toolbox([StuckOnce])
    results = await asyncio.gather(*(perform(StuckOnce, toolbox=toolbox) for _ in range(execution.EACH + 1)))
    doubted = [one for one in results if one.doubt]
    [waited] = [one.outcome for one in results if not one.doubt]
    assert (len(doubted), len(Stuck.began)) == (execution.EACH, execution.EACH)
    assert waited == Fault(
        code="timeout",
        message="stuckonce was not begun within 0.1 seconds: all 16 threads of stuckonce were busy; nothing happened",
    )


@pytest.fixture
def _no_threads() -> Iterator[None]:
    """No thread finds room for its stack: it is larger than the address space."""
    before = threading.stack_size(2**48)
    yield
    threading.stack_size(before)


@pytest.mark.usefixtures("_stuck", "_no_threads")
async def test_on_a_machine_without_threads_an_effect_is_known_not_to_have_begun() -> None:
    toolbox = Toolbox([StuckOnce])
    results = [await perform(StuckOnce, toolbox=toolbox) for _ in range(execution.EACH + 1)]
    none = Fault(code="tool_failed", message="NotBegun: this machine has no thread left for it")
    assert {(one.outcome, one.doubt) for one in results} == {(none, "")}, "and none of them keeps a place"
    threading.stack_size(0)
    Stuck.release.set()
    assert (await perform(StuckOnce, toolbox=toolbox)).outcome == Output(content="released")
    assert (len(Stuck.began), toolbox.left_behind) == (1, 0)


async def test_a_blocking_tool_that_raises_or_exits_is_a_fault() -> None:
    class Exits(BaseTool):
        def __call__(self, context: ToolContext, config: Any = None, **kwargs: Any) -> str:
            sys.exit("enough")

    assert await failure(Exits) == Fault(code="tool_failed", message="SystemExit: enough")


async def test_an_async_tool_behind_a_plain_decorator_is_awaited() -> None:
    def traced(call: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(call)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            return call(*args, **kwargs)

        return wrapper

    class Wrapped(BaseTool):
        @traced
        async def __call__(self, context: ToolContext, config: Any = None, **kwargs: Any) -> str:
            await asyncio.sleep(0)
            return "awaited"

    assert (await perform(Wrapped)).outcome == Output(content="awaited")


async def test_of_many_tools_the_newest_are_kept_and_each_with_what_asks_about_its_calls(
    db: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(toolbox, "MOST_BOUND", 4)
    nothing = Fault(code="none", message="")

    async def bound(descriptor: ToolDescriptor) -> Binding:
        asks = Binding(Tool(f"{descriptor.name}{OWN_PROBE}", "", {}), lambda arguments: nothing)
        return Binding(descriptor.tool, lambda arguments: nothing, probe=asks)

    catalog, way = Catalog(db), RuntimeBinding(remote_endpoint="https://shop.example/")
    names = ("pay", "ship", "send")
    described = [ToolDescriptor(name=name, description_short="Does it.", runtime_binding=way) for name in names]
    await catalog.tools.publish(described, by="test")
    box = Toolbox([], catalog=catalog, binder=bound)
    for name in ("pay", "ship", "send", "pay", "ship", "pay", "send", "pay"):
        assert await box.resolve(name, 1)
        assert len(box._bound) <= 4
        assert await box.resolve(f"{name}{OWN_PROBE}", 1), "a call of this tool in doubt can be asked about"
