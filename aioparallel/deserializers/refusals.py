"""The errors of deserialisers: at construction, and for bytes that they cannot read."""

from __future__ import annotations

from aioparallel.records.errors import ConfigurationError

_LONGEST = 300
"""Longest message in characters. A type with hundreds of allowed values would fill log lines."""


def library_missing(deserializer: str, library: str) -> ConfigurationError:
    """The error for a missing library, whose name is also that of the extra."""
    return ConfigurationError(
        "deserializer", deserializer, f"needs the library {library}: pip install 'aioparallel[{library}]'"
    )


def unreadable(reason: str) -> ValueError:
    """The error for bytes that cannot be read. ``reason`` must not contain any of them.

    Raise it ``from None``: the library's error contains the record's value, and tracebacks show causes.
    """
    return ValueError(reason if len(reason) <= _LONGEST else f"{reason[: _LONGEST - 3]}...")


def not_text(error: UnicodeError, encoding: str) -> ValueError:
    """:func:`unreadable` for invalid text; Python's own message quotes one of the bytes."""
    if isinstance(error, UnicodeDecodeError):
        return unreadable(f"not {encoding} at byte {error.start}: {error.reason}")
    return unreadable(f"not {encoding}")
