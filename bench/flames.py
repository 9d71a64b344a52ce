"""Draws stacks as a flame graph: each bar is a function, as wide as the share of samples in which it was running."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from html import escape
from typing import Final

WIDTH: Final = 1800
HEIGHT: Final = 16
NARROWEST: Final = 0.6
"""Bars with fewer pixels are left out."""
CHARACTER: Final = 6.6
"""Pixels of one, about."""


@dataclass
class _Bar:
    samples: int = 0
    above: dict[str, "_Bar"] = field(default_factory=dict)


def drawn(stacks: Counter[str]) -> str:
    """The graph as SVG; a tooltip tells the whole name of each function and its share."""
    root = _Bar()
    for stack, samples in stacks.items():
        bar = root
        bar.samples += samples
        for name in stack.split(";"):
            bar = bar.above.setdefault(name, _Bar())
            bar.samples += samples
    bars = list(_bars(root, "all", 0.0, 0, WIDTH / max(1, root.samples)))
    rows = 1 + max(row for row, _ in bars)
    placed = "".join(text.format(y=(rows - 1 - row) * HEIGHT) for row, text in bars)
    size = f'width="{WIDTH}" height="{rows * HEIGHT}"'
    return f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="monospace" font-size="11">{placed}</svg>\n'


def _bars(bar: _Bar, name: str, x: float, row: int, scale: float) -> Iterator[tuple[int, str]]:
    width = bar.samples * scale
    if width < NARROWEST:
        return
    shown = escape(name[: int(width / CHARACTER)]).replace("{", "{{").replace("}", "}}")
    told = escape(f"{name}: {100 * width / WIDTH:.1f} %").replace("{", "{{").replace("}", "}}")
    hue = 20 + hash(name.partition(" ")[2].partition("/")[0]) % 40
    yield (
        row,
        f'<g transform="translate({x:.1f},{{y}})"><title>{told}</title>'
        f'<rect width="{width:.1f}" height="{HEIGHT - 1}" fill="hsl({hue},80%,70%)"/>'
        f'<text x="2" y="{HEIGHT - 4}">{shown}</text></g>',
    )
    for inner, one in sorted(bar.above.items()):
        yield from _bars(one, inner, x, row + 1, scale)
        x += one.samples * scale
