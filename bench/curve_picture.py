"""Draws cost curves: a panel for each thing that grows, bars of CPU a step, and the limit of 1.3 times the first."""

from collections.abc import Iterator, Sequence
from html import escape
from typing import Final

Figure = tuple[int, float, float, float]
"""How many there were, the milliseconds of CPU a step of Longhouse and of Postgres, and how many times the first."""

PANEL, HEIGHT, TOP, BOTTOM, LEFT = 250, 300, 56, 56, 16
BAR: Final = 46
MOST: Final = 1.3
OURS, POSTGRES, INK, LINE = "#2f6f8f", "#e0a458", "#333", "#b03a2e"


def drawn(curves: Sequence[tuple[str, Sequence[Figure]]]) -> str:
    highest = max(max(cpu + postgres for _, cpu, postgres, _ in figures) for _, figures in curves)
    highest = 1.1 * max(highest, *(MOST * (figures[0][1] + figures[0][2]) for _, figures in curves), 0.1)
    width = PANEL * len(curves) + LEFT
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {HEIGHT}" width="{width}" height="{HEIGHT}"'
        ' font-family="sans-serif" font-size="12">',
        f'<rect width="{width}" height="{HEIGHT}" fill="#fff"/>',
        *_legend(),
    ]
    for nth, (what, figures) in enumerate(curves):
        parts.append(f'<g transform="translate({LEFT + nth * PANEL},0)">')
        parts += _panel(what, figures, (HEIGHT - TOP - BOTTOM) / highest)
        parts.append("</g>")
    return "\n".join([*parts, "</svg>\n"])


def _legend() -> Iterator[str]:
    for x, color, text in ((LEFT, OURS, "Longhouse"), (LEFT + 96, POSTGRES, "Postgres")):
        yield f'<rect x="{x}" y="10" width="12" height="12" fill="{color}"/>'
        yield f'<text x="{x + 18}" y="20" fill="{INK}">{text}</text>'
    x = LEFT + 190
    yield f'<path d="M{x} 16h24" stroke="{LINE}" stroke-dasharray="4 3"/>'
    yield f'<text x="{x + 30}" y="20" fill="{INK}">{MOST} times the first; ms of CPU a step</text>'


def _panel(what: str, figures: Sequence[Figure], scale: float) -> Iterator[str]:
    ground, gap = HEIGHT - BOTTOM, (PANEL - 30) / len(figures)
    limit = ground - MOST * (figures[0][1] + figures[0][2]) * scale
    yield f'<path d="M0 {limit:.1f}H{PANEL - 30}" stroke="{LINE}" stroke-dasharray="4 3"/>'
    yield f'<path d="M0 {ground}H{PANEL - 30}" stroke="{INK}"/>'
    for nth, (size, cpu, postgres, times) in enumerate(figures):
        x, ours, total = nth * gap + (gap - BAR) / 2, cpu * scale, (cpu + postgres) * scale
        yield f'<rect x="{x:.1f}" y="{ground - ours:.1f}" width="{BAR}" height="{ours:.1f}" fill="{OURS}"/>'
        yield (
            f'<rect x="{x:.1f}" y="{ground - total:.1f}" width="{BAR}" height="{total - ours:.1f}" fill="{POSTGRES}"/>'
        )
        middle = x + BAR / 2
        told = f"{cpu + postgres:.1f} ms" + (f" · {times:.2f} x" if nth else "")
        yield _text(middle, ground - total - 6, told)
        yield _text(middle, ground + 18, f"{size:,}")
    yield _text((PANEL - 30) / 2, ground + 40, what)


def _text(x: float, y: float, text: str) -> str:
    # With a white edge: it may lie on the line of the limit.
    edge = 'paint-order="stroke" stroke="#fff" stroke-width="4"'
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="middle" fill="{INK}" {edge}>{escape(text)}</text>'
