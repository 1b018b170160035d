"""The command: its options and help. The code is imported when it runs."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Final, Literal

from cyclopts import Group, Parameter
from cyclopts.types import NonNegativeInt

from aioparallel.cli.cluster import Cluster
from aioparallel.cli.parsing import name_and_value
from aioparallel.records.errors import ConfigurationError

__all__ = ["Producing", "produce"]

WHAT: Final = Group("Records", sort_key=1)


@Parameter(name="*", group=WHAT)
@dataclass(frozen=True, kw_only=True, slots=True)
class Producing:
    """How a line becomes a record. Raises ConfigurationError."""

    key: Annotated[bytes | None, Parameter(metavar="TEXT")] = None
    """The key of every record. By default records have no key, and a whole batch of them goes to one partition."""
    key_separator: Annotated[str | None, Parameter(metavar="TEXT")] = None
    """Split each line at the first occurrence: key before it, value behind it."""
    key_field: Annotated[str | None, Parameter(metavar="FIELD")] = None
    """Each line is a JSON object, and this field is the key: `id`, or `customer.id` for a field within a field."""
    header: Annotated[tuple[str, ...], Parameter(metavar="NAME=VALUE")] = ()
    """A header of every record. Repeatable."""
    partition: NonNegativeInt | None = None
    """The partition of every record. By default the key chooses it, as in Kafka's Java client; without a key the
    producer does, a batch at a time."""
    empty_is_null: bool = False
    """An empty value becomes null, which deletes the key in a compacted topic."""
    compression: Literal["none", "gzip", "lz4", "snappy", "zstd"] = "none"
    """The codec of the batches."""

    def __post_init__(self) -> None:
        given = [name for name in ("key", "key_separator", "key_field") if getattr(self, name) is not None]
        if len(given) > 1:
            raise ConfigurationError(
                given[1], getattr(self, given[1]), f"cannot be combined with --{given[0].replace('_', '-')}"
            )
        for name in ("key_separator", "key_field"):
            if getattr(self, name) == "":
                raise ConfigurationError(name, "", "must not be empty")
        self.headers()

    def headers(self) -> tuple[tuple[str, bytes], ...]:
        """The parsed ``header`` options."""
        pairs = (name_and_value("header", text, "must be NAME=VALUE, as in source=import") for text in self.header)
        return tuple((name, os.fsencode(value)) for name, value in pairs)  # bytes that are no UTF-8 as they were typed


async def produce(
    topic: Annotated[str, Parameter(help="The topic, which must exist.")],
    files: Annotated[tuple[Path, ...], Parameter(help="Files to read; none: standard input.")] = (),
    /,
    *,
    how: Producing = Producing(),
    where: Cluster = Cluster(),
) -> bool:
    """Write a record for each line of files or standard input, in order, and wait for the broker's acknowledgement.

    The producer is idempotent, with `acks=all`. The exit code is 1 when a record was not written; the message names its
    line.

    Records without a key go to one partition until its batch is full or sent, so a few lines at once are all in one
    partition. Keys spread them: `--key-separator` or `--key-field`.

    **Examples**

    - `echo 'N14228:{"delay": 11}' | aioparallel produce flights --key-separator :`
    - `aioparallel produce orders orders.jsonl --key-field customer.id`
    - `aioparallel produce orders --key 17 --header source=repair < one-line.json`
    """
    from aioparallel.cli.produce.producing import produce_lines  # noqa: PLC0415 - brings the Kafka client

    return await produce_lines(topic, files, how, where)
