"""Which offsets of a partition are done, and how that is written into a commit. Pure: no I/O, no clock.

::

    ledger.py       which offsets of a partition are complete
    offset_map.py   what is written of it: the base offset and what is complete above
    encoding.py     an offset map as text of a commit's metadata, and back
    fitting.py      as much of it as fits
    frames.py       the bytes around it
    packing.py      rows of flags packed into bytes
    dense/          a format of our own      java/   those of the Java library
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
