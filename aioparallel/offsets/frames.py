"""Writes zstd frames as the Java library does, and reads them defensively."""

from __future__ import annotations

import zstandard

from aioparallel.offsets.offset_map import MAX_BODY_BYTES
from aioparallel.records.errors import OffsetMapError

__all__ = ["compress_frame", "decompress_frame"]

_LEVEL = 3  # the default of zstd, and of Java's ZstdOutputStream
_MAX_WINDOW_BYTES = 8 * 1024 * 1024
_PIECE_BYTES = 256
"""A block of a frame takes at least 4 bytes and yields at most 128 KiB, so a piece yields at most 8 MiB."""


def compress_frame(body: bytes) -> bytes:
    """One frame without content size, as a streaming writer makes it."""
    stream = zstandard.ZstdCompressor(level=_LEVEL, write_content_size=False).compressobj()
    return stream.compress(body) + stream.flush()


def decompress_frame(frame: bytes) -> bytes:
    """Decompress one whole frame, with or without content size.

    Raises OffsetMapError if it is damaged, incomplete, followed by more bytes, or larger than MAX_BODY_BYTES.
    """
    stream = zstandard.ZstdDecompressor(max_window_size=_MAX_WINDOW_BYTES).decompressobj()
    pieces: list[bytes] = []
    total = 0
    for at in range(0, len(frame), _PIECE_BYTES):
        if stream.eof:
            raise OffsetMapError(f"offset map: {len(frame) - at} bytes or more follow the zstd frame")
        try:
            piece = stream.decompress(frame[at : at + _PIECE_BYTES])
        except (zstandard.ZstdError, MemoryError) as error:
            raise OffsetMapError(f"offset map: damaged zstd frame: {error}") from None
        pieces.append(piece)
        total += len(piece)
        if total > MAX_BODY_BYTES:
            raise OffsetMapError(f"offset map: the zstd frame expands to more than {MAX_BODY_BYTES} bytes")
    if not stream.eof:
        raise OffsetMapError("offset map: the zstd frame is truncated")
    if stream.unused_data:
        raise OffsetMapError(f"offset map: {len(stream.unused_data)} bytes follow the zstd frame")
    return b"".join(pieces)
