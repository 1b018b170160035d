"""The figures on the pages are those of the stored results."""

from __future__ import annotations

from pathlib import Path

import pytest

from aioparallel.records.errors import AioparallelError
from benchmarks import pages
from benchmarks.blocks import figures
from benchmarks.pages import RESULTS

FIGURES = {"rate": "70,000 records/s", "goals": "| goal | seen |"}
PAGE = """\
# A page

<!-- figures: rate -->

70,000 records/s

<!-- end of figures -->

Words.
"""


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A project with two pages; both are right."""
    (tmp_path / "docs").mkdir()
    (tmp_path / "README.md").write_text("# Nothing measured\n")
    (tmp_path / "docs" / "page.md").write_text(PAGE)
    return tmp_path


def test_the_pages_say_what_the_results_say() -> None:
    """Every block of every page is what the stored results make of it."""
    assert pages.differences(figures(RESULTS), pages.ROOT) == [], "run `python -m benchmarks --report`"


def test_every_block_is_on_a_page() -> None:
    """None is made for nobody."""
    marks = "".join(page.read_text() for page in pages.pages(pages.ROOT))
    assert [name for name in figures(RESULTS) if f"<!-- figures: {name} -->" not in marks] == []


def test_right_pages_have_no_difference(root: Path) -> None:
    """Neither those with a block nor those without."""
    assert pages.differences(FIGURES, root) == []
    assert pages.write(FIGURES, root) == []


def test_a_figure_changed_by_hand_is_a_difference(root: Path) -> None:
    """It is named with its page, and writing puts the measured figure back."""
    page = root / "docs" / "page.md"
    page.write_text(PAGE.replace("70,000", "90,000"))
    assert pages.differences(FIGURES, root) == ["docs/page.md: block rate is not what the results say"]
    assert pages.write(FIGURES, root) == [page]
    assert page.read_text() == PAGE


def test_new_results_are_a_difference(root: Path) -> None:
    """A page that was right is stale after the next run."""
    assert pages.differences({**FIGURES, "rate": "60,000 records/s"}, root) == [
        "docs/page.md: block rate is not what the results say"
    ]


@pytest.mark.parametrize(
    ("page", "problem"),
    [
        (PAGE.replace(": rate", ": rates"), "docs/page.md: block rates is unknown; there are rate, goals"),
        (PAGE.replace("<!-- end of figures -->", ""), "<!-- figures: rate --> has no other mark"),
        (PAGE.replace("<!-- figures: rate -->", ""), "<!-- end of figures --> has no other mark"),
        (PAGE.replace("<!-- end", "See <!-- end"), "<!-- figures: rate --> has no other mark"),
        (PAGE.replace("70,000", "<!-- figures: goals -->"), "<!-- figures: rate --> has no other mark"),
    ],
    ids=["unknown", "no end", "no begin", "not on a line of its own", "one within another"],
)
def test_a_block_that_cannot_be_filled_is_a_difference(root: Path, page: str, problem: str) -> None:
    """It is named, and nothing is written."""
    (root / "README.md").write_text(PAGE.replace("70,000", "90,000"))
    (root / "docs" / "page.md").write_text(page)
    assert any(problem in one for one in pages.differences(FIGURES, root))
    before = (root / "README.md").read_text()
    with pytest.raises(AioparallelError):
        pages.write(FIGURES, root)
    assert (root / "README.md").read_text() == before
    assert (root / "docs" / "page.md").read_text() == page
