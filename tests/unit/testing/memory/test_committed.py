"""``records()`` keeps what it has read: it shows the log as it is, whatever has happened since the last call."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from aioparallel.records.record import TopicPartition
from aioparallel.testing.memory import InMemoryBroker, Transaction
from aioparallel.testing.memory.log import PartitionLog

P0 = TopicPartition("t", 0)
STEPS = st.one_of(
    st.tuples(st.sampled_from(["append", "append in", "begin", "commit", "abort", "recreate"]), st.just(0)),
    st.tuples(st.sampled_from(["append", "append in", "delete before", "truncate", "compact"]), st.integers(0, 3)),
)


class Course:
    """What happens to a partition."""

    def __init__(self) -> None:
        self.broker = InMemoryBroker()
        self.broker.create_topic("t")
        self._open: list[Transaction] = []
        self._count = 0

    def step(self, what: str, number: int) -> None:
        """One change; nothing where it does not apply. ``number``: of the transaction, or how far before the end."""
        broker = self.broker
        offset = self._log.end_offset - number
        if what == "append":
            self._append(None)
        elif what == "begin":
            self._open.append(broker.begin_transaction())
        elif what == "append in" and self._open:
            self._append(self._open[number % len(self._open)])
        elif what in ("commit", "abort") and self._open:
            broker.end_transaction(self._open.pop(), commit=what == "commit")
        elif what == "recreate":
            broker.delete_topic("t")
            broker.create_topic("t")
        elif what == "delete before":
            broker.delete_before(P0, offset)
        elif what == "truncate":
            broker.truncate_tail(P0, offset)
        elif what == "compact":
            broker.compact(P0, [offset])

    @property
    def _log(self) -> PartitionLog:
        log = self.broker.log(P0)
        assert log is not None
        return log

    def _append(self, transaction: Transaction | None) -> None:
        self._count += 1
        self.broker.append("t", b"%d" % self._count, transaction=transaction)

    def read_afresh(self) -> list[tuple[int, bytes | None]]:
        """By somebody who has never read before."""
        log = self._log
        found = log.read(log.start_offset, log.end_offset, read_committed=True).records
        return [(stored.offset, stored.value) for stored in found]


@given(st.lists(STEPS, max_size=30))
def test_what_was_kept_is_what_a_new_reader_sees(steps: list[tuple[str, int]]) -> None:
    """After each step."""
    course = Course()
    for step in steps:
        course.step(*step)
        found = [(record.offset, record.value) for record in course.broker.records("t")]
        assert found == course.read_afresh(), step


def test_a_record_is_read_once() -> None:
    """Asking again brings the same ones, in a list of its own."""
    broker = InMemoryBroker()
    broker.create_topic("t", 2)
    broker.append("t", b"first", partition=1)
    (first,) = found = broker.records("t")
    broker.append("t", b"second", partition=0)
    assert broker.records("t")[1] is first
    assert found == [first]
