"""Numbers and tables in Markdown, the same in all reports and pages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

__all__ = ["NOTHING", "cell", "escaped", "number", "ratio", "rows_table", "table"]

NOTHING: Final = "-"


def table(header: Sequence[str], rows: Sequence[Sequence[str]], words: int = 1, last: str = "---:") -> str:
    """A table with so many columns of words, then numbers aligned to the right."""
    rule = ["---" if column < words else "---:" for column in range(len(header) - 1)]
    lines = [header, [*rule, last], *rows]
    return "\n".join("| " + " | ".join(escaped(text) for text in line) + " |" for line in lines)


def rows_table(rows: Sequence[Mapping[str, object]]) -> str:
    """A table of plain data, with a column for each name."""
    header = list(dict.fromkeys(name for row in rows for name in row))
    is_words = [any(isinstance(row.get(name), str) for row in rows) for name in header]
    words = is_words.index(False) if False in is_words else len(header)
    lines = [tuple(cell(row.get(name)) for name in header) for row in rows]
    return table(header, lines, words, "---" if is_words[-1] else "---:")


def escaped(text: str) -> str:
    """The text on one line, with bars escaped."""
    return " ".join(text.split()).replace("|", "\\|")


def number(value: float) -> str:
    """Three significant digits, thousands with a comma: 204,345, 18.2, 0.0451."""
    size = abs(value)
    if size >= 100 or value == 0 or isinstance(value, int):
        return f"{value:,.0f}"
    if size >= 10:
        return f"{value:.1f}"
    return f"{value:.2f}" if size >= 1 else f"{value:#.3g}"


def ratio(value: float) -> str:
    """Two decimals."""
    return f"{value:.2f}" if value < 100 else f"{value:,.0f}"


def cell(value: object) -> str:
    """A value of plain data as text."""
    match value:
        case None:
            return NOTHING
        case int() | float():
            return number(value)
        case list() | tuple():
            return ", ".join(map(cell, value))
        case _:
            return str(value)
