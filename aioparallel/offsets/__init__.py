"""Which offsets of a partition are complete, and how a commit stores that. Pure: no I/O, no clock.

::

    ledger.py       which offsets of a partition are complete
    offset_map.py   the content of a map: a base offset, and what is complete above it
    encoding.py     an offset map as the text in a commit's metadata, and back
    fitting.py      cuts a map to a limit
    editing.py      changes single offsets of a map
    frames.py       zstd frames
    packing.py      rows of numbers and of binary digits
    dense/          this package's own format      java/   the formats of the Java library
"""

from aioparallel.offsets.encoding import decode_offset_map, encode_offset_map
from aioparallel.offsets.fitting import fit_offset_map
from aioparallel.offsets.ledger import Ledger
from aioparallel.offsets.offset_map import MAX_BODY_BYTES, MAX_INCOMPLETES, OffsetMap

__all__ = [
    "MAX_BODY_BYTES",
    "MAX_INCOMPLETES",
    "Ledger",
    "OffsetMap",
    "decode_offset_map",
    "encode_offset_map",
    "fit_offset_map",
]
