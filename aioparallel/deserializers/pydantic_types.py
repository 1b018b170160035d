"""JSON, decoded and validated by pydantic (the extra ``pydantic``)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, TypeVar

from aioparallel.deserializers.refusals import library_missing, unreadable

if TYPE_CHECKING:
    from pydantic import ValidationError
    from pydantic_core import ErrorDetails
    from typing_extensions import TypeForm

T = TypeVar("T")

_SHOWN = 3
"""Most errors to report per record; a list may have one for each item."""

_LOOKED_AT = 1_000
"""Most errors to examine. pydantic returns all or none, at 1.5 us each: 250,000 in a record of 1 MB held the loop for
0.4 s."""

_FROM_THE_TYPE = {
    "actual_length",
    "class",
    "class_name",
    "decimal_places",
    "discriminator",
    "encoding",
    "expected",
    "expected_plural",
    "expected_schemes",
    "expected_tags",
    "expected_version",
    "field_type",
    "ge",
    "gt",
    "le",
    "lt",
    "max_digits",
    "max_length",
    "min_length",
    "multiple_of",
    "pattern",
    "tz_expected",
    "whole_digits",
}
"""Values in pydantic's messages that come from the type and not from the record; lengths are harmless."""


def pydantic_json(type: TypeForm[T], /) -> Callable[[bytes], T]:  # noqa: A002 - pydantic's own word
    """A deserialiser of JSON to ``type``: a model, a dataclass or any other type that pydantic supports.

    Raises ConfigurationError if pydantic is not installed, and pydantic's own errors for a type that is unsupported or
    not fully defined yet. The deserialiser raises ValueError for bytes that are not JSON or do not fit the type.
    Messages of the type's own validators often quote the value, so only the kind of the error is reported.
    """
    try:
        from pydantic import TypeAdapter, ValidationError  # noqa: PLC0415 - an extra
    except ImportError as error:
        raise library_missing("pydantic_json", "pydantic") from error
    adapter = TypeAdapter(type)
    adapter.rebuild()  # with defer_build or a forward reference it would be built, or fail, only at the first record
    names = _strings_in(adapter.core_schema)
    validate = adapter.validate_json

    def read(raw: bytes) -> T:
        try:
            return validate(raw)
        except ValidationError as error:
            raise unreadable(_reason(error, names)) from None

    return read


def _strings_in(schema: object) -> frozenset[str]:
    """All strings in pydantic's core schema, including the names of fields, aliases and tags."""
    found: set[str] = set()
    seen: set[int] = set()
    waiting = [schema]
    while waiting:
        part = waiting.pop()
        if isinstance(part, str):
            found.add(part)
        elif isinstance(part, (Mapping, list, tuple)) and id(part) not in seen:
            seen.add(id(part))  # a default may contain itself
            waiting.extend(part)
            if isinstance(part, Mapping):
                waiting.extend(part.values())
    return frozenset(found)


def _reason(error: ValidationError, names: frozenset[str]) -> str:
    """Describe the errors without any part of the record. pydantic's own text contains values and keys of dicts."""
    if error.error_count() > _LOOKED_AT:
        return f"$: {error.error_count()} errors"
    errors = error.errors(include_url=False, include_input=False)
    lines = [f"{_path(each, names)}: {_message(each)}" for each in errors[:_SHOWN]]
    if len(errors) > _SHOWN:
        lines.append(f"and {len(errors) - _SHOWN} more")
    return "; ".join(lines)


def _path(error: ErrorDetails, names: frozenset[str]) -> str:
    """``$.order.lines[3].price``. A step that is not a name in the type may be a key in the record, and becomes
    ``[...]``."""
    path = "$"
    for step in error["loc"]:
        if isinstance(step, int):
            path += f"[{step}]"
        elif step == "[key]":
            path += " (key)"
        else:
            path += f".{step}" if step in names else "[...]"
    return path


def _message(error: ErrorDetails) -> str:
    """pydantic's message if nothing in it comes from the record, else its documented name of the error."""
    from pydantic_core import PydanticKnownError  # noqa: PLC0415 - an extra

    kind, context = error["type"], error.get("ctx", {})
    # For bytes that are not JSON, "error" is a reason and a position. Elsewhere it may quote the value.
    allowed = {"error"} if kind == "json_invalid" else _FROM_THE_TYPE
    if not context.keys() <= allowed:
        return kind
    try:
        # Built again, because a validator may raise an error of the same name with its own text.
        return PydanticKnownError(kind, context).message()  # type: ignore[arg-type]  # any string; unknown: KeyError
    except (KeyError, TypeError):
        return kind
