"""Deserialisers that need no library."""

from __future__ import annotations

import json
from collections.abc import Callable

from aioparallel.deserializers.refusals import not_text, unreadable
from aioparallel.errors import ConfigurationError


def from_json(raw: bytes) -> object:
    """JSON in UTF-8, read by Python's ``json``: dicts, lists, str, int, float, bool or None.

    Like ``json`` it takes NaN and Infinity, and the last of repeated names. Raises ValueError for anything else that
    is not JSON, for other encodings, and for nesting that Python's recursion limit does not allow.
    """
    try:
        return json.loads(raw.decode("utf-8"))  # given bytes, json guesses UTF-16 and UTF-32 and lets surrogates pass
    except UnicodeDecodeError as error:
        raise not_text(error, "utf-8") from None
    except json.JSONDecodeError as error:
        # Some versions put the offending character behind a colon.
        reason = error.msg.partition(":")[0]
        raise unreadable(f"not JSON: {reason} at line {error.lineno} column {error.colno}") from None
    except ValueError:
        raise unreadable("a number has more digits than Python takes (sys.set_int_max_str_digits)") from None
    except RecursionError:
        raise unreadable("nested too deeply") from None


def text(encoding: str = "utf-8") -> Callable[[bytes], str]:
    """Text, read strictly in one of Python's encodings.

    Raises ConfigurationError when Python knows no such text encoding. The deserialiser raises ValueError for bytes that
    are no text in it.
    """
    try:
        b"probe".decode(encoding)  # not empty: for b"" Python does not look the encoding up
    except LookupError:
        raise ConfigurationError(
            "encoding", encoding, "must be a text encoding Python knows, such as 'utf-8'"
        ) from None
    except UnicodeError:
        pass  # known, but five bytes are no text in it: UTF-16, for one

    def read(raw: bytes) -> str:
        try:
            return raw.decode(encoding)
        except UnicodeError as error:
            raise not_text(error, encoding) from None

    return read
