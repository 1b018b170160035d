"""Makes dead letters smaller that are too large for their topic, step by step. Pure.

The headers of a dead letter take some hundred bytes, its error texts up to a few thousand. So a record just below the
limit of its own topic may exceed the limit as a dead letter. Only the brokers know that limit, so a refused dead letter
is sent again with less in it. The first step removes the error texts. The next steps remove the largest part, most
often the value, then the next largest. A header names the missing parts and has a checksum of the record. With it,
``aioparallel dlq`` recognises the complete record in its own topic (:mod:`aioparallel.cli.dlq.whole_records`).
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, NamedTuple

from aioparallel.config.policies import TooLargeLetters
from aioparallel.delivery.first_places import checksum_of
from aioparallel.delivery.letters import LeftOut, is_of_letter, with_left_out, without_headers, without_texts
from aioparallel.records.record import Outgoing

__all__ = ["SentLetter", "is_cut", "smaller"]

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
