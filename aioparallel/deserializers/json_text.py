"""Deserialisers without a library."""

from __future__ import annotations

import json
from collections.abc import Callable

from aioparallel.deserializers.refusals import not_text, unreadable
from aioparallel.records.errors import ConfigurationError


def from_json(raw: bytes) -> object:
    """Decode JSON in UTF-8 with Python's ``json``: to dicts, lists, str, int, float, bool or None.

    Like ``json`` it accepts NaN and Infinity, and takes the last of duplicate names. Raises ValueError for any other
    invalid JSON, for other encodings, and for nesting beyond Python's recursion limit.
    """
    try:
        return json.loads(raw.decode("utf-8"))  # for bytes, json guesses UTF-16 and UTF-32 and accepts surrogates
    except UnicodeDecodeError as error:
        raise not_text(error, "utf-8") from None
    except json.JSONDecodeError as error:
        # Some versions append the offending character after a colon.
        reason = error.msg.partition(":")[0]
        raise unreadable(f"not JSON: {reason} at line {error.lineno} column {error.colno}") from None
    except ValueError:
        raise unreadable("a number has more digits than Python accepts (sys.set_int_max_str_digits)") from None
    except RecursionError:
        raise unreadable("nested too deeply") from None


def text(encoding: str = "utf-8") -> Callable[[bytes], str]:
    """A deserialiser of text, decoded strictly in one of Python's encodings.

    Raises ConfigurationError for an unknown text encoding. The deserialiser raises ValueError for bytes that are
    invalid in it.
    """
    try:
        b"probe".decode(encoding)  # not b"", for which Python does not look up the encoding
    except LookupError:
        raise ConfigurationError(
            "encoding", encoding, "must be a text encoding Python knows, such as 'utf-8'"
        ) from None
    except UnicodeError:
        pass  # a known encoding in which these five bytes are invalid, such as UTF-16

    def read(raw: bytes) -> str:
        try:
            return raw.decode(encoding)
        except UnicodeError as error:
            raise not_text(error, encoding) from None

    return read
