"""JSON and MessagePack, decoded and validated by msgspec (the extra ``msgspec``)."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from aioparallel.deserializers.refusals import library_missing, unreadable

if TYPE_CHECKING:
    from msgspec import DecodeError
    from typing_extensions import TypeForm

T = TypeVar("T")


def msgspec_json(type: TypeForm[T], /) -> Callable[[bytes], T]:  # noqa: A002 - msgspec's own word
    """A deserialiser of JSON to ``type``: a Struct, dataclass, TypedDict or any other type that msgspec supports.

    Raises ConfigurationError if msgspec is not installed, and msgspec's TypeError for an unsupported type. The
    deserialiser raises ValueError for bytes that are not JSON or do not fit the type.
    """
    try:
        from msgspec.json import Decoder  # noqa: PLC0415 - an extra
    except ImportError as error:
        raise library_missing("msgspec_json", "msgspec") from error
    decode: Callable[[bytes], T] = Decoder(type).decode
    return _refusing(decode)


def msgspec_msgpack(type: TypeForm[T], /) -> Callable[[bytes], T]:  # noqa: A002 - msgspec's own word
    """A deserialiser of MessagePack to ``type``; otherwise like :func:`msgspec_json`."""
    try:
        from msgspec.msgpack import Decoder  # noqa: PLC0415 - an extra
    except ImportError as error:
        raise library_missing("msgspec_msgpack", "msgspec") from error
    decode: Callable[[bytes], T] = Decoder(type).decode
    return _refusing(decode)


def _refusing(decode: Callable[[bytes], T]) -> Callable[[bytes], T]:
    from msgspec import DecodeError  # noqa: PLC0415 - an extra

    def read(raw: bytes) -> T:
        try:
            return decode(raw)
        except DecodeError as error:
            raise unreadable(_reason(error)) from None
        except UnicodeDecodeError as error:
            # Its position counts from the start of a string within the record, which would mislead.
            raise unreadable(f"a string is not utf-8: {error.reason}") from None
        except RecursionError:
            raise unreadable("nested too deeply") from None

    return read


_QUOTING = {
    "Invalid enum value ": "Invalid enum value",
    "Invalid value ": "Invalid value",
    "Object contains unknown field ": "Object contains unknown field",
}
"""The beginnings of msgspec's messages that quote the record, and what remains of them. Other messages mention only the
type, kinds of values and positions; paths contain ``[...]`` for a key of a dict."""


def _reason(error: DecodeError) -> str:
    """msgspec's message without quotations from the record."""
    message = str(error)
    if error.__cause__ is not None:
        # Raised by __post_init__, whose message may contain the value.
        own = str(error.__cause__)
        path = message[len(own) :] if message.startswith(own) else ""
        return f"{error.__cause__.__class__.__name__} from the type's own code{path}"
    for start, kept in _QUOTING.items():
        if message.startswith(start):
            # A path ends the message with a backtick and a quoted value does not, so a value that contains " - at `" is
            # not taken for a path. An unknown field is quoted in backticks itself.
            at = message.rfind(" - at `") if message.endswith("`") and "unknown" not in kept else -1
            return kept + (message[at:] if at >= 0 else "")
    return message
