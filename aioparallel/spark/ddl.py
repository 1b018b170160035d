"""Parses schemas written as DDL ("url string, tries array<int> NOT NULL") without a JVM.

PySpark's ``StructType.fromDDL`` asks the JVM or a Connect server. Tests of handlers have neither, and query functions
of declared pipelines may not ask them. The grammar is that of Spark's SQL reference, "data types", without types that
Python does not support (variants, intervals, collations). A test compares the parsed types with Spark's.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final, TypeVar

from pyspark.sql import types

from aioparallel.records.errors import ConfigurationError

__all__ = ["read_fields", "read_type"]

_SIMPLE: Final[dict[str, Callable[[], types.DataType]]] = {
    "boolean": types.BooleanType,
    "tinyint": types.ByteType,
    "byte": types.ByteType,
    "smallint": types.ShortType,
    "short": types.ShortType,
    "int": types.IntegerType,
    "integer": types.IntegerType,
    "bigint": types.LongType,
    "long": types.LongType,
    "float": types.FloatType,
    "real": types.FloatType,
    "double": types.DoubleType,
    "string": types.StringType,
    "binary": types.BinaryType,
    "date": types.DateType,
    "timestamp": types.TimestampType,
    "timestamp_ltz": types.TimestampType,
    "timestamp_ntz": types.TimestampNTZType,
    "decimal": types.DecimalType,
    "dec": types.DecimalType,
    "numeric": types.DecimalType,
    "void": types.NullType,
}
_KNOWN: Final = (
    "boolean, tinyint, smallint, int, bigint, float, double, decimal(p, s), string, binary, date, timestamp, "
    "timestamp_ntz, array<...>, map<..., ...> and struct<...>"
)
_COLUMNS: Final = 'columns and their types, like "tailnum string, delay int"'
_TYPE: Final = 'a type, like "string" or "struct<status int, body string>"'
_TOKEN: Final = re.compile(r"\s*(`(?:[^`]|``)+`|'(?:[^'\\]|\\.|'')*'|\"(?:[^\"\\]|\\.|\"\")*\"|\w+|[<>(),:])")


_T = TypeVar("_T")


class _Unreadable(Exception):
    pass


def read_fields(option: str, text: str) -> types.StructType:
    """Parse columns: ``name type, name type, ...``. Raises ConfigurationError for ``option``."""
    return _read(option, text, _COLUMNS, lambda reader: types.StructType(reader.fields(None)))


def read_type(option: str, text: str) -> types.DataType:
    """Parse a type, or columns as the type of a struct. Raises ConfigurationError for ``option``."""

    def read(reader: _Reader) -> types.DataType:
        if reader.peek(1) in (None, "<", "("):
            return reader.type()
        return types.StructType(reader.fields(None))

    return _read(option, text, _TYPE, read)


def _read(option: str, text: str, wanted: str, read: Callable[[_Reader], _T]) -> _T:
    try:
        reader = _Reader(text)
        given = read(reader)
        reader.expect_end()
    except _Unreadable as error:
        raise ConfigurationError(option, text, f"must be {wanted}: {error}") from None
    return given


class _Reader:
    """Reads token by token."""

    def __init__(self, text: str) -> None:
        self._tokens: list[str] = []
        self._next = 0
        position = 0
        while position < len(text.rstrip()):
            found = _TOKEN.match(text, position)
            if found is None:
                raise _Unreadable(f"{text[position:].strip()[:20]!r} is not part of a schema")
            self._tokens.append(found[1])
            position = found.end()

    def peek(self, ahead: int = 0) -> str | None:
        """The next token, or a later one; None at the end."""
        return self._tokens[self._next + ahead] if self._next + ahead < len(self._tokens) else None

    def take(self) -> str:
        token = self.peek()
        if token is None:
            raise _Unreadable("it ends too early")
        self._next += 1
        return token

    def skip(self, *wanted: str) -> bool:
        """Take these words if they come next. Returns whether they did."""
        if all((self.peek(ahead) or "").upper() == word for ahead, word in enumerate(wanted)):
            self._next += len(wanted)
            return True
        return False

    def expect(self, wanted: str) -> None:
        if not self.skip(wanted):
            raise _Unreadable(f"{wanted!r} is expected, found {self.peek() or 'the end'!r}")

    def expect_end(self) -> None:
        if (left := self.peek()) is not None:
            raise _Unreadable(f"{left!r} is left over")

    def fields(self, end: str | None) -> list[types.StructField]:
        if end is None and self.peek() is None:
            raise _Unreadable("it names no column")
        found = [self.field()] if self.peek() != end else []
        while found and self.skip(","):
            found.append(self.field())
        if end is not None:
            self.expect(end)
        names = [field.name.lower() for field in found]
        if twice := next((name for name in names if names.count(name) > 1), None):
            raise _Unreadable(f"{twice!r} is named twice")
        return found

    def field(self) -> types.StructField:
        name = self.name()
        self.skip(":")
        kind = self.type()
        nullable = not self.skip("NOT", "NULL")
        metadata = {"comment": self.text()} if self.skip("COMMENT") else None
        return types.StructField(name, kind, nullable, metadata)

    def name(self) -> str:
        token = self.take()
        if token.startswith("`"):
            return token[1:-1].replace("``", "`")
        if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", token):
            raise _Unreadable(f"a column's name is expected, found {token!r} (put other names into backticks)")
        return token

    def text(self) -> str:
        token = self.take()
        if token[0] not in "'\"":
            raise _Unreadable(f"a comment in quotes is expected, found {token!r}")
        quote = token[0]
        return re.sub(rf"\\(.)|{quote}({quote})", lambda found: found[1] or found[2], token[1:-1])

    def type(self) -> types.DataType:
        word = self.take()
        lower = word.lower()
        if lower in ("decimal", "dec", "numeric") and self.skip("("):
            return self._decimal()
        if lower == "array":
            self.expect("<")
            element = self.type()
            self.expect(">")
            return types.ArrayType(element)
        if lower == "map":
            self.expect("<")
            key = self.type()
            self.expect(",")
            value = self.type()
            self.expect(">")
            return types.MapType(key, value)
        if lower == "struct":
            self.expect("<")
            fields = self.fields(">")
            if not fields:
                raise _Unreadable("a struct needs fields")
            return types.StructType(fields)
        if lower not in _SIMPLE:
            raise _Unreadable(f"{word!r} is no type that can be used here; there are {_KNOWN}")
        return _SIMPLE[lower]()

    def _decimal(self) -> types.DecimalType:
        precision = self._number()
        scale = self._number() if self.skip(",") else 0
        self.expect(")")
        if not 1 <= precision <= 38 or scale > precision:
            raise _Unreadable(f"decimal({precision}, {scale}) does not exist: at most 38 digits, some of them decimals")
        return types.DecimalType(precision, scale)

    def _number(self) -> int:
        token = self.take()
        if not token.isdecimal():
            raise _Unreadable(f"a number is expected, found {token!r}")
        return int(token)
