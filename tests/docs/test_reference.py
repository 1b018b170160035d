"""docs/reference.md is made from the code."""

from __future__ import annotations

from docs import option_fields
from docs.log_lines import log_lines
from docs.reference import PAGE, page


def test_the_page_is_what_the_code_says() -> None:
    """No option, figure, problem or log action is missing there, none is left that is gone."""
    assert PAGE.read_text() == page(), "stale: run `make docs`"


def test_the_types_of_keywords_are_those_of_the_dataclasses() -> None:
    """The TypedDicts that constructors and functions take are up to date."""
    stale = [path.name for path, text in option_fields.modules() if path.read_text() != text]
    assert stale == [], "run `make docs`"


def test_each_line_in_the_log_has_an_action() -> None:
    """And a level, both written in the code in a way that the page can read. (The command line logs for itself.)"""
    lines = [line for line in log_lines() if not line.module.startswith("aioparallel.cli.")]
    assert len(lines) > 50
    assert [line for line in lines if not line.actions or not line.levels] == []
