"""Which records of the model go into which batches: handlers, topics of one or of several, and calls."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from hypothesis import strategies as st

from aioparallel.handlers.batches import Batch, BatchHandler, Batching, By, Call, batches
from aioparallel.handlers.stack import Batchings
from aioparallel.records.record import Record
from tests.support.model.model import GAP, Entry

__all__ = ["FIRST_CELLS", "KEYS", "KINDS", "WAYS", "Together", "Ways", "kind"]

Way = int | None
"""Which batch handler a record goes to, by number; None: it runs by itself."""


async def _handle(batch: Batch[Any]) -> None:
    raise AssertionError("nothing is run here")


async def _run(call: Call) -> None:
    raise AssertionError("nothing is run here")


def kind(size: int = 2, by: By = "any", *, linger: float = 0.0, max_bytes: int | None = None) -> Batching:
    """A batch handler."""
    handler: BatchHandler[Any, Any] = batches(_handle, size=size, linger=linger, by=by, max_bytes=max_bytes)
    return Batching(handler, _run)


class Ways(Batchings):
    """Records of a partition with one way all go there; with several they take turns, two by two."""

    def __init__(self, kinds: Sequence[Batching], of_partition: Sequence[Sequence[Way]]) -> None:
        super().__init__({}, None)
        self._kinds = kinds
        self._of_partition = of_partition

    def of(self, record: Record[Any, Any]) -> Batching | None:
        ways = self._of_partition[record.partition]
        way = ways[record.offset // 2 % len(ways)]
        return None if way is None else self._kinds[way % len(self._kinds)]

    def are_mixed(self, record: Record[Any, Any]) -> bool:
        return len(self._of_partition[record.partition]) > 1

    def only(self, partition: int) -> Batching | None:
        """Where all records of the partition go; None: to several, or none."""
        ways = self._of_partition[partition]
        return None if len(ways) > 1 or ways[0] is None else self._kinds[ways[0] % len(self._kinds)]

    def is_plain(self, partition: int) -> bool:
        """Whether all its records run by themselves."""
        return list(self._of_partition[partition]) == [None]


@dataclass(eq=False)
class Together:
    """A call in the model, from its start until it is settled; then its failed records are on their own."""

    call: Call
    entries: list[Entry]
    settled: bool = False


KINDS = st.builds(
    kind,
    st.sampled_from([2, 3, 5, 4, 3, 4, 2, 5, 1]),
    st.sampled_from(["any", "any", "partition", "lane"]),
    linger=st.sampled_from([0.0, 1.0, 1.0]),
    max_bytes=st.none() | st.none() | st.integers(1, 12),
)
KEYS = st.sampled_from([b"a", b"ab", b"b", b"a", b"", None, None, GAP])
FIRST_CELLS = st.lists(KEYS, min_size=3, max_size=12)
WAY = st.sampled_from([0, 0, 0, 1, 1, None])
WAYS = (
    st.lists(WAY, min_size=1, max_size=1)
    | st.lists(WAY, min_size=1, max_size=1)
    | st.lists(WAY, min_size=2, max_size=3)
)
