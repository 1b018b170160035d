"""Nobody types a measured figure into a page: figures stand in blocks that ``python -m benchmarks`` fills, and records
of a day on a decision page."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.pages import without_blocks

from .blocks import ROOT, pages

_NUMBER = r"\d[\d,.]*"
PATTERNS = {
    "a rate": re.compile(rf"{_NUMBER} ?(?:[A-Za-z]+ ?)?/s\b"),
    "a time of one record": re.compile(rf"{_NUMBER} ?(?:µs|us|ns|(?:micro|nano)seconds?)\b"),
    "a part of a bound": re.compile(
        rf"{_NUMBER} ?%? (?:of|times) (?:the|what the|a|its) (?:bare |plain |event )?"
        r"(?:ceiling|bound|loop|rate|getmany|producer|java)",
        re.IGNORECASE,
    ),
    "something measured": re.compile(
        r"\b(?:measured|medians?|seen on|in one run)\b(?:[^.]|\.(?=\d))*?"
        rf"{_NUMBER} ?(?:ms|s|minutes|[kMG]i?B|%|times)\b",
        re.IGNORECASE,
    ),
}
_COLUMN = re.compile(r"/s\b|µs|\bus\b|microseconds")

# What is no measurement: the load of an example, a limit that a test holds.
GIVEN = {
    "docs/failures.md": {"1,000 records/s"},
}


def typed_figures(text: str) -> Iterator[str]:
    """What looks like a measured figure outside generated blocks and code.

    It finds what has the unit of a measurement beside it (records/s, µs), what is said to be measured in the same
    sentence, and tables with such a unit in their head. It does not find a figure that has no such unit or word:
    seconds and megabytes are as often limits and examples, and a bare ratio in a sentence is any number.
    """
    prose = re.sub(r"```.*?```", "", without_blocks(text), flags=re.DOTALL)
    for paragraph in re.split(r"\n\s*\n", prose):
        if paragraph.lstrip().startswith("|"):
            yield from _in_table(paragraph.strip().splitlines())
        line = " ".join(paragraph.split())
        yield from (found[0] for pattern in PATTERNS.values() for found in pattern.finditer(line))


def _in_table(rows: list[str]) -> Iterator[str]:
    head, *body = [[cell.strip() for cell in row.strip().strip("|").split("|")] for row in rows]
    for number, name in enumerate(head):
        if _COLUMN.search(name):
            yield from (row[number] for row in body if number < len(row) and re.search(r"\d", row[number]))


PAGES = [page for page in pages() if page.parent.name != "decisions"]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_no_figure_is_typed(page: Path) -> None:
    """Outside blocks, as far as a pattern sees it."""
    given = GIVEN.get(str(page.relative_to(ROOT)), set())
    found = [figure for figure in typed_figures(page.read_text()) if figure not in given]
    assert found == [], "let a program of benchmarks/ measure it, or record it, with its date, in docs/decisions"


@pytest.mark.parametrize(
    "text",
    [
        "made 85,199 records/s on two cores",
        "no-op handlers: 86,300/s",
        "about 10 µs of CPU, or 926 ns",
        "a record costs about 2.3 microseconds",
        "makes 0.63 of the ceiling",
        "2.3 times a plain loop",
        "Measured on two cores: ready again within 1 s.",
        "a hold of 27 ms, and a median\nof 6 ms.",
        "| | rows/s |\n|---|---|\n| with the store | 5,200 |",
        "<!-- figures: rate -->\n\n5,200/s\n\n<!-- end of figures -->\n\nand 5,200/s",
    ],
)
def test_a_typed_figure_is_found(text: str) -> None:
    """In a sentence, over two lines, in a table, behind a block."""
    assert list(typed_figures(text))


@pytest.mark.parametrize(
    "text",
    [
        "<!-- figures: rate -->\n\n5,200/s\n\n<!-- end of figures -->",
        "```sh\nmake bench   # 5,200/s\n```",
        "`commit_interval` is 1.0 s, at most 4,096 characters, 64 MiB.",
        "| handlers | rows/s |\n|---|---|\n| with the store | see below |",
    ],
)
def test_what_is_no_typed_figure_is_not_found(text: str) -> None:
    """Generated blocks, code, limits and defaults."""
    assert list(typed_figures(text)) == []


def test_exceptions_are_needed() -> None:
    """None is left of a sentence that is gone."""
    for page, given in GIVEN.items():
        assert given <= set(typed_figures((ROOT / page).read_text()))
