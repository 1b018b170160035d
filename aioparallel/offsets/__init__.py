"""Which offsets of a partition are done, and how that is written into a commit. Pure: no I/O, no clock."""

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
