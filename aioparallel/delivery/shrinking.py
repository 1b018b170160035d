"""Makes dead letters smaller that are too large for their topic, step by step.

The headers of a dead letter take some hundred bytes, its error texts up to a few thousand. So a record just below the
limit of its own topic may exceed the limit as a dead letter. Only the brokers know that limit, so a refused dead letter
is sent again with less in it. The first step removes the error texts. The next steps remove the largest part, most
often the value, then the next largest. A header names the missing parts and has a checksum of the record. With it,
``aioparallel dlq`` recognises the complete record in its own topic (:mod:`aioparallel.cli.dlq.whole_records`).
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from aioparallel.config.policies import TooLargeLetters
from aioparallel.delivery.first_places import checksum_of
from aioparallel.delivery.letters import LeftOut, is_of_letter, with_left_out, without_headers, without_texts
from aioparallel.observe.record_logging import coordinates
from aioparallel.records.record import Outgoing, Record

__all__ = ["CutLetters", "SentLetter", "is_cut", "smaller"]

logger = logging.getLogger(__name__)

_SHORTEST: Final = 1024
"""A truncated value has at least so many bytes; a shorter one is removed."""
_WORTH: Final = 64
"""Parts with fewer bytes are not removed one by one: the header that names them takes as many."""
_STEP: Final = 8
"""Each step removes at least this fraction (one eighth) of what is left, so that there are few steps."""


@dataclass(slots=True)
class SentLetter(Outgoing):
    """A dead letter as it is sent, complete or made smaller."""

    whole: Outgoing | None = None
    """The complete one; None: this one is complete."""
    step: int = 0
    """How often it was made smaller."""


class _Form(NamedTuple):
    """What a dead letter contains."""

    kept: int | None = None
    """Bytes of the value; None: all."""
    has_key: bool = True
    left_out: frozenset[int] = frozenset()
    """Positions of the missing own headers."""
    has_texts: bool = True


def is_cut(letter: Outgoing) -> bool:
    """Return whether a part of the record is missing."""
    return isinstance(letter, SentLetter) and letter.step > 0 and letter.headers[-1][0] == LeftOut.HEADER


def smaller(letter: Outgoing, how: TooLargeLetters) -> SentLetter | None:
    """Return the next smaller dead letter; None if there is none. With ``"hold"`` no part of the record goes."""
    whole, step = letter, 0
    if isinstance(letter, SentLetter):
        whole, step = letter.whole or letter, letter.step
    form = next(itertools.islice(_forms(whole, how), step, None), None)
    return None if form is None else _made(whole, form, step + 1)


def _made(whole: Outgoing, form: _Form, step: int) -> SentLetter:
    headers = tuple(whole.headers)
    sizes = [_size_of(header) for header in headers]
    left_out = LeftOut(
        value=None if form.kept is None else len(whole.value or b""),
        kept=form.kept or 0,
        key=None if form.has_key else len(whole.key or b""),
        headers=sum(sizes[number] for number in form.left_out) or None,
        checksum=checksum_of(whole.key, whole.value),
    )
    headers = without_headers(headers, form.left_out)
    if not form.has_texts:
        headers = without_texts(headers)
    if left_out.is_something:
        headers = with_left_out(headers, left_out)
    # Empty, not None: a reader that ignores the header must not take it for a deletion (a tombstone).
    value = whole.value if form.kept is None else (whole.value or b"")[: form.kept]
    return SentLetter(whole.topic, value, whole.key if form.has_key else None, headers, whole=whole, step=step)


def _forms(whole: Outgoing, how: TooLargeLetters) -> Iterator[_Form]:
    """Yield the contents of smaller and smaller dead letters."""
    headers = tuple(whole.headers)
    if without_texts(headers) != headers:
        yield _Form(has_texts=False)
    if how == "hold":
        return
    own = {number: _size_of(header) for number, header in enumerate(headers) if not is_of_letter(header[0])}
    value, key = len(whole.value or b""), len(whole.key or b"")
    # The largest first. Of equal ones the value first and the key last, because the key decides the partition.
    parts = sorted([(-value, 0, 0), *((-size, 1, number) for number, size in own.items()), (-key, 2, 0)])
    left = last = value + key + sum(own.values())
    form, gone = _Form(), list[int]()
    for negative, kind, number in parts:
        if -negative < _WORTH:
            break
        if kind == 0:
            if how == "truncate":
                yield from (form._replace(kept=kept, left_out=frozenset(gone)) for kept in _halves(value))
            form = form._replace(kept=0)
        elif kind == 1:
            gone.append(number)
        else:
            form = form._replace(has_key=False)
        left += negative
        if last - left >= last / _STEP:
            last = left
            yield form._replace(left_out=frozenset(gone))
    if last != left:
        yield form._replace(left_out=frozenset(gone))
    if sum(own.values()) >= _WORTH:  # there may be thousands of small headers
        form = form._replace(left_out=frozenset(own))
        yield form
    yield form._replace(has_texts=False)


def _halves(size: int) -> Iterator[int]:
    while (size := size // 2) >= _SHORTEST:
        yield size


def _size_of(header: tuple[str, bytes | None]) -> int:
    return len(header[0].encode("utf-8", "replace")) + len(header[1] or b"")


class CutLetters:
    """Counts the incomplete dead letters of one consumer or tracker."""

    def __init__(self) -> None:
        self.count = 0

    def note(self, record: Record[Any, Any], letter: Outgoing) -> None:
        """Count a dead letter, unless it is complete. The first, the tenth and each hundredth are logged."""
        if not is_cut(letter):
            return
        self.count += 1
        if self.count in (1, 10) or self.count % 100 == 0:
            logger.warning(
                "%s: its dead letter in %s lacks a part of the record (%s), because the topic does not accept a larger "
                "one: `aioparallel dlq` reads the missing part from the record's own topic, as long as it is there. To "
                "keep it, let the topic (max.message.bytes) and the producer (max_request_size) accept larger records; "
                'or hold such records with dead_letter_too_large="hold". %d so far',
                record.place,
                letter.topic,
                (dict(letter.headers).get(LeftOut.HEADER) or b"").decode(),
                self.count,
                extra={"action": "dead_letter_cut", **coordinates(record)},
            )
