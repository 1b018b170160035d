"""Deserialisers: what they read, and that errors contain no part of the record."""

from __future__ import annotations

import enum
import subprocess
import sys
import traceback
from collections.abc import Callable
from typing import Annotated, Any, Literal, assert_type

import msgspec
import pydantic
import pydantic_core
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from aioparallel.deserializers import from_json, msgspec_json, msgspec_msgpack, pydantic_json, text
from aioparallel.records.errors import ConfigurationError, DeserializationError

SECRET = "4111-secret"
"""Stands for a record's data; no message may hold it."""


class Kind(enum.Enum):
    CARD = "card"


class Line(msgspec.Struct, tag="line", forbid_unknown_fields=True):
    price: int


class Note(msgspec.Struct, tag="note"):
    text: str

    def __post_init__(self) -> None:
        if self.text == SECRET:
            raise ValueError(f"unwanted: {self.text} - at `{self.text}`")


class Order(msgspec.Struct):
    kind: Kind
    lines: list[Line | Note] = []
    by_name: dict[str, int] = {}
    by_kind: dict[Kind, int] = {}


class Card(pydantic.BaseModel):
    type: Literal["card"]
    number: int


class Cash(pydantic.BaseModel):
    type: Literal["cash"]
    coins: list[int]


def _refuse(value: str) -> str:
    if value == SECRET:
        raise ValueError(f"unwanted: {value}")
    return value


def _refuse_in_disguise(value: str) -> str:
    raise pydantic_core.PydanticCustomError("missing", "unwanted: {value}", {"value": value})


class Payment(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(extra="forbid")

    amount: Annotated[int, pydantic.Field(gt=0, alias="Amount")]
    paid: Annotated[Card | Cash, pydantic.Field(discriminator="type")] | None = None
    by_name: dict[str, int] = {}
    by_number: dict[int, int] = {}
    either: int | list[int] = 0
    note: Annotated[str, pydantic.AfterValidator(_refuse)] = ""
    odd: Annotated[str, pydantic.AfterValidator(_refuse_in_disguise)] = ""
    where: pydantic.UUID4 | None = None


def refusal(read: Callable[[bytes], object], raw: bytes) -> str:
    """The message for ``raw``, after a check that neither it nor the traceback of the whole failure contains the
    secret."""
    with pytest.raises(ValueError) as caught:  # noqa: PT011 - each test looks at the message
        read(raw)
    assert caught.type is ValueError
    failure = DeserializationError("value", len(raw), caught.value)
    failure.__cause__ = caught.value
    assert "secret" not in "".join(traceback.format_exception(failure))
    return str(caught.value)


class TestJson:
    def test_reads_json(self) -> None:
        """JSON in UTF-8 is read."""
        assert from_json('{"stadt": "Köln", "n": [1, 2.5, null]}'.encode()) == {"stadt": "Köln", "n": [1, 2.5, None]}

    @pytest.mark.parametrize(
        ("raw", "says"),
        [
            (b"", "not JSON: Expecting value at line 1 column 1"),
            (b'{"a": "4111-secret",\n x}', "at line 2 column 2"),
            (b'"4111-secret \\q"', "not JSON: Invalid \\escape at line 1"),
            (b'"4111-secret \xff"', "not utf-8 at byte 13: invalid start byte"),
            ('{"a": 1}'.encode("utf-16"), "not utf-8 at byte 0"),
            (b'\xef\xbb\xbf{"a": 1}', "not JSON: Unexpected UTF-8 BOM"),
            (b"9" * 5000, "a number has more digits than Python accepts"),
            (b"[" * 100_000, "nested too deeply"),
        ],
    )
    def test_refuses_what_is_not_json(self, raw: bytes, says: str) -> None:
        """Other encodings, invalid JSON, and what would exhaust the interpreter are refused with the position."""
        assert says in refusal(from_json, raw)


class TestText:
    @pytest.mark.parametrize("encoding", ["utf-8", "latin-1", "utf-16", "utf-32"])
    def test_reads_text(self, encoding: str) -> None:
        """Text is read in any encoding."""
        assert text(encoding)("Köln".encode(encoding)) == "Köln"

    def test_refuses_what_is_no_text(self) -> None:
        """Decoding is strict. The message has the position but not the byte."""
        message = refusal(text(), b"4111-secret \xff")
        assert message == "not utf-8 at byte 12: invalid start byte"

    @pytest.mark.parametrize("encoding", ["utf-9", "hex", ""])
    def test_refuses_unknown_encodings_at_once(self, encoding: str) -> None:
        """Anything but a text encoding is refused at construction, by name."""
        with pytest.raises(ConfigurationError, match=f"encoding='{encoding}': must be a text encoding"):
            text(encoding)


class TestMsgspec:
    def test_reads_into_the_type(self) -> None:
        """JSON and MessagePack come back as the type asked for."""
        order = Order(Kind.CARD, [Line(3), Note("x")], {"a": 1})
        assert msgspec_json(Order)(msgspec.json.encode(order)) == order
        assert msgspec_msgpack(Order)(msgspec.msgpack.encode(order)) == order

    @pytest.mark.parametrize(
        ("raw", "says"),
        [
            (b"", "Input data was truncated"),
            (b'{"kind": secret}', "JSON is malformed: invalid character (byte 9)"),
            (b'{"kind": "4111-secret"}', "Invalid enum value - at `$.kind`"),
            (b'{"kind": "4 - at `secret`"}', "Invalid enum value - at `$.kind`"),
            (b'{"kind": "card", "lines": [{"type": "4111-secret"}]}', "Invalid value - at `$.lines[0].type`"),
            (b'{"kind": "card", "lines": [{"type": "line", "secret": 1}]}', "Object contains unknown field"),
            (
                b'{"kind": "card", "by_name": {"secret": "4111-secret"}}',
                "Expected `int`, got `str` - at `$.by_name[...]`",
            ),
            (b'{"kind": "card", "by_kind": {"4111-secret": 1}}', "Invalid enum value - at `key` in `$.by_kind`"),
            (
                b'{"kind": "card", "lines": [{"type": "note", "text": "4111-secret"}]}',
                "ValueError from the type's own code - at `$.lines[0]`",
            ),
            (b'{"kind": "\xff secret"}', "a string is not utf-8: invalid start byte"),
        ],
    )
    def test_refuses_what_does_not_fit(self, raw: bytes, says: str) -> None:
        """The message names what was expected and the path, and quotes nothing."""
        assert refusal(msgspec_json(Order), raw) == says

    def test_a_quoted_value_is_no_path(self) -> None:
        """A value at the top level that looks like a path is left out as well."""
        assert refusal(msgspec_json(Kind), b'"4 - at `secret`"') == "Invalid enum value"

    def test_refuses_what_is_no_messagepack(self) -> None:
        """MessagePack has the same messages, and deep nesting is refused."""
        read = msgspec_msgpack(Order)
        assert refusal(read, msgspec.msgpack.encode({"kind": SECRET})) == "Invalid enum value - at `$.kind`"
        assert refusal(read, b"\x81\xa4kind") == "Input data was truncated"
        anything: Callable[[bytes], object] = msgspec_msgpack(object)
        assert refusal(anything, b"\x91" * 100_000) == "nested too deeply"

    def test_refuses_unknown_types_at_once(self) -> None:
        """A type msgspec cannot decode is refused at construction."""
        with pytest.raises(TypeError, match="not supported"):
            msgspec_json(list[int] | set[int])


class TestPydantic:
    def test_reads_into_the_type(self) -> None:
        """Models, unions and annotated types come back validated."""
        payment = pydantic_json(Payment)(b'{"Amount": "5", "paid": {"type": "cash", "coins": [2, 3]}}')
        assert payment.amount == 5
        assert payment.paid == Cash(type="cash", coins=[2, 3])
        assert pydantic_json(Annotated[list[int], pydantic.Field(max_length=2)])(b"[1, 2]") == [1, 2]

    @pytest.mark.parametrize(
        ("raw", "says"),
        [
            (b"", "$: Invalid JSON: EOF while parsing a value at line 1 column 0"),
            (b'{"Amount": 4111-secret}', "$: Invalid JSON: expected `,` or `}` at line 1 column 16"),
            (b"{}", "$.Amount: Field required"),
            (b'{"Amount": -4111}', "$.Amount: Input should be greater than 0"),
            (b'{"Amount": "4111-secret"}', "$.Amount: Input should be a valid integer, unable to parse"),
            (b'{"Amount": 1, "4111-secret": 1}', "$[...]: Extra inputs are not permitted"),
            (b'{"Amount": 1, "by_name": {"4111-secret": "x"}}', "$.by_name[...]: Input should be a valid integer"),
            (
                b'{"Amount": 1, "by_number": {"4111-secret": 1}}',
                "$.by_number[...] (key): Input should be a valid integer",
            ),
            (b'{"Amount": 1, "paid": {"type": "4111-secret"}}', "$.paid: union_tag_invalid"),
            (b'{"Amount": 1, "paid": {"type": "card"}}', "$.paid.card.number: Field required"),
            (b'{"Amount": 1, "note": "4111-secret"}', "$.note: value_error"),
            (b'{"Amount": 1, "odd": "4111-secret"}', "$.odd: missing"),
            (b'{"Amount": 1, "where": "z4111-secret"}', "$.where: uuid_parsing"),
            (b'{"Amount": 1, "either": "4111-secret"}', "$.either.int: Input should be a valid integer"),
            (b'{"Amount": 1, "note": "\xff secret"}', "$: Invalid JSON: invalid unicode code point"),
            (b"[" * 100_000, "$: Invalid JSON: recursion limit exceeded"),
        ],
    )
    def test_refuses_what_does_not_fit(self, raw: bytes, says: str) -> None:
        """The message names the path and what was expected; no value, no key of a dict, no validator's own text."""
        assert refusal(pydantic_json(Payment), raw).startswith(says)

    def test_reports_a_few_errors_only(self) -> None:
        """A long list of invalid items makes a short message."""
        message = refusal(pydantic_json(list[bool]), b"[" + b'"4111-secret",' * 999 + b"7]")
        assert message.startswith("$[0]: Input should be a valid boolean")
        assert message.endswith("; and 997 more")
        assert refusal(pydantic_json(list[bool]), b"[" + b'"4111-secret",' * 1000 + b"7]") == "$: 1001 errors"

    def test_cuts_long_messages(self) -> None:
        """A type with many allowed values does not fill the log."""
        many = enum.Enum("many", {f"name{i}": f"value{i}" for i in range(500)})  # type: ignore[misc]
        message = refusal(pydantic_json(many), b'"4111-secret"')
        assert len(message) == 300
        assert message.endswith("...")

    def test_types_that_hold_themselves(self) -> None:
        """A recursive type, and a default that contains itself, are supported."""
        assert pydantic_json(Tree)(b'{"below": [{"below": []}]}').below[0].below == []
        assert refusal(pydantic_json(Tree), b'{"below": [{"below": ["secret"]}]}').startswith("$.below[0].below[0]: ")

    def test_refuses_unfinished_types_at_once(self) -> None:
        """A model with an undefined name is refused at construction, not at the first record."""
        with pytest.raises(pydantic.errors.PydanticUndefinedAnnotation, match="Nowhere"):
            pydantic_json(Unfinished)

    def test_builds_deferred_models_at_once(self) -> None:
        """A model with deferred building is built at construction."""
        assert pydantic_json(Deferred)(b'{"x": 1}').x == 1
        assert refusal(pydantic_json(Deferred), b'{"x": "secret"}').startswith("$.x: ")


_LOOP: list[Any] = []
_LOOP.append(_LOOP)


class Tree(pydantic.BaseModel):
    below: list[Tree]
    loop: list[Any] = pydantic.Field(default=_LOOP)


class Unfinished(pydantic.BaseModel):
    x: Nowhere  # type: ignore[name-defined]  # noqa: F821 - defined nowhere on purpose


class Deferred(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(defer_build=True)
    x: int


_READERS: list[Callable[[bytes], object]] = [
    from_json,
    text(),
    msgspec_json(Order),
    msgspec_msgpack(Order),
    pydantic_json(Payment),
]


@pytest.mark.parametrize("read", _READERS)
@given(raw=st.binary() | st.text(alphabet='{}[]:,"\\ue1-0. ').map(str.encode))
@example(raw=b"1e999999")
def test_bytes_are_read_or_refused(read: Callable[[bytes], object], raw: bytes) -> None:
    """Whatever the bytes, a deserialiser returns or raises ValueError itself, never an error of its library."""
    try:
        read(raw)
    except ValueError as error:
        assert error.__class__ is ValueError  # noqa: PT017 - most bytes may be either
        assert 0 < len(str(error)) <= 300  # noqa: PT017


@pytest.mark.parametrize(
    ("make", "name", "library"),
    [
        (msgspec_json, "msgspec_json", "msgspec"),
        (msgspec_msgpack, "msgspec_msgpack", "msgspec"),
        (pydantic_json, "pydantic_json", "pydantic"),
    ],
)
def test_a_missing_library_is_reported_at_construction(
    make: Callable[[type[int]], object], name: str, library: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without the library, construction fails with the command that installs it."""
    for module in [module for module in sys.modules if module.partition(".")[0] == library]:
        monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(ConfigurationError) as caught:
        make(int)
    assert str(caught.value) == (
        f"deserializer='{name}': needs the library {library}: pip install 'aioparallel[{library}]'"
    )


def test_importing_imports_no_library() -> None:
    """The package itself needs neither msgspec nor pydantic: without them the rest of it works."""
    code = (
        "import sys; sys.modules.update(msgspec=None, pydantic=None, pydantic_core=None)\n"
        "from aioparallel.deserializers import from_json, text, msgspec_json, pydantic_json\n"
        "assert from_json(b'[1]') == [1] and text()(b'a') == 'a'"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_types_follow_from_the_arguments() -> None:
    """For type checkers a deserialiser returns its type, for classes and unions; mypy checks this."""
    assert_type(from_json(b"1"), object)
    assert_type(text(), Callable[[bytes], str])
    assert_type(msgspec_json(Order), Callable[[bytes], Order])
    assert_type(msgspec_json(Line | Note), Callable[[bytes], Line | Note])
    assert_type(msgspec_msgpack(list[Order]), Callable[[bytes], list[Order]])
    assert_type(pydantic_json(Payment), Callable[[bytes], Payment])
    assert_type(pydantic_json(Card | Cash), Callable[[bytes], Card | Cash])
    assert_type(pydantic_json(Annotated[int, pydantic.Field(gt=0)]), Callable[[bytes], int])
    assert_type(pydantic_json(Literal["a", "b"]), Callable[[bytes], Literal["a", "b"]])
