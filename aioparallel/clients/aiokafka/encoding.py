"""Outputs written as Kafka's record batches (message format 2), with aiokafka's builder."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final, cast

from aiokafka.record.default_records import DefaultRecordBatch, DefaultRecordBatchBuilder

from aioparallel.clients.aiokafka.producer_internals import BatchBuilder
from aioparallel.clients.producing.numbering import Identity
from aioparallel.clients.producing.partition_queue import Unencodable
from aioparallel.delivery.producer import PendingOutput
from aioparallel.records import Outgoing

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
"""Bytes, more than a record without headers and its batch take besides key and value."""


class BatchEncoder:
    """Writes batches, and says beforehand what cannot be written.

    ``compression``: aiokafka's name of the codec, or None. ``largest``: bytes of an output (``max_request_size``).
    ``is_transactional``: whether the batches are of transactions.
    """

    def __init__(self, compression: str | None, largest: int, *, is_transactional: bool = False) -> None:
        self._is_transactional = is_transactional
        self._codec = _CODECS[compression]
        self._largest = largest
        self.unchecked_bytes = max(0, largest - _OVERHEAD)
        """Key and value together: up to here, an output without headers needs no check."""
        self._size = cast("Callable[..., int]", DefaultRecordBatchBuilder.estimate_size_in_bytes)

    def check(self, output: Outgoing) -> str | None:
        """Why this output cannot be sent, or None."""
        try:
            size = self._size(output.key, output.value, list(output.headers))
        except Exception as error:
            return f"its headers must be pairs of a text and bytes or None: {error}"
        if size <= self._largest:
            return None
        return (
            f"it is {size:,} bytes large and max_request_size is {self._largest:,}; raise that in "
            "Producing(client_options=...) (and max.message.bytes of the topic), or send less"
        )

    def __call__(
        self, entries: Iterable[PendingOutput], identity: Identity, sequence: int, limit: int
    ) -> tuple[bytes, int]:
        """See :class:`~aioparallel.clients.producing.partition_queue.Encode`."""
        builder = cast(
            "BatchBuilder",
            DefaultRecordBatchBuilder(
                _MAGIC,
                self._codec,
                is_transactional=self._is_transactional,
                producer_id=identity.producer_id,
                producer_epoch=identity.epoch,
                base_sequence=sequence,
                batch_size=limit,
            ),
        )
        append = builder.append
        no_headers: list[tuple[str, bytes | None]] = []
        count = 0
        try:
            for entry in entries:
                output = entry.output
                headers = list(output.headers) if output.headers else no_headers
                if append(count, entry.timestamp, output.key, output.value, headers) is None:
                    break
                count += 1
        except Exception as error:  # whatever an output was changed to after it was handed over
            # The builder is of no use any more. What comes before is sent by itself, and then this is the first.
            if count:
                return self(list(entries)[:count], identity, sequence, limit)
            raise Unencodable(f"it cannot be written as a record: {error}") from error
        return bytes(builder.build()), count
