"""Draws ``pictures/how-it-works.svg``: a partition, its lanes, the running handlers, the ledger and the commit.

All of it follows from the keys of a few records and from which of them are complete or running. ``make docs`` runs it,
and ``tests/docs/test_picture.py`` fails when the picture is not what this draws.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final

__all__ = ["PICTURE", "drawing"]

PICTURE: Final = Path(__file__).parent / "pictures" / "how-it-works.svg"

_FIRST: Final = 40
_KEYS: Final = "ABCACBACBA"
"""The keys of the records, from offset ``_FIRST`` on."""
_COMPLETE: Final = {40, 42, 43, 44}
_RUNNING: Final = {41, 46, 47}
_OFFSETS: Final = range(_FIRST, _FIRST + len(_KEYS))

_WIDTH: Final = 520
_HEIGHT: Final = 560
_STEP: Final = 51
"""From one record of the partition to the next."""
_BOX: Final = 45
_HANDLERS: Final = 355
"""Where the handlers are, from the left."""
_LANES: Final = 168
"""Where the first lane is, from the top."""
_LANE_STEP: Final = 50
_LEDGER: Final = 370
_COMMIT: Final = 474

_STYLE: Final = """
  .how-it-works { font-family: system-ui, -apple-system, "Segoe UI", sans-serif; font-size: 15px; }
  .how-it-works text { fill: #24292f; }
  .how-it-works .title { font-weight: 600; font-size: 16px; }
  .how-it-works .in-box { fill: #fff; font-weight: 600; text-anchor: middle; }
  .how-it-works .middle { text-anchor: middle; }
  .how-it-works .line { stroke: #6e7781; fill: none; stroke-width: 1.5; }
  .how-it-works .waiting { stroke: #6e7781; fill: none; stroke-width: 1.5; stroke-dasharray: 3 3; }
  .how-it-works .complete { fill: #57606a; }
  .how-it-works .head { fill: #6e7781; }
  .how-it-works .A { fill: #3b5bdb; } .how-it-works .B { fill: #c2410c; } .how-it-works .C { fill: #137a4b; }
  @media (prefers-color-scheme: dark) { .how-it-works text:not(.in-box) { fill: #d0d7de; } }
"""
_DESCRIPTION: Final = (
    "Ten records of a partition with keys A, B and C, at offsets 40 to 49. Each key has a lane. The handlers of 41, 46 "
    "and 47 run at once. 41 is slow, so 45 and 48, which have its key, wait. Records of other keys do not wait. In the "
    "ledger 40, 42, 43 and 44 are complete. The commit is offset 41 with a map that lists 42, 43 and 44 as complete."
)


def drawing() -> str:
    """The picture as SVG."""
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" class="how-it-works" viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img"'
        f' aria-label="{_DESCRIPTION}">',
        f"<style>{_STYLE}</style>",
        *_partition(),
        *_lanes(),
        *_ledger(),
        *_commit(),
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


def _partition() -> Iterator[str]:
    yield _text(5, 20, "One partition, in the order of its log", "title")
    for offset in _OFFSETS:
        yield _record(_left(offset), 58, offset)
        yield _text(_left(offset) + _BOX / 2, 50, str(offset), "middle")
    yield _arrow(_WIDTH / 2, 104, _WIDTH / 2, 128)


def _lanes() -> Iterator[str]:
    yield _text(5, 150, "A lane for each key", "title")
    yield _text(_HANDLERS, 150, "Handlers in flight", "title")
    for number, key in enumerate(sorted(set(_KEYS))):
        top = _LANES + number * _LANE_STEP
        yield _text(5, top + 25, f"key {key}")
        yield f'<rect class="line" x="60" y="{top}" width="250" height="40" rx="8"/>'
        of_key = [offset for offset in _OFFSETS if _key(offset) == key and offset not in _COMPLETE]
        waiting = [offset for offset in of_key if offset not in _RUNNING]
        for place, offset in enumerate(waiting):
            yield _numbered(260 - place * _STEP, top + 4, offset, 32)
        yield _arrow(314, top + 20, _HANDLERS - 6, top + 20)
        (running,) = (offset for offset in of_key if offset in _RUNNING)
        yield f'<rect class="{key}" x="{_HANDLERS}" y="{top}" width="{_WIDTH - 5 - _HANDLERS}" height="40" rx="20"/>'
        shown = f"{running}: slow" if running == min(_RUNNING) else f"{running}"
        yield _text((_HANDLERS + _WIDTH - 5) / 2, top + 25, shown, "in-box")
    yield _arrow(_WIDTH / 2, _LANES + 3 * _LANE_STEP, _WIDTH / 2, _LANES + 3 * _LANE_STEP + 24)


def _ledger() -> Iterator[str]:
    yield _text(5, _LEDGER - 8, "The ledger: complete ✓, running ▸, waiting", "title")
    for offset in _OFFSETS:
        x, y = _left(offset), _LEDGER + 4
        if offset in _COMPLETE:
            yield f'<rect class="complete" x="{x}" y="{y}" width="{_BOX}" height="38" rx="6"/>'
            yield _text(x + _BOX / 2, y + 25, f"{offset} ✓", "in-box")
        elif offset in _RUNNING:
            yield f'<rect class="{_key(offset)}" x="{x}" y="{y}" width="{_BOX}" height="38" rx="6"/>'
            yield _text(x + _BOX / 2, y + 25, f"{offset} ▸", "in-box")
        else:
            yield f'<rect class="waiting" x="{x}" y="{y}" width="{_BOX}" height="38" rx="6"/>'
            yield _text(x + _BOX / 2, y + 25, str(offset), "middle")


def _commit() -> Iterator[str]:
    below = _LEDGER + 42
    base = next(offset for offset in _OFFSETS if offset not in _COMPLETE)
    above = sorted(offset for offset in _COMPLETE if offset > base)
    left, right = _left(above[0]), _left(above[-1]) + _BOX
    edge = _left(base) - (_STEP - _BOX) / 2
    yield f'<path class="line" d="M{edge} {_LEDGER - 2} V{_COMMIT}"/>'
    yield f'<path class="line" d="M{left} {below + 6} v8 H{right} v-8"/>'
    middle = (left + right) / 2
    yield _arrow(middle, below + 14, middle, _COMMIT - 4)
    yield f'<rect class="line" x="5" y="{_COMMIT}" width="{_WIDTH - 10}" height="46" rx="8"/>'
    yield _text(18, _COMMIT + 29, f"offset {base}", "title")
    listed = f"{', '.join(map(str, above[:-1]))} and {above[-1]}"
    yield _text(118, _COMMIT + 29, f"map: {listed} are complete", "title")
    yield _text(right + 20, _COMMIT - 12, "The commit", "title")
    yield _text(5, _COMMIT + 76, f"After a crash, {base} runs again. {listed} do not.")


def _key(offset: int) -> str:
    return _KEYS[offset - _FIRST]


def _left(offset: int) -> int:
    return 5 + (offset - _FIRST) * _STEP


def _record(x: float, y: float, offset: int) -> str:
    key = _key(offset)
    return f'<rect class="{key}" x="{x}" y="{y}" width="{_BOX}" height="38" rx="6"/>' + _text(
        x + _BOX / 2, y + 25, key, "in-box"
    )


def _numbered(x: float, y: float, offset: int, height: int) -> str:
    return f'<rect class="{_key(offset)}" x="{x}" y="{y}" width="{_BOX}" height="{height}" rx="6"/>' + _text(
        x + _BOX / 2, y + 22, str(offset), "in-box"
    )


def _text(x: float, y: float, text: str, kind: str = "") -> str:
    return f'<text{f" class={chr(34)}{kind}{chr(34)}" if kind else ""} x="{x:g}" y="{y:g}">{text}</text>'


def _arrow(x: float, y: float, to_x: float, to_y: float) -> str:
    """A line with a head, straight down or to the right."""
    line = f'<path class="line" d="M{x:g} {y:g} L{to_x:g} {to_y:g}"/>'
    tip = f"M{to_x:g} {to_y:g} "
    return line + f'<path class="head" d="{tip}{"l-8 -5 v10 z" if y == to_y else "l-5 -8 h10 z"}"/>'


if __name__ == "__main__":
    PICTURE.write_text(drawing())
