"""A request grows with its session: what was composed and encoded before is taken again, and is what it would be if all
were composed from nothing."""

import gc
import hashlib
from collections.abc import Callable

import msgspec
import pytest

from longhouse.agents.requests import pieces, tokens, window
from longhouse.agents.strategies import protocol
from longhouse.agents.strategies.protocol import Body
from longhouse.agents.strategies.tool_calling import ToolCallingAgent
from longhouse.agents.template import LLMPolicy, MemoryPolicy, PromptPack, Template, ToolPolicy
from longhouse.journal import events
from longhouse.journal.fold import blank, fold
from longhouse.journal.messages import Assistant, ImagePart, ImageUrl, Message, TextPart, User
from longhouse.journal.session import Session
from longhouse.journal.transcript import Entry
from server_helpers import folded, opened, prompted, returned, started, used

TEXTS = ("Will it rain in Oslo?", "Пойдёт ли дождь в Осло?", '奥斯陆会下雨吗？ "是" \\ ', "\u2028 🌧 </script>\n")
TEMPLATE = Template(
    name="t",
    prompt_pack=PromptPack(system_prompt='You help.\n"Будь добр."'),
    llm_policy=LLMPolicy(model='a "model"', context_tokens=1_000_000),
    tool_policy=ToolPolicy(allowlist=()),
)


def asked(session: Session, text: str) -> Session:
    session = folded(prompted(text, trace="t"), session=session)
    return folded(started(session.head, trace="t"), session=session)


def stepped(session: Session, number: int) -> Session:
    call, tool = f"{session.iteration + 1}-action-0", f"tool.{number % 3}"
    session = folded(events.Replied(text=TEXTS[number % 4]), used(call, tool=tool), session=session)
    return folded(returned(call, TEXTS[(number + 1) % 4] * 3), session=session)


def ended(session: Session, answer: str) -> Session:
    return folded(events.Replied(text=answer), events.Finished(answer=answer), session=session)


def body_of(session: Session, template: Template = TEMPLATE) -> Body:
    return ToolCallingAgent().propose(session, template, ()).body


def plain(session: Session, template: Template = TEMPLATE) -> bytes:
    """The JSON of a session that nothing is known of, from the first to the last byte."""
    anew = msgspec.json.decode(msgspec.json.encode(session), type=Session)
    body = body_of(anew, template)
    return msgspec.json.encode(msgspec.structs.replace(body, messages=list(body.messages)))


def check(session: Session, template: Template = TEMPLATE) -> Body:
    body, expected = body_of(session, template), plain(session, template)
    assert protocol.encoded(body) == expected
    assert protocol.digest(body) == hashlib.sha256(expected).hexdigest()
    streamed = msgspec.json.decode(b"".join(protocol.streamed(body)))
    asks = {"stream": True, "stream_options": {"include_usage": True}}
    assert streamed == msgspec.json.decode(expected) | asks
    size = sum(map(tokens.of, body.messages))
    assert (window.size_of(body.messages), window.size_of(list(body.messages))) == (size, size)
    assert window.files_in(body.messages) == window.files_in(list(body.messages))
    return body


def test_a_request_that_grows_is_the_one_composed_from_nothing() -> None:
    images = (TextPart(text="Что это?"), ImagePart(image_url=ImageUrl(url="longhouse-file:abc")))
    prior: list[Message] = [User(content=TEXTS[1]), Assistant(content=TEXTS[2]), User(content=images)]
    session = folded(opened())
    session = folded(prompted("Go", trace="t", prior=tuple(prior)), session=session)
    session = folded(started(session.head, trace="t"), session=session)
    branch = session
    for number in range(3 * pieces.RUN):
        session = stepped(session, number)
        check(session)
        if number % 20 == 19:
            session = asked(ended(session, TEXTS[number % 4]), TEXTS[(number + 2) % 4])
            check(session)
        if number == pieces.RUN + 3:
            branch = session
    assert window.files_in(body_of(session).messages) == {"abc"}

    # Another way from the middle on, while the first one lives: each has its own.
    other = asked(ended(branch, "Нет."), "再来一次")
    assert check(other) != check(session)
    check(branch)

    # Other prompts, other names of tools: nothing of the former ones is taken.
    renamed = msgspec.structs.replace(
        session, transcript=(*session.transcript, *asked(folded(opened()), "x").transcript)
    )
    check(renamed)
    pack = PromptPack(system_prompt="Be brief.", initial_user_request="Задача: {task}")
    check(session, Template(name="t", prompt_pack=pack, llm_policy=TEMPLATE.llm_policy, tool_policy=ToolPolicy()))
    check(session)
    few = MemoryPolicy(context_window=7)
    check(session, Template(name="t", memory_policy=few, llm_policy=TEMPLATE.llm_policy))

    # Condensed, it begins with the summary; and goes on to grow from there.
    upto = session.transcript[2 * pieces.RUN].seq
    condensed = folded(events.Condensed(upto=upto, summary="Шёл дождь. 下过雨。"), session=session)
    assert len(check(condensed).messages) < len(body_of(session).messages)
    for number in range(pieces.RUN):
        condensed = stepped(condensed, number)
        check(condensed)
    check(session)


def test_a_tool_that_gets_another_name_on_the_wire_is_named_anew() -> None:
    """Two tools with names that differ by a dot: which one keeps the plain one depends on both."""
    session = asked(folded(opened()), "Go")
    session = folded(events.Replied(), used("1-action-0", tool="a.b"), session=session)
    session = folded(returned("1-action-0", "ok"), session=session)
    before = check(session)
    session = folded(events.Replied(), used("2-action-0", tool="a_b"), session=session)
    session = folded(returned("2-action-0", "ok"), session=session)
    after = check(session)

    def first_name(body: Body) -> str:
        calls = (call for one in body.messages if isinstance(one, Assistant) for call in one.tool_calls)
        return next(calls).function.name

    assert first_name(before) == "a_b"
    assert first_name(after) != "a_b"


def test_what_a_strategy_does_to_the_messages_is_sent() -> None:
    session = stepped(asked(folded(opened()), "Go"), 0)
    body = body_of(session)
    assert isinstance(body.messages, pieces.Window)
    more: list[Message] = [User(content="Ещё.")]
    longer = (body.messages + more, more + body.messages)
    assert longer == ([*body.messages, *more], [*more, *body.messages])
    changes: tuple[Callable[[pieces.Window], object], ...] = (
        lambda messages: messages.append(User(content="Ещё.")),
        lambda messages: messages.pop(1),
        lambda messages: messages.__setitem__(1, User(content="другое")),
        lambda messages: messages.clear(),
    )
    for change in changes:
        change(body.messages)
        expected = msgspec.json.encode(msgspec.structs.replace(body, messages=list(body.messages)))
        body = msgspec.structs.replace(body)  # a body that was sent already is not changed
        assert protocol.encoded(body) == expected
        assert protocol.digest(body) == hashlib.sha256(expected).hexdigest()
        assert window.size_of(body.messages) == window.size_of(list(body.messages))


def test_a_long_history_is_sent_as_it_was_encoded() -> None:
    """No request copies it: the pieces around it are joined, since each one would be a record of TLS."""
    prior = tuple(User(content=f"{number} {TEXTS[number % 4] * 50}") for number in range(40))
    session = folded(opened())
    session = folded(prompted("Go", trace="t", prior=prior), session=session)
    session = stepped(stepped(folded(started(session.head, trace="t"), session=session), 0), 1)
    body, later = check(session), check(stepped(session, 2))
    first, long, last = protocol.streamed(body)
    assert (len(long) > protocol.LONG, protocol.streamed(later)[1] is long) == (True, True)
    assert first.startswith(b'{"model":"a \\"model\\"","messages":[{"role":"system"')
    assert last.endswith(b'"stream":true,"stream_options":{"include_usage":true}}')

    # To keep it in memory, it is not encoded once more: what is known of its size is near enough.
    unsent = msgspec.json.decode(msgspec.json.encode(session.transcript), type=tuple[Entry, ...])
    for transcript in (session.transcript, unsent):
        assert pieces.size_of(transcript) == pytest.approx(len(msgspec.json.encode(transcript)), rel=0.01)


def test_text_that_json_cannot_encode_is_refused_each_time() -> None:
    body = body_of(asked(folded(opened()), "half \ud83d of a pair"))
    for _ in range(2):
        with pytest.raises(UnicodeEncodeError):
            protocol.streamed(body)
        with pytest.raises(UnicodeEncodeError):
            protocol.digest(body)


def test_nothing_is_kept_of_a_session_that_is_gone() -> None:
    gc.collect()
    before = len(pieces._pieces)
    session = asked(folded(opened()), "Go")
    for number in range(2 * pieces.RUN):
        session = stepped(session, number)
        check(session)
    assert len(pieces._pieces) > before
    assert len(pieces._pieces) - before < 2 * pieces.RUN, "what is in a whole piece is not kept one by one as well"
    session = fold((), blank("s"))
    gc.collect()
    assert len(pieces._pieces) <= before
    assert len(pieces._beginnings) <= pieces.MOST_BEGINNINGS
    assert {type(part) for key in pieces._beginnings for part in key} == {int}, "not what was said"


def test_an_entry_whose_end_was_missed_is_not_taken_for_the_one_in_its_place() -> None:
    theirs, ours = (asked(folded(opened()), text) for text in ("Our secret", "Hello"))
    body_of(theirs)
    pieces._pieces[(id(ours.transcript[0]),)] = pieces._pieces[(id(theirs.transcript[0]),)]
    assert b"secret" not in protocol.encoded(check(ours))
