"""The headers of dead letters and of records in retry topics. Pure.

Every header name begins with ``aioparallel.``; values are UTF-8 text, numbers in decimal. They stand behind the
record's own headers, which are unchanged, as are key and value.

======================================  ==============================================================
``aioparallel.origin.topic``            where the record stood first
``aioparallel.origin.partition``
``aioparallel.origin.offset``
``aioparallel.origin.timestamp``        its timestamp there, milliseconds since the epoch; -1: it had none
``aioparallel.group``                   the consumer group that gave up on it
``aioparallel.attempts``                how often its handler was called
``aioparallel.failed.first``            first failed attempt, milliseconds since the epoch
``aioparallel.failed.last``             last one
``aioparallel.error.type``              the last exception's class, with its module
``aioparallel.error.message``           its text, cut after 1,000 characters
``aioparallel.error.traceback``         its traceback, of a long one the last 4,000 characters
``aioparallel.retry.due``               in retry topics only: not before, milliseconds since the epoch
======================================  ==============================================================

A letter that is sent back carries none of these, and two more where it has coordinates of a source
(:mod:`aioparallel.coordinates`), so that it is not taken for a copy of what was handled before:

======================================  ==============================================================
``aioparallel.replayed``                where the letter stood: topic, partition and offset
``aioparallel.replayed.group``          the group that had given up on it: for others it is a copy
======================================  ==============================================================

Those stay with the record through retry topics, which have seen it before as well.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from aioparallel.records import Failure, Headers, Origin, Record

__all__ = [
    "ATTEMPTS",
    "REPLAYED",
    "REPLAYED_FOR",
    "REPLAYED_ORIGIN",
    "Letter",
    "original_headers",
    "read_letter",
    "without_texts",
    "write_letter",
]

PREFIX = "aioparallel."
REPLAYED = "aioparallel.replayed"
REPLAYED_FOR = "aioparallel.replayed.group"
REPLAYED_ORIGIN = "aioparallel.replayed.origin"
_OWN = (REPLAYED, REPLAYED_FOR, REPLAYED_ORIGIN)
_ORIGIN_TOPIC = "aioparallel.origin.topic"
_ORIGIN_PARTITION = "aioparallel.origin.partition"
_ORIGIN_OFFSET = "aioparallel.origin.offset"
_ORIGIN_TIMESTAMP = "aioparallel.origin.timestamp"
_GROUP = "aioparallel.group"
ATTEMPTS = "aioparallel.attempts"
_FAILED_FIRST = "aioparallel.failed.first"
_FAILED_LAST = "aioparallel.failed.last"
_ERROR_TYPE = "aioparallel.error.type"
_ERROR_MESSAGE = "aioparallel.error.message"
_ERROR_TRACEBACK = "aioparallel.error.traceback"
_RETRY_DUE = "aioparallel.retry.due"


class Letter(NamedTuple):
    """What the headers tell of a record that failed."""

    origin: Origin
    group: str
    attempts: int
    first: Failure
    """First failure: only its time is written, type and message are those of the last."""
    last: Failure
    traceback: str
    due: float | None = None
    """In a retry topic: not before, seconds since the epoch."""


def write_letter(headers: Headers, letter: Letter) -> Headers:
    """The record's own ``headers`` with the letter's behind; those of an earlier letter are replaced."""
    origin = letter.origin
    texts: list[tuple[str, str]] = [
        (_ORIGIN_TOPIC, origin.topic),
        (_ORIGIN_PARTITION, str(origin.partition)),
        (_ORIGIN_OFFSET, str(origin.offset)),
        (_ORIGIN_TIMESTAMP, str(origin.timestamp)),
        (_GROUP, letter.group),
        (ATTEMPTS, str(letter.attempts)),
        (_FAILED_FIRST, str(round(letter.first.at * 1000))),
        (_FAILED_LAST, str(round(letter.last.at * 1000))),
        (_ERROR_TYPE, letter.last.type),
        (_ERROR_MESSAGE, letter.last.message),
        (_ERROR_TRACEBACK, letter.traceback),
    ]
    if letter.due is not None:
        texts.append((_RETRY_DUE, str(round(letter.due * 1000))))
    # A text of the user's may hold lone surrogates, which UTF-8 cannot.
    return (*original_headers(headers), *((name, text.encode("utf-8", "replace")) for name, text in texts))


def without_texts(headers: Headers) -> Headers:
    """The same letter with empty message and traceback: where the whole one is too large."""
    return tuple((name, b"" if name in (_ERROR_MESSAGE, _ERROR_TRACEBACK) else value) for name, value in headers)


def original_headers(headers: Headers) -> Headers:
    """The headers without those of a letter. That it was sent back before is the record's own, and stays."""
    return tuple(header for header in headers if header[0] in _OWN or not header[0].startswith(PREFIX))


def read_letter(record: Record[Any, Any]) -> Letter | None:
    """What the record's headers tell; None when it is no letter of ours, or a damaged one."""
    found = {name: value.decode("utf-8", "replace") for name, value in record.headers if value and _is_ours(name)}
    try:
        error = found[_ERROR_TYPE], found.get(_ERROR_MESSAGE, "")
        return Letter(
            Origin(
                found[_ORIGIN_TOPIC],
                int(found[_ORIGIN_PARTITION]),
                int(found[_ORIGIN_OFFSET]),
                _timestamp(found[_ORIGIN_TIMESTAMP]),
            ),
            found.get(_GROUP, ""),
            int(found[ATTEMPTS]),
            Failure(int(found[_FAILED_FIRST]) / 1000, *error),
            Failure(int(found[_FAILED_LAST]) / 1000, *error),
            found.get(_ERROR_TRACEBACK, ""),
            int(found[_RETRY_DUE]) / 1000 if _RETRY_DUE in found else None,
        )
    except (KeyError, ValueError):
        return None


def _timestamp(text: str) -> int:
    # Letters of records without one, which only message format 0 has, held this word once.
    return -1 if text == "None" else int(text)


def _is_ours(name: str) -> bool:
    return name.startswith(PREFIX)
