"""Rows with values that Python cannot represent: such a row fails, and the others of its batch go on.

Spark's strings may hold any bytes, its years exceed 1 to 9999, and its maps may have a key twice. An Arrow batch is
converted to lists in one step, which is fast; only if that raises, the row is searched for.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator
from typing import Any, Final, Generic, NoReturn, TypeVar

import pyarrow as pa

from aioparallel.records.errors import UnreadableRow

__all__ = ["LaneKey", "Unreadable", "readable_parts"]

T = TypeVar("T")

_UNREADABLE: Final = (ValueError, KeyError, TypeError, OverflowError, pa.ArrowException)
_SHOWN: Final = 60


class Unreadable:
    """Replaces a row, or the arguments of a call."""

    __slots__ = ("columns", "error", "readable")

    def __init__(self, columns: Iterable[tuple[str | int, Any]], values_of: Callable[[Any], list[Any]]) -> None:
        self.columns: list[Any] = []
        """The columns as Arrow arrays of one value."""
        self.readable: dict[str | int, Any] = {}
        """Columns or arguments that Python can represent."""
        wrong = []
        for name, column in columns:
            self.columns.append(column)
            try:
                self.readable[name] = values_of(column)[0]
            except _UNREADABLE as error:
                what = f"column {name!r}" if isinstance(name, str) else f"argument {name}"
                wrong.append(f"{what} {_why(column, error)}")
        self.error = UnreadableRow("; ".join(wrong) or "Python cannot represent its values together")

    def __getitem__(self, name: object) -> NoReturn:
        """Raises UnreadableRow, so a row whose key is read fails before its handler is called."""
        raise self.error


def readable_parts(
    given: T, count: int, part: Callable[[T, int, int], T], read: Callable[[T], list[Any]]
) -> Iterator[list[Any] | T]:
    """Yields the rows of ``given`` in lists, and for each row that cannot be read that row alone."""
    try:
        rows = read(given)
    except MemoryError:
        raise
    except _UNREADABLE:
        if count == 1:
            yield given
            return
        half = count // 2
        yield from readable_parts(part(given, 0, half), half, part, read)
        yield from readable_parts(part(given, half, count - half), count - half, part, read)
    else:
        yield rows


class LaneKey(Generic[T]):
    """The key of an item, equal for values that Spark holds equal."""

    __slots__ = ("key", "one_lane")

    def __init__(self, key: Callable[[T], Hashable] | None, one_lane: Callable[[Hashable], Hashable]) -> None:
        self.key = key
        self.one_lane = one_lane

    def __call__(self, item: T | Unreadable) -> Hashable:
        """Raises UnreadableRow, so such an item fails before its handler is called."""
        if type(item) is Unreadable:
            raise item.error
        if self.key is None:
            return None
        key = self.key(item)  # type: ignore[arg-type]  # called for each row: no cast
        return key if type(key) is str else self.one_lane(key)


def _why(column: Any, error: Exception) -> str:
    if isinstance(error, UnicodeDecodeError):
        found = f"{error.object!r:.{_SHOWN}}"
        return f"is text that is not UTF-8, {found}: read it as binary, or through F.make_valid_utf8"
    if isinstance(error, KeyError):
        return "is a map with a key twice, which a dict cannot hold: F.map_entries makes an array of it"
    return f"is a value of {column.type} that Python cannot represent ({error}): cast it to a string"
