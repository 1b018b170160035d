"""How far each Java format reaches within a number of payload bytes."""

from __future__ import annotations

from collections.abc import Callable

from aioparallel.offsets.dense.pattern import Pattern
from aioparallel.offsets.frames import compress_frame
from aioparallel.offsets.java.java_formats import JAVA_FORMATS, JavaFormat, compressed_payloads, run_length_body
from aioparallel.offsets.offset_map import MAX_BODY_BYTES

__all__ = ["java_reach", "java_reaches", "promising_forms"]

_TRIES = 12


def java_reaches(pattern: Pattern, payload_bytes: int) -> list[tuple[int, JavaFormat]]:
    """The reach of the formats that may reach farthest."""
    reaches = [
        (java_reach(pattern, form, payload_bytes), form) for form in JAVA_FORMATS.values() if not form.compressed
    ]
    reached = pattern.cut(pattern.last_complete(max(highest for highest, _ in reaches)))
    forms = promising_forms(reached, payload_bytes)
    return reaches + [(java_reach(pattern, form, payload_bytes), form) for form in forms]


def promising_forms(reached: Pattern, payload_bytes: int) -> list[JavaFormat]:
    """The formats with zstd that may reach beyond ``reached``: they fit there, and are about as small as the
    smallest."""
    payloads = compressed_payloads(reached)
    most = min(payload_bytes, min(map(len, payloads), default=0) * 1.1)
    return [form for form in JAVA_FORMATS.values() if any(p[0] == form.magic and len(p) <= most for p in payloads)]


def java_reach(pattern: Pattern, form: JavaFormat, payload_bytes: int) -> int:
    """The highest offset that ``form`` reaches within ``payload_bytes``. Cut at the last complete offset at or below
    it."""
    room = max(0, min(payload_bytes - 1, MAX_BODY_BYTES - 1))
    if form.runs:
        return _runs_reach(pattern, form, room)
    if not form.compressed:
        return pattern.base + min(pattern.size, form.largest, max(0, 8 * (room - form.width - 1))) - 1
    top = min(pattern.size, form.largest, 8 * (MAX_BODY_BYTES - form.width - 2)) // 8
    # Not of the whole pattern: after a gap of billions, its bits alone would take gigabytes.
    last = pattern.base + 8 * top + 7
    holds = pattern if pattern.highest <= last else Pattern(pattern.base, last, pattern.until(last))
    octets = _furthest(lambda octets: len(compress_frame(_bitset_prefix(holds, form, 8 * octets))), room, top)
    return pattern.base + 8 * octets - 1


def _bitset_prefix(pattern: Pattern, form: JavaFormat, size: int) -> bytes:
    """The body of the map cut at the last complete offset among the first ``size``."""
    size = pattern.last_complete(pattern.base + size - 1) - pattern.base + 1
    octets = bytearray(pattern.bitset[: (size + 7) // 8])
    if size % 8:
        octets[-1] &= (1 << size % 8) - 1
    return size.to_bytes(form.width, "big") + octets + b"\0"


def _runs_reach(pattern: Pattern, form: JavaFormat, room: int) -> int:
    """The reach when cut after a run of complete offsets, that is after an even number of entries."""
    runs, ends = pattern.runs, pattern.run_ends
    entries = min(len(runs), MAX_BODY_BYTES // form.width)
    if pattern.longest_run > form.largest:
        entries = min(entries, next(at for at, run in enumerate(runs) if run > form.largest))
    if form.compressed:
        body = run_length_body(pattern, form, entries)
        step = 2 * form.width
        entries = 2 * _furthest(lambda pairs: len(compress_frame(body[: step * pairs])), room, entries // 2)
        return pattern.base + (ends[entries - 1] if entries else 0) - 1
    entries = min(entries, max(0, room // form.width))
    if entries % 2 and entries < len(runs) and runs[entries] > form.largest and room >= form.width * (entries + 1):
        return pattern.base + ends[entries - 1] + form.largest - 1  # part of a run that is too long for an entry
    entries -= entries % 2
    return pattern.base + (ends[entries - 1] if entries else 0) - 1


def _furthest(size: Callable[[int], int], room: int, top: int) -> int:
    """The largest ``at`` up to ``top`` found with ``size(at) <= room``; 0 if there is none.

    Sizes grow nearly in proportion, so each attempt aims at the expected end, between the largest ``at`` that fits and
    the smallest that does not. The last attempts bisect.
    """
    fits, too_far, at = 0, top + 1, min(top, max(1, room))
    for attempt in range(_TRIES):
        if not fits < at < too_far:
            break
        found = size(at)
        if found <= room:
            fits = at
        else:
            too_far = at
        aim = at * room // max(1, found) if attempt < _TRIES // 2 else (fits + too_far) // 2
        at = max(fits + 1, min(too_far - 1, aim))
    return fits
