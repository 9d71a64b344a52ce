"""The report of a run, as Markdown, and its last line."""

from collections import Counter
from collections.abc import Iterable, Sequence

from chaos.checks import Takeover, Violation, takeovers
from chaos.evidence import Evidence
from chaos.kill_points import POINTS
from chaos.nemesis import KILLS


def percentile(values: Sequence[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else 0.0


def duplicates(evidence: Evidence) -> dict[str, int]:
    """Effect -> calls that reached the ledger more than once."""
    times = Counter((effect.effect, effect.key) for effect in evidence.ledger)
    found = Counter(effect for (effect, _), number in times.items() if number > 1)
    return {effect: found[effect] for effect in ("read", "idempotent", "once")}


def summary(evidence: Evidence, violations: Sequence[Violation], *, seconds: float) -> str:
    history = evidence.history
    kills = sum(history.kills[kind] for kind in KILLS)
    faults = sum(history.kills.values()) - kills
    return (
        f"chaos: {kills} kills and {faults} other faults under {len(evidence.journals)} sessions and "
        f"{len(history.messages)} messages in {seconds:.0f} s: {len(violations)} violations"
    )


def report(evidence: Evidence, violations: Sequence[Violation], *, seed: int, seconds: float, nats: bool) -> str:
    history, found = evidence.history, list(takeovers(evidence))
    return "\n".join(
        [
            "# Report of a chaos run",
            "",
            f"Seed {seed}, hints over {'NATS' if nats else 'Postgres'}, a lease of {evidence.lease:g} s. "
            + summary(evidence, violations, seconds=seconds)
            + ".",
            "",
            *_table("faults", history.kills.items()),
            *_table("kill points", ((one.name, history.points[one.name]) for one in POINTS)),
            *_table("sessions of clients", history.sessions.items()),
            *_table(
                "calls that reached the ledger",
                [
                    ("calls", len({effect.key for effect in evidence.ledger})),
                    *((f"more than once, {effect}", number) for effect, number in duplicates(evidence).items()),
                ],
            ),
            "| from the loss of a worker to `Resumed`, seconds | number | p50 | p95 | p99 | longest |",
            "|---|---|---|---|---|---|",
            *(_times(kind, found, alone=alone) for kind in ("killed", "frozen") for alone in (True, False)),
            "",
            f"Followers connected {history.reconnects} times to {len(history.streams)} sessions. "
            f"{len(history.held)} sessions waited through the faults for an answer.",
            "",
            "## Violations",
            "",
            *([f"- {violation}" for violation in violations] or ["None."]),
            "",
        ]
    )


def _table(title: str, rows: Iterable[tuple[str, int]]) -> list[str]:
    return [f"| {title} | |", "|---|---|", *(f"| {name} | {number} |" for name, number in rows), ""]


def _times(kind: str, found: Sequence[Takeover], *, alone: bool) -> str:
    """`alone`: of takeovers that nothing else disturbed."""
    seconds = [one.seconds for one in found if one.kind == kind and not (alone and one.is_disturbed)]
    shares = " | ".join(f"{percentile(seconds, share):.2f}" for share in (0.5, 0.95, 0.99, 1.0)) if seconds else "| | |"
    return f"| {kind}, {'nothing else at the same time' if alone else 'all'} | {len(seconds)} | {shares} |"
