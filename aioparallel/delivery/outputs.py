"""What handlers return, looked at: which outputs are in it, whether they may leave, what they take."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from typing import Any, Final, cast

from aioparallel.delivery.output_names import told_apart
from aioparallel.errors import InvalidOutput
from aioparallel.policies import OnProduced
from aioparallel.records import Outgoing, Produced, Record
from aioparallel.user_errors import RAISED
from aioparallel.wording import kind_of

__all__ = ["changed_since", "outputs_in", "size_of", "tell"]

logger = logging.getLogger(__name__)

_OVERHEAD: Final = 256
"""Bytes that an output costs beside its own: objects, its place in a batch."""


def outputs_in(record: Record[Any, Any], value: object) -> Sequence[Outgoing] | None:
    """The outputs that a handler has returned for this record, none of them named like another; None: there are none.
    Raises InvalidOutput."""
    if isinstance(value, Outgoing):
        return (value,)
    if value is None:
        return None
    if not isinstance(value, Iterable) or isinstance(value, str | bytes | dict):
        raise _wrong(record, kind_of(value))
    outputs = list(cast("Iterable[object]", value))
    for output in outputs:
        if not isinstance(output, Outgoing):
            raise _wrong(record, f"{kind_of(value)} with {kind_of(output)} in it")
    return told_apart(cast("list[Outgoing]", outputs)) or None


def changed_since(record: Record[Any, Any], outputs: Iterable[Outgoing]) -> InvalidOutput | None:
    """They were right when they were made, and may have been changed since."""
    try:
        for output in outputs:
            output.check()
    except TypeError as error:
        return InvalidOutput(f"of {record.topic_partition} offset {record.offset}, changed after it was made: {error}")
    return None


def size_of(output: Outgoing) -> int:
    """Bytes it takes until it is acknowledged."""
    size = _OVERHEAD + (len(output.value) if output.value is not None else 0)
    if output.key is not None:
        size += len(output.key)
    for name, value in output.headers:
        size += len(name) + (len(value) if value is not None else 0)
    return size


def tell(on_produced: OnProduced, record: Record[Any, Any], output: Outgoing, place: Produced) -> None:
    """Call it; nothing comes of what it raises."""
    try:
        on_produced(record, output, place)
    except RAISED:
        logger.exception(
            "on_produced failed for the output of %s at %s-%d offset %d, which stands there all the same",
            record,
            place.topic,
            place.partition,
            place.offset,
            extra={"action": "on_produced_failed"},
        )


def _wrong(record: Record[Any, Any], found: str) -> InvalidOutput:
    return InvalidOutput(
        f"the handler returned {found} for {record.topic_partition} offset {record.offset}: it may return None, an "
        "Outgoing, or an iterable of them; to get other results use `async for result in consumer.results(handler)`",
        found,
    )
