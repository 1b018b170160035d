"""Cuts a map to the limit of a commit's metadata.

A map may end anywhere, because it says nothing about offsets above its end. So the question is how far each format
reaches within the limit. If the size follows from counts, running sums give the answer. With zstd it is found in at
most a dozen attempts, each with a prefix of a body that is made once.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence

from aioparallel.offsets.dense.dense_map import BITS, ENVELOPE, dense_text
from aioparallel.offsets.dense.dense_reach import dense_reaches
from aioparallel.offsets.dense.pattern import Pattern
from aioparallel.offsets.encoding import Formats, check_limits, encode_pattern
from aioparallel.offsets.java.java_formats import JavaFormat, java_payload, java_text
from aioparallel.offsets.java.java_reach import java_reaches
from aioparallel.offsets.offset_map import MAX_BODY_BYTES, MAX_INCOMPLETES

__all__ = ["fit_offset_map"]

_TINY = 64
"""Below this many characters, the envelope of Dense matters, and the Java formats may reach farther."""

_ATTEMPTS = 4

Reach = tuple[int, Callable[[Pattern], str]]
"""The highest offset that a format reaches, and its encoder."""


def fit_offset_map(
    base_offset: int,
    highest_succeeded: int,
    incompletes: Iterable[int],
    *,
    limit: int | None = 4096,
    formats: Formats = "all",
) -> tuple[str, int]:
    """The map cut at the highest offset ``h`` whose map is within ``limit`` characters, and ``h``.

    Arguments are those of :func:`~aioparallel.offsets.encode_offset_map`, except that incompletes above
    ``highest_succeeded`` are ignored, and a ``highest_succeeded`` below ``base_offset`` means an empty map. If
    everything fits, the text equals that of ``encode_offset_map``. The offset ``h`` of a cut map is complete. For an
    empty map, or if no map fits, the text is "" and ``h`` is ``base_offset - 1``.

    The result is exact for the Java formats without zstd. With zstd, and for the parameters of Dense, sizes are assumed
    to grow with ``h``, which is nearly true, so ``h`` may be a few offsets short. Takes one encoding of the whole,
    running sums over it, and for each format at most a dozen encodings within the limit.
    """
    check_limits(limit, formats)
    nothing = "", base_offset - 1
    if highest_succeeded < base_offset:
        return nothing
    offsets = incompletes if isinstance(incompletes, Sequence) else tuple(incompletes)
    offsets = offsets[: bisect_right(offsets, highest_succeeded)]
    whole = highest_succeeded
    if len(offsets) > MAX_INCOMPLETES:
        whole = offsets[MAX_INCOMPLETES] - 1
        offsets = offsets[:MAX_INCOMPLETES]
    pattern = Pattern(base_offset, whole, offsets)
    try:
        return encode_pattern(pattern, limit, formats), whole
    except ValueError:
        pass
    for highest, write in sorted(_reaches(pattern, limit, formats), key=lambda reach: reach[0], reverse=True):
        for end in _ends(pattern, highest):
            text = write(pattern.cut(end))
            if limit is None or len(text) <= limit:
                return text, end
    return nothing


def _reaches(pattern: Pattern, limit: int | None, formats: Formats) -> Iterator[Reach]:
    limit = 2 * MAX_BODY_BYTES if limit is None else limit
    if formats == "java" or limit < _TINY:
        for highest, form in java_reaches(pattern, limit // 4 * 3):
            yield pattern.last_complete(highest), _java_writer(form)
    if formats == "all" and limit > ENVELOPE:
        for highest in dense_reaches(pattern, (limit - ENVELOPE) * BITS):
            yield pattern.last_complete(highest), dense_text


def _java_writer(form: JavaFormat) -> Callable[[Pattern], str]:
    return lambda pattern: java_text(java_payload(pattern, form))


def _ends(pattern: Pattern, highest: int) -> Iterator[int]:
    """Where to cut: at ``highest``, and then an incomplete offset lower each time. The text may be a character longer
    than its running sums say, because the last bit may change the parameter of a Golomb-Rice code.
    """
    for _ in range(_ATTEMPTS):
        if highest < pattern.base:
            return
        yield highest
        at = bisect_right(pattern.offsets, highest) - 1
        highest = pattern.last_complete(pattern.offsets[at]) if at >= 0 else pattern.base - 1
