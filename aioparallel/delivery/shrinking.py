"""Dead letters that are too large for their topic: the same letter with less in it, step by step. Pure.

The headers of a letter take some hundred bytes, and its error as many thousand: a record just below the limit of its
own topic is above it as a letter. What a topic takes is known to its brokers alone, so a letter that was refused for
its size is sent again with less. First without the texts of its error; then the largest of its parts goes, most often
the value, then the next one. What is left out is named in a header, with a checksum of the record, by which the whole
of it is known again where it stands (:mod:`aioparallel.cli.dlq.sources`).
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, NamedTuple

from aioparallel.delivery.first_places import checksum_of
from aioparallel.delivery.letters import LeftOut, is_of_letter, with_left_out, without_headers, without_texts
from aioparallel.policies import TooLargeLetters
from aioparallel.records import Headers, Outgoing

__all__ = ["SentLetter", "is_cut", "sent_letter", "smaller"]

_SHORTEST: Final = 1024
"""Bytes of a value that is cut, at least: with fewer it goes altogether."""
_WORTH: Final = 64
"""Bytes of a part from which on it is worth to leave it out: to say so takes as many."""
_STEP: Final = 8
"""At least one part in so many of a letter goes with each step, so that there are few, whatever it is made of."""


@dataclass(slots=True)
class SentLetter(Outgoing):
    """A letter as it is sent: with all that belongs to it, or less."""

    whole: Outgoing | None = None
    """With all of it; None: this is it."""
    step: int = 0
    """How often it was made smaller."""


class _Form(NamedTuple):
    """What is in a letter."""

    kept: int | None = None
    """Bytes of the value; None: all."""
    has_key: bool = True
    left_out: frozenset[int] = frozenset()
    """Of the record's own headers, by number."""
    has_texts: bool = True


def sent_letter(topic: str, value: bytes | None, key: bytes | None, headers: Headers) -> SentLetter:
    """A whole one."""
    return SentLetter(topic, value, key, headers)


def is_cut(letter: Outgoing) -> bool:
    """Whether a part of the record is not in it."""
    return isinstance(letter, SentLetter) and letter.step > 0 and letter.headers[-1][0] == LeftOut.HEADER


def smaller(letter: Outgoing, how: TooLargeLetters) -> SentLetter | None:
    """The next smaller one; None: there is none. ``how``: with ``"hold"`` all of the record stays in it."""
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
    # Empty, and not None: a reader that does not know the header must not take it for a deletion.
    value = whole.value if form.kept is None else (whole.value or b"")[: form.kept]
    return SentLetter(whole.topic, value, whole.key if form.has_key else None, headers, whole=whole, step=step)


def _forms(whole: Outgoing, how: TooLargeLetters) -> Iterator[_Form]:
    """From the largest to the smallest."""
    headers = tuple(whole.headers)
    if without_texts(headers) != headers:
        yield _Form(has_texts=False)
    if how == "hold":
        return
    own = {number: _size_of(header) for number, header in enumerate(headers) if not is_of_letter(header[0])}
    value, key = len(whole.value or b""), len(whole.key or b"")
    # Of those as large the value first, the key last: it decides where the letter stands.
    parts = sorted([(-value, 0, 0), *((-size, 1, number) for number, size in own.items()), (-key, 2, 0)])
    left = told = value + key + sum(own.values())
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
        if told - left >= told / _STEP:
            told = left
            yield form._replace(left_out=frozenset(gone))
    if told != left:
        yield form._replace(left_out=frozenset(gone))
    if sum(own.values()) >= _WORTH:  # there may be thousands of small ones
        form = form._replace(left_out=frozenset(own))
        yield form
    yield form._replace(has_texts=False)


def _halves(size: int) -> Iterator[int]:
    while (size := size // 2) >= _SHORTEST:
        yield size


def _size_of(header: tuple[str, bytes | None]) -> int:
    return len(header[0].encode("utf-8", "replace")) + len(header[1] or b"")
