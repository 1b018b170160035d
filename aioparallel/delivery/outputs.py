"""Checks what handlers return: the outputs in it, whether they are valid, and their size."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, cast

from aioparallel.config.policies import OnProduced
from aioparallel.delivery.output_names import with_digests
from aioparallel.records.errors import InvalidOutput
from aioparallel.records.record import Outgoing, Produced, Record
from aioparallel.records.user_errors import RAISED, refuse_coroutine
from aioparallel.records.wording import kind_of

__all__ = ["changed_since", "outputs_in", "size_of", "tell"]

logger = logging.getLogger(__name__)

_OVERHEAD: Final = 256
"""Bytes of overhead for each output: Python objects, its entry in a batch."""


def outputs_in(record: Record[Any, Any], value: object) -> Sequence[Outgoing] | None:
    """Return the outputs that a handler returned for this record, with digests where needed; None if there are none.
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
    return with_digests(cast("list[Outgoing]", outputs)) or None


def changed_since(record: Record[Any, Any], outputs: Iterable[Outgoing]) -> InvalidOutput | None:
    """Return an error if an output was changed after it was made, and is invalid now."""
    try:
        for output in outputs:
            output.check()
    except TypeError as error:
        return InvalidOutput(f"of {record.topic_partition} offset {record.offset}, changed after it was made: {error}")
    return None


def size_of(output: Outgoing) -> int:
    """Return the bytes that count until the output is acknowledged."""
    size = _OVERHEAD + (len(output.value) if output.value is not None else 0)
    if output.key is not None:
        size += len(output.key)
    for name, value in output.headers:
        size += len(name) + (len(value) if value is not None else 0)
    return size


def tell(
    on_produced: OnProduced,
    record: Record[Any, Any],
    output: Outgoing,
    place: Produced,
    fatal: Callable[[BaseException], None],
) -> None:
    """Call ``on_produced``. An error is logged and otherwise ignored. One that is no Exception, such as SystemExit,
    goes to ``fatal``: raised here, it would keep the other outputs of the batch from their results."""
    try:
        returned: object = on_produced(record, output, place)  # type: ignore[func-returns-value]
        refuse_coroutine(returned)
    except RAISED:
        logger.exception(
            "on_produced failed for the output of %s at %s-%d offset %d; the output is written in any case",
            record,
            place.topic,
            place.partition,
            place.offset,
            extra={"action": "on_produced_failed"},
        )
    except BaseException as error:
        error.add_note(f"in on_produced, for the output of {record.place}, which is written")
        fatal(error)


def _wrong(record: Record[Any, Any], found: str) -> InvalidOutput:
    return InvalidOutput(
        f"the handler returned {found} for {record.topic_partition} offset {record.offset}: it may return None, an "
        "Outgoing, or an iterable of them; for other results use `async for result in consumer.results(handler)`",
        found,
    )
