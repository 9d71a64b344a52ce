"""`longhouse bench recall`: measures what is found again of a talk, on your own data, with the production code."""

import json
import re
from codecs import BOM_UTF8
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from time import perf_counter
from typing import Annotated, Any, Final

import msgspec
import typer
from msgspec.structs import replace
from rich.console import Console
from rich.table import Table

from longhouse.cli.bench.search import (
    DEPTH,
    WARM_UP,
    AsJson,
    ChosenEmbeddings,
    Measured,
    chosen_embedder,
    cli,
    temporary,
)
from longhouse.cli.running import run
from longhouse.errors import SetupError
from longhouse.memory.dates import date_words
from longhouse.models.protocol import Embedder
from longhouse.search.passages import Passage, PassageIndex
from longhouse.settings import Settings

AT_ONCE: Final = 500
KIND: Final = "interaction"
DATES: Final = ("%I:%M %p on %d %B, %Y", "%d %B, %Y", "%d %B %Y", "%B %d, %Y", "%Y/%m/%d %H:%M", "%Y/%m/%d", "%d.%m.%Y")
"""Besides ISO 8601, how people write a date."""
TURN_ID: Final = ("id", "turn_id", "dia_id")
TEXT: Final = ("text", "content")
SPEAKER: Final = ("speaker", "role")
CONVERSATION: Final = ("conversation", "conversation_id")
SESSION: Final = ("session", "session_id")
DATE: Final = ("at", "date", "date_time", "timestamp")
QUESTION: Final = ("question", "query")
ANSWERED_BY: Final = ("turns", "evidence", "answers")
HEADINGS: Final = {
    "r_at_1": "R@1", "r_at_5": "R@5", "r_at_10": "R@10", "mrr": "MRR", "p50_ms": "p50 ms", "p95_ms": "p95 ms",
    "queries": "questions",
}  # fmt: skip
_BETWEEN: Final = re.compile(r"[\s;,]+")


class BenchTurn(msgspec.Struct, frozen=True):
    id: str
    text: str
    speaker: str
    conversation: str
    session: str
    date: str


class BenchQuestion(msgspec.Struct, frozen=True):
    question: str
    turns: frozenset[str]
    conversation: str | None


@cli.command()
def recall(
    *,
    turns: Annotated[Path, typer.Option(exists=True, dir_okay=False, help="JSON lines: id, text, speaker, at, …")],
    qa: Annotated[Path, typer.Option(exists=True, dir_okay=False, help="JSON lines: question, turns (ids), …")],
    embeddings: ChosenEmbeddings = None,
    as_json: AsJson = False,
) -> None:
    """Index the turns of talks in a temporary Postgres, and measure how many that hold an answer are found."""
    said, asked = read_turns(turns), read_questions(qa)

    async def main(settings: Settings) -> None:
        async with chosen_embedder(settings, embeddings) as embedder:
            figures = await measure(said, asked, embedder)
        if as_json:
            typer.echo(json.dumps(figures))
        else:
            Console(width=160).print(_table({name: figures[name] for name in ("neighbours", "alone")}))
            typer.echo(f"{figures['turns']} turns, vectors of {figures['embeddings'] or 'none, words alone'}")
            if figures["left_out"]:
                typer.echo(f"{figures['left_out']} questions were left out: the turns they name are missing")

    run(Settings(log_level="warning"), main)


def _table(figures: Mapping[str, Mapping[str, float]]) -> Table:
    made = Table()
    for heading in ("", *HEADINGS.values()):
        made.add_column(heading, justify="right")
    for kind, row in figures.items():
        made.add_row(kind, *(_shown(name, row[name]) for name in HEADINGS))
    return made


def _shown(name: str, value: float) -> str:
    if name.startswith("r_at_"):
        return f"{100 * value:.1f} %"
    return f"{value:.3f}" if name == "mrr" else f"{value:.2f}" if name.endswith("_ms") else str(value)


def read_turns(path: Path) -> list[BenchTurn]:
    turns: dict[tuple[str, str], BenchTurn] = {}
    for where, line in _lines(path):
        turn = BenchTurn(
            id=_word(_one(line, where, *TURN_ID), where, "id"),
            text=_said(_one(line, where, *TEXT), where, "text"),
            speaker=_word(_one(line, where, *SPEAKER, default=""), where, "speaker"),
            conversation=_word(_one(line, where, *CONVERSATION, default=""), where, "conversation"),
            session=_word(_one(line, where, *SESSION, default=""), where, "session"),
            date=_word(_one(line, where, *DATE, default=""), where, "at"),
        )
        if turns.setdefault((turn.conversation, turn.id), turn) is not turn:
            within = f"conversation `{turn.conversation}`" if turn.conversation else "turns without a `conversation`"
            raise SetupError(
                f"{where} has the id `{turn.id}`, which an earlier line of {within} has: give each its own."
            )
    return list(turns.values())


def read_questions(path: Path) -> list[BenchQuestion]:
    questions = []
    for where, line in _lines(path):
        named = _one(line, where, *ANSWERED_BY)
        ids = named if isinstance(named, list) else [named]
        conversation = _one(line, where, *CONVERSATION, default=None)
        questions.append(
            BenchQuestion(
                question=_said(_one(line, where, *QUESTION), where, "question"),
                turns=frozenset(_word(one, where, "turns") for one in ids),
                conversation=None if conversation is None else _word(conversation, where, "conversation"),
            )
        )
    return questions


def _word(value: object, where: str, name: str) -> str:
    if isinstance(value, bool) or not isinstance(value, str | int):
        raise SetupError(f"{where} has a `{name}` that is neither text nor a whole number.")
    return str(value)


def _said(value: object, where: str, name: str) -> str:
    if not isinstance(value, str):
        raise SetupError(f"{where} has a `{name}` that is no text.")
    return value


def _lines(path: Path) -> list[tuple[str, dict[str, Any]]]:
    found = []
    for number, line in enumerate(path.read_bytes().removeprefix(BOM_UTF8).splitlines(), 1):
        if line.strip():
            where = f"{path}, line {number}"
            try:
                found.append((where, msgspec.json.decode(line, type=dict[str, Any])))
            except (msgspec.MsgspecError, UnicodeDecodeError) as error:
                raise SetupError(f"{where} is no JSON object: {error}.") from None
    return found


_REQUIRED: Final = object()


def _one(line: Mapping[str, Any], where: str, *names: str, default: object = _REQUIRED) -> Any:
    """The value under the first of these names that the line has."""
    found = next((line[name] for name in names if line.get(name) is not None), default)
    if found is _REQUIRED:
        raise SetupError(f"{where} has no `{names[0]}` (nor {', '.join(f'`{name}`' for name in names[1:])}).")
    return found


async def measure(
    turns: Sequence[BenchTurn], questions: Sequence[BenchQuestion], embedder: Embedder | None
) -> dict[str, Any]:
    """Writes the turns to a temporary Postgres twice, with their neighbours and without, and asks all questions."""
    there = {(turn.conversation, turn.id) for turn in turns}
    ids = {turn.id for turn in turns}
    asked = [_known(question, there, ids) for question in questions]
    asked = [question for question in asked if question.turns]
    if not asked:
        raise SetupError("there is nothing to measure: it takes turns, and questions that name some of them.")
    if len(ids) < len(turns) and any(question.conversation is None for question in asked):
        raise SetupError("some turns have the same id: name the `conversation` of each turn and of each question.")
    async with temporary() as db:
        passages = PassageIndex(db, embedder)
        written = [passage_of(turn, nth) for nth, turn in enumerate(turns)]
        alone = [replace(passage, scope=_alone(passage.scope), thread="") for passage in written]
        for batch in (written, alone):
            for start in range(0, len(batch), AT_ONCE):
                await passages.write(batch[start : start + AT_ONCE])
        scopes = sorted({turn.conversation for turn in turns})
        return {
            "neighbours": (await _measured(passages, asked, scopes)).figures(),
            "alone": (await _measured(passages, asked, scopes, prefix=_alone(""))).figures(),
            "turns": len(turns),
            "left_out": len(questions) - len(asked),
            "embeddings": embedder.name if embedder else None,
        }


def _alone(scope: str) -> str:
    return f"alone/{scope}"


def _known(question: BenchQuestion, there: set[tuple[str, str]], ids: set[str]) -> BenchQuestion:
    """The question without turns that are not there; `D1:1; D1:2` are two, unless a turn has this id."""

    def is_there(one: str) -> bool:
        return one in ids if question.conversation is None else (question.conversation, one) in there

    named = (one for text in question.turns for one in ([text] if is_there(text) else _BETWEEN.split(text)))
    return replace(question, turns=frozenset(filter(is_there, named)))


def passage_of(turn: BenchTurn, nth: int) -> Passage:
    at = date_of(turn.date)
    return Passage(
        scope=turn.conversation,
        kind="interaction",
        source=turn.id,
        group=turn.conversation,
        text=turn.text,
        title=turn.speaker,
        context=date_words(at, turn.text) if at else turn.date,
        at=at,
        thread=f"{turn.conversation}/{turn.session}",
        position=nth,
    )


def date_of(text: str) -> datetime | None:
    found = None
    with suppress(ValueError):
        found = datetime.fromisoformat(text)
    for form in DATES:
        with suppress(ValueError):
            found = found or datetime.strptime(text.strip(), form)  # noqa: DTZ007 - the zone follows
    return found.replace(tzinfo=found.tzinfo or UTC) if found else None


async def _measured(
    passages: PassageIndex, questions: Sequence[BenchQuestion], scopes: Sequence[str], prefix: str = ""
) -> Measured:
    measured = Measured()
    for nth, question in enumerate([*questions[:WARM_UP], *questions]):
        own = [question.conversation] if question.conversation is not None else scopes
        begun = perf_counter()
        hits = await passages.search(question.question, [prefix + one for one in own], kinds=[KIND], limit=DEPTH)
        if nth >= min(WARM_UP, len(questions)):
            measured.seconds.append(perf_counter() - begun)
            measured.found.append(([hit.source for hit in hits], set(question.turns)))
    return measured
