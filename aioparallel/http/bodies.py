"""Decodes response bodies as they arrive, up to a size limit. Both clients use it, so they decode alike."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from typing import Final

import zstandard

__all__ = ["ACCEPTED", "Body", "Unreadable", "check_length"]

ACCEPTED: Final = "gzip, deflate, zstd"
"""The value of ``Accept-Encoding``: the codings that this module decodes."""
# IANA's other content codings. Names outside the list ("utf-8", "aws-chunked") are sent by some services with a body
# that is not encoded.
_NOT_READ: Final = frozenset(
    {"aes128gcm", "br", "compress", "dcb", "dcz", "exi", "pack200-gzip", "x-compress"},
)
# The first byte of each gzip member.
_GZIP: Final = 0x1F
# Most bytes that zlib returns in one step.
_STEP: Final = 1 << 16
# Bytes given to zstd in one step: a block of 128 KiB can be compressed into four.
_SLICE: Final = 256
# The largest zstd window in HTTP (RFC 9659).
_WINDOW: Final = 8 << 20


class Unreadable(Exception):
    """The body cannot be decoded or is too large. The text has no part of the body."""


def check_length(length: str | None, most: int) -> None:
    """Raises Unreadable if the Content-Length ``length`` exceeds ``most`` bytes."""
    if length is not None and length.isdecimal() and len(length) < 20 and int(length) > most:
        raise _too_large(most)


class Body:
    """A body that arrives in parts. ``coding``: its Content-Encoding; ``most``: the limit in bytes, decoded. Raises
    Unreadable for a coding that cannot be decoded."""

    def __init__(self, coding: str, most: int) -> None:
        self._most = most
        self._parts: list[bytes] = []
        self._size = 0
        self._decoder = _decoder_of(coding, self._keep)

    @property
    def is_plain(self) -> bool:
        """Whether it is not encoded."""
        return self._decoder is None

    def feed(self, raw: bytes) -> None:
        """Add the next bytes. Raises Unreadable."""
        if self._decoder is None:
            self._keep(raw)
        else:
            self._decoder.feed(raw)

    def end(self) -> bytes:
        """The whole body, decoded. Raises Unreadable if its end is missing."""
        if self._decoder is not None:
            self._decoder.end()
        return self._parts[0] if len(self._parts) == 1 else b"".join(self._parts)

    def _keep(self, some: bytes) -> None:
        self._size += len(some)
        if self._size > self._most:
            self._parts.clear()
            raise _too_large(self._most)
        if some:
            self._parts.append(some)


def _too_large(most: int) -> Unreadable:
    return Unreadable(f"its answer has more than {most:,} bytes, which is max_response_bytes")


def _decoder_of(coding: str, keep: Callable[[bytes], None]) -> _Zlib | _Zstd | None:
    names = [name for one in coding.lower().split(",") if (name := one.strip()) and name != "identity"]
    if not names:
        return None
    if len(names) == 1:
        if names[0] in ("gzip", "x-gzip", "deflate"):
            return _Zlib(names[0].removeprefix("x-"), keep)
        if names[0] == "zstd":
            return _Zstd(keep)
        if names[0] not in _NOT_READ:
            return None
    known = [name for name in names if name in _NOT_READ or name in ("gzip", "x-gzip", "deflate", "zstd")]
    if not known:
        return None
    raise Unreadable(f"its answer has the Content-Encoding {', '.join(known)}, which was not asked for")


class _Zlib:
    """gzip of one or more members; deflate with or without the zlib header, as servers send both."""

    def __init__(self, name: str, keep: Callable[[bytes], None]) -> None:
        self._name = name
        self._keep = keep
        self._wbits = zlib.MAX_WBITS | 16 if name == "gzip" else zlib.MAX_WBITS
        self._stream = zlib.decompressobj(self._wbits)
        self._has_begun = False

    def feed(self, raw: bytes) -> None:
        if raw and not self._has_begun:
            self._has_begun = True
            if self._name == "deflate" and raw[0] & 0x0F != 8:
                self._stream = zlib.decompressobj(-zlib.MAX_WBITS)
        try:
            while raw:
                if self._stream.eof:
                    if self._name != "gzip" or raw[0] != _GZIP:
                        return  # padding or trailing garbage
                    self._stream = zlib.decompressobj(self._wbits)
                self._keep(self._stream.decompress(raw, _STEP))
                raw = self._stream.unused_data if self._stream.eof else self._stream.unconsumed_tail
        except zlib.error:
            raise Unreadable(f"its answer is not valid {self._name}") from None

    def end(self) -> None:
        while self._has_begun and not self._stream.eof:
            try:
                some = self._stream.decompress(b"", _STEP)  # output that the last step held back
            except zlib.error:
                some = b""
            if not some:
                raise Unreadable(f"its answer, in {self._name}, breaks off")
            self._keep(some)


class _Zstd:
    """One or more frames."""

    def __init__(self, keep: Callable[[bytes], None]) -> None:
        self._keep = keep
        self._stream = _frame()
        self._is_within = False

    def feed(self, raw: bytes) -> None:
        for start in range(0, len(raw), _SLICE):
            some = raw[start : start + _SLICE]
            try:
                while some:
                    if self._stream.eof:
                        self._stream = _frame()
                    self._is_within = True
                    self._keep(self._stream.decompress(some))
                    some = self._stream.unused_data if self._stream.eof else b""
            except (zstandard.ZstdError, MemoryError):
                raise Unreadable("its answer is not valid zstd") from None

    def end(self) -> None:
        if self._is_within and not self._stream.eof:
            raise Unreadable("its answer, in zstd, breaks off")


def _frame() -> zstandard.ZstdDecompressionObj:
    return zstandard.ZstdDecompressor(max_window_size=_WINDOW).decompressobj()
