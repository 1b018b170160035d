"""What deserialisers say when they refuse: at construction, and for bytes they cannot read."""

from __future__ import annotations

from aioparallel.errors import ConfigurationError

_LONGEST = 300
"""Characters; a type with hundreds of allowed values would list them all in each log line."""


def library_missing(deserializer: str, library: str) -> ConfigurationError:
    """The error for a deserialiser whose library, also the name of its extra, is not installed."""
    return ConfigurationError(
        "deserializer", deserializer, f"needs the library {library}: pip install 'aioparallel[{library}]'"
    )


def unreadable(reason: str) -> ValueError:
    """The error for bytes that cannot be read. ``reason`` must hold no part of them.

    To be raised ``from None``: the library's own error holds the record's value, and tracebacks show causes.
    """
    return ValueError(reason if len(reason) <= _LONGEST else f"{reason[: _LONGEST - 3]}...")


def not_text(error: UnicodeError, encoding: str) -> ValueError:
    """``unreadable`` for bytes that are no text; Python's own message quotes one of them."""
    if isinstance(error, UnicodeDecodeError):
        return unreadable(f"not {encoding} at byte {error.start}: {error.reason}")
    return unreadable(f"not {encoding}")
