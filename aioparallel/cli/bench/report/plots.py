"""Which plots are drawn from which cases."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

from aioparallel.cli.bench.model import Case
from aioparallel.cli.bench.report.bars import draw_maps, draw_throughput, draw_throughput_and_memory
from aioparallel.cli.bench.report.curves import count_in_name, draw_cost, draw_keys
from aioparallel.cli.bench.report.dots import draw_latency
from aioparallel.cli.bench.report.wording import GROUPS

__all__ = ["draw"]

Draw = Callable[[list[Case], str, Path], None]


def draw(cases: Sequence[Case], folder: Path) -> list[Path]:
    """Draw all that these cases allow into the folder; the files. Those of before that they do not allow are removed.

    A plot's name begins with the letter of its group.
    """
    drawn = []
    for name, (fits, draw_one) in PLOTS.items():
        path = folder / name
        fitting = [case for case in cases if case.group == name[0] and fits(case)]
        if fitting:
            draw_one(fitting, GROUPS[name[0]], path)
            drawn.append(path)
        else:
            path.unlink(missing_ok=True)
    return drawn


def has_rates(case: Case) -> bool:
    """Whether there is a bar to draw."""
    return any(entry.rate is not None for entry in case.entries)


def patterns_of(case: Case) -> list[dict[str, Any]]:
    """The patterns of offset maps that are complete enough to be drawn."""
    wanted = {"pattern", "encode_ms", "decode_ms", "characters"}
    return [row for row in case.figures.get("patterns", []) if wanted <= row.keys()]


def draw_patterns(cases: Sequence[Case], title: str, path: Path) -> None:
    """Of all cases that have such."""
    draw_maps([row for case in cases for row in patterns_of(case)], title, path)


PLOTS: Final[dict[str, tuple[Callable[[Case], bool], Draw]]] = {
    "a-throughput.png": (has_rates, draw_throughput),
    "b-keys.png": (lambda case: has_rates(case) and count_in_name(case, "b-key-") is not None, draw_keys),
    "c-throughput.png": (has_rates, draw_throughput_and_memory),
    "d-throughput.png": (has_rates, draw_throughput),
    "e-cost.png": (has_rates, draw_cost),
    "f-latency.png": (lambda case: "arrival_to_handler_p99_ms" in case.figures, draw_latency),
    "g-maps.png": (lambda case: bool(patterns_of(case)), draw_patterns),
}
