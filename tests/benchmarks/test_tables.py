"""Numbers and tables of every report."""

from __future__ import annotations

import pytest

from benchmarks.tables import number, table


@pytest.mark.parametrize(
    ("value", "shown"), [(204_345.2, "204,345"), (18.24, "18.2"), (1.234, "1.23"), (0.04512, "0.0451"), (0, "0")]
)
def test_three_digits_count(value: float, shown: str) -> None:
    """The same in every table."""
    assert number(value) == shown


def test_a_cell_stays_one_cell() -> None:
    """Lines and bars in it end neither the row nor the cell."""
    assert table(("case", "rate"), [("a\nb | c", "1")]).splitlines()[-1] == "| a b \\| c | 1 |"
