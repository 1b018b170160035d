"""Encodes outputs as Kafka record batches (message format 2), with aiokafka's builder."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final

from aiokafka.record.default_records import DefaultRecordBatch, DefaultRecordBatchBuilder, _DefaultRecordBatchBuilderPy

from aioparallel.clients.producing.numbering import Identity
from aioparallel.clients.producing.partition_queue import Unencodable
from aioparallel.delivery.producer import PendingOutput, TooLarge
from aioparallel.records.record import Outgoing, raw_name

__all__ = ["BatchEncoder"]

_MAGIC: Final = 2
_CODECS: Final[dict[str | None, int]] = {
    None: 0,
    "gzip": DefaultRecordBatch.CODEC_GZIP,
    "snappy": DefaultRecordBatch.CODEC_SNAPPY,
    "lz4": DefaultRecordBatch.CODEC_LZ4,
    "zstd": DefaultRecordBatch.CODEC_ZSTD,
}
_OVERHEAD: Final = 128
"""More bytes than a record without headers and its batch take besides key and value."""


Header = tuple[str, bytes | None]


class _RawName(str):
    """A header name that is encoded to the bytes it was read from."""

    __slots__ = ()

    def encode(self, encoding: str = "utf-8", errors: str = "strict") -> bytes:
        """Ignores its arguments, which aiokafka sets."""
        del encoding, errors
        return super().encode("utf-8", "surrogateescape")


def _raw_header(header: Header) -> Header:
    return _RawName(header[0]), header[1]


def _of_equal_size(headers: Iterable[Header]) -> list[Header]:
    """Headers with plain names of the same encoded length. Raises UnicodeEncodeError for names that are not text read
    from bytes."""
    return [("x" * len(_RawName(name).encode()), value) for name, value in headers]


class BatchEncoder:
    """Encodes batches, and checks outputs beforehand.

    ``compression``: aiokafka's name of the codec, or None. ``largest``: most bytes of an output (``max_request_size``).
    ``is_transactional``: whether the batches belong to transactions.
    """

    def __init__(self, compression: str | None, largest: int, *, is_transactional: bool = False) -> None:
        self._is_transactional = is_transactional
        self._codec = _CODECS[compression]
        self._largest = largest
        self.unchecked_bytes = max(0, largest - _OVERHEAD)
        """An output without headers needs no check up to this size of key and value together."""
        self._size: Callable[..., int] = DefaultRecordBatchBuilder.estimate_size_in_bytes

    def check(self, output: Outgoing) -> str | None:
        """Why this output cannot be sent, or None."""
        try:
            headers = list(output.headers)
            if any(raw_name(name) is not None for name, _ in headers):
                headers = _of_equal_size(headers)
            size = self._size(output.key, output.value, headers)
        except Exception as error:
            return f"its headers must be pairs of a str and bytes or None: {error}"
        if size <= self._largest:
            return None
        return TooLarge(
            f"it is {size:,} bytes large and max_request_size is {self._largest:,}; raise that in "
            "Producing(client_options=...) (and max.message.bytes of the topic), or send less"
        )

    def __call__(
        self, entries: Iterable[PendingOutput], identity: Identity, sequence: int, limit: int
    ) -> tuple[bytes, int]:
        try:
            return self._encoded(DefaultRecordBatchBuilder, entries, identity, sequence, limit)
        except UnicodeEncodeError:
            # aiokafka's Python builder is slow, but calls encode() on each name.
            return self._encoded(_DefaultRecordBatchBuilderPy, entries, identity, sequence, limit, header=_raw_header)

    def _encoded(
        self,
        make: Callable[..., Any],
        entries: Iterable[PendingOutput],
        identity: Identity,
        sequence: int,
        limit: int,
        header: Callable[[Header], Header] | None = None,
    ) -> tuple[bytes, int]:
        builder = make(
            _MAGIC,
            self._codec,
            is_transactional=self._is_transactional,
            producer_id=identity.producer_id,
            producer_epoch=identity.epoch,
            base_sequence=sequence,
            batch_size=limit,
        )
        append = builder.append
        no_headers: list[tuple[str, bytes | None]] = []
        count = 0
        try:
            for entry in entries:
                output = entry.output
                headers = list(output.headers) if output.headers else no_headers
                if header is not None:
                    headers = [header(one) for one in headers]
                if append(count, entry.timestamp, output.key, output.value, headers) is None:
                    break
                count += 1
        except Exception as error:  # an output may have been changed after it was handed over
            # The builder is unusable now. Encode the entries before this one; this one is then the first of the next.
            if count:
                return self(list(entries)[:count], identity, sequence, limit)
            if isinstance(error, UnicodeEncodeError) and header is None:
                raise
            raise Unencodable(f"it cannot be encoded as a record: {error}") from error
        return bytes(builder.build()), count
