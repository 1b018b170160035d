"""Schemas and types that users give, as Spark's objects or as DDL ("url string, tries array<int> NOT NULL").

PySpark's ``StructType.fromDDL`` asks the JVM or a Connect server. Tests of handlers have neither, and query functions
of declared pipelines may not ask them. The grammar is that of Spark's SQL reference, "data types", without types that
Python does not support (variants, intervals, collations). A test compares the parsed types with Spark's.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Final, TypeVar

from pyspark.sql import types

from aioparallel.records.errors import ConfigurationError

__all__ = ["BINARY_COLLATION", "check_readable", "columns_of", "has_collation", "type_of"]

_T = TypeVar("_T")

BINARY_COLLATION: Final = "UTF8_BINARY"
"""The collation by which texts are equal if their bytes are."""
_NAMES: Final[dict[type[types.DataType], str]] = {
    types.BooleanType: "boolean",
    types.ByteType: "tinyint byte",
    types.ShortType: "smallint short",
    types.IntegerType: "int integer",
    types.LongType: "bigint long",
    types.FloatType: "float real",
    types.DoubleType: "double",
    types.StringType: "string",
    types.BinaryType: "binary",
    types.DateType: "date",
    types.TimestampType: "timestamp timestamp_ltz",
    types.TimestampNTZType: "timestamp_ntz",
    types.DecimalType: "decimal dec numeric",
    types.NullType: "void",
}
_SIMPLE: Final = {name: kind for kind, names in _NAMES.items() for name in names.split()}
_KNOWN: Final = (
    "boolean, tinyint, smallint, int, bigint, float, double, decimal(p, s), string, binary, date, timestamp, "
    "timestamp_ntz, array<...>, map<..., ...> and struct<...>"
)
_COLUMNS: Final = 'columns and their types, like "tailnum string, delay int"'
_TYPE: Final = 'a type, like "string" or "struct<status int, body string>"'
# A token, or another character.
_TOKEN: Final = re.compile(r"(`(?:[^`]|``)+`|'(?:[^'\\]|\\.|'')*'|\"(?:[^\"\\]|\\.|\"\")*\"|\w+|[<>(),:])|(\S)")


class _NoSchema(Exception):
    pass


def columns_of(option: str, schema: str | types.StructType) -> types.StructType:
    """The columns of ``schema``, as in ``name type, name type, ...``. Raises ConfigurationError for ``option``."""
    given: object = schema
    if isinstance(given, str):
        given = _parsed(option, given, _COLUMNS, lambda parser: types.StructType(parser.fields(None)))
    if not isinstance(given, types.StructType) or not given.fields:
        raise ConfigurationError(option, schema, 'must be columns: "tailnum string, delay int", or a StructType')
    return _checked(option, given)


def type_of(option: str, returns: str | types.DataType) -> types.DataType:
    """The type of ``returns``; columns are a struct. Raises ConfigurationError for ``option``."""

    def parse(parser: _Parser) -> types.DataType:
        is_type = parser.peek(1) in (None, "<", "(")
        return parser.type() if is_type else types.StructType(parser.fields(None))

    given: object = _parsed(option, returns, _TYPE, parse) if isinstance(returns, str) else returns
    if not isinstance(given, types.DataType):
        raise ConfigurationError(option, returns, 'must be a type: "string", "struct<status int, body string>", ...')
    return _checked(option, given)


_Kind = TypeVar("_Kind", bound=types.DataType)


def _checked(option: str, kind: _Kind) -> _Kind:
    """Raises ConfigurationError for a type of results that Python cannot represent as Spark does."""
    for part in _parts_of(kind):
        if isinstance(part, types.YearMonthIntervalType):
            raise ConfigurationError(
                option, kind.simpleString(), "has no values in Python: return the months as an int, and cast the column"
            )
        if isinstance(part, types.MapType) and any(map(has_collation, _parts_of(part.keyType))):
            raise ConfigurationError(
                option,
                kind,
                f"has {part.simpleString()}: keys that are equal by the collation would be two in Python; declare "
                "them without a collation",
            )
    return kind


def check_readable(given: types.StructType) -> None:
    """Raises ConfigurationError for a column that pyarrow cannot read: no row could be read."""
    for field in given.fields:
        if any(isinstance(part, types.YearMonthIntervalType) for part in _parts_of(field.dataType)):
            raise ConfigurationError(
                "df",
                field.name,
                f"is {field.dataType.simpleString()}, which Python cannot read: cast it to a string, or leave it out",
            )


def has_collation(kind: types.DataType) -> bool:
    """Whether different texts of this type may be equal."""
    return isinstance(kind, types.StringType) and kind.collation != BINARY_COLLATION


def _parts_of(kind: types.DataType) -> Iterator[types.DataType]:
    """The type, and all types in it."""
    yield kind
    inner: list[types.DataType] = []
    if isinstance(kind, types.ArrayType):
        inner = [kind.elementType]
    elif isinstance(kind, types.MapType):
        inner = [kind.keyType, kind.valueType]
    elif isinstance(kind, types.StructType):
        inner = [field.dataType for field in kind.fields]
    for one in inner:
        yield from _parts_of(one)


def _parsed(option: str, text: str, wanted: str, parse: Callable[[_Parser], _T]) -> _T:
    try:
        parser = _Parser(text)
        given = parse(parser)
        if (left := parser.peek()) is not None:
            raise _NoSchema(f"{left!r} is left over")  # noqa: TRY301
    except _NoSchema as error:
        raise ConfigurationError(option, text, f"must be {wanted}: {error}") from None
    return given


class _Parser:
    """Parses token by token."""

    def __init__(self, text: str) -> None:
        self._tokens: list[str] = []
        self._next = 0
        for found in _TOKEN.finditer(text):
            if found[2]:
                raise _NoSchema(f"{text[found.start() :].strip()[:20]!r} is not part of a schema")
            self._tokens.append(found[1])

    def peek(self, ahead: int = 0) -> str | None:
        """The next token, or a later one; None at the end."""
        return self._tokens[self._next + ahead] if self._next + ahead < len(self._tokens) else None

    def take(self) -> str:
        token = self.peek()
        if token is None:
            raise _NoSchema("it ends too early")
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
            raise _NoSchema(f"{wanted!r} is expected, found {self.peek() or 'the end'!r}")

    def fields(self, end: str | None) -> list[types.StructField]:
        if end is None and self.peek() is None:
            raise _NoSchema("it names no column")
        found = [self.field()] if self.peek() != end else []
        while found and self.skip(","):
            found.append(self.field())
        if end is not None:
            self.expect(end)
        names = [field.name.lower() for field in found]
        if twice := next((name for name in names if names.count(name) > 1), None):
            raise _NoSchema(f"{twice!r} is named twice")
        return found

    def field(self) -> types.StructField:
        name = self.name()
        self.skip(":")
        kind = self.type()
        nullable = not self.skip("NOT", "NULL")
        metadata = {"comment": self.comment()} if self.skip("COMMENT") else None
        return types.StructField(name, kind, nullable, metadata)

    def name(self) -> str:
        token = self.take()
        if token.startswith("`"):
            return token[1:-1].replace("``", "`")
        if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", token):
            raise _NoSchema(f"a column's name is expected, found {token!r} (put other names into backticks)")
        return token

    def comment(self) -> str:
        token = self.take()
        quote = token[0]
        if quote not in "'\"":
            raise _NoSchema(f"a comment in quotes is expected, found {token!r}")
        return re.sub(rf"\\(.)|{quote}({quote})", lambda found: found[1] or found[2], token[1:-1])

    def type(self) -> types.DataType:
        word = self.take()
        lower = word.lower()
        if lower == "array":
            (element,) = self.parts(1)
            return types.ArrayType(element)
        if lower == "map":
            key, value = self.parts(2)
            return types.MapType(key, value)
        if lower == "struct":
            self.expect("<")
            if not (fields := self.fields(">")):
                raise _NoSchema("a struct needs fields")
            return types.StructType(fields)
        if lower not in _SIMPLE:
            raise _NoSchema(f"{word!r} is no type that can be used here; there are {_KNOWN}")
        if _SIMPLE[lower] is types.DecimalType and self.skip("("):
            return self.decimal()
        return _SIMPLE[lower]()

    def parts(self, count: int) -> list[types.DataType]:
        self.expect("<")
        found = [self.type()]
        while len(found) < count:
            self.expect(",")
            found.append(self.type())
        self.expect(">")
        return found

    def decimal(self) -> types.DecimalType:
        precision = self.number()
        scale = self.number() if self.skip(",") else 0
        self.expect(")")
        if not 1 <= precision <= 38 or scale > precision:
            raise _NoSchema(f"decimal({precision}, {scale}) does not exist: at most 38 digits, some of them decimals")
        return types.DecimalType(precision, scale)

    def number(self) -> int:
        token = self.take()
        if not token.isdecimal():
            raise _NoSchema(f"a number is expected, found {token!r}")
        return int(token)
