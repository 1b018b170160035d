"""What goes wrong: members that come and go, requests, nodes and coordinators that fail, records that keep coming."""

from __future__ import annotations

from collections.abc import Callable

from aioparallel.records.record import TopicPartition
from aioparallel.testing.memory import Transaction

from .members import Member
from .stage import GROUP, NODES, TOPIC, Stage
from .truth import Place

__all__ = ["Director"]


class Director(Stage):
    """Draws what happens next."""

    def act(self) -> None:
        """Something happens."""
        acts: list[tuple[float, Callable[[], None]]] = [
            (3, self._enter),
            (2, self._append),
            (1.5, self._stop_one),
            (0.5, self._pause_one),
        ]
        if not self.plan.calm:
            acts += [
                (1, self._cancel_one),
                (0.7, self._crash_one),
                (1, self._lose_one),
                (1, self._move_a_leader),
                (0.7, self._trouble_a_node),
                (0.3, self._vanish),
                (0.3, self._lose_the_coordinator),
            ]
        [(_, act)] = self.rng.choices(acts, [weight for weight, _ in acts])
        act()

    # -- records

    def _fill(self) -> None:
        self.broker.create_topic(TOPIC, self.plan.partitions)
        self._append_some(self.plan.records)
        for number in range(self.plan.partitions):
            partition = TopicPartition(TOPIC, number)
            offsets = sorted(self.truth.expected.get(partition, ()))
            gone = [offset for offset in offsets if self.rng.random() < self.plan.gaps]
            self.broker.compact(partition, gone)
            self.truth.removed(partition, gone)

    def _append(self) -> None:
        self._append_some(self.rng.randint(1, 30))

    def _append_some(self, count: int) -> None:
        """Append records, some of them in transactions that end a little later or are aborted."""
        transaction, aborted = None, False
        for _ in range(count):
            if transaction is None and self.rng.random() < self.plan.transactions:
                transaction, aborted = self.broker.begin_transaction(), self.rng.random() < 0.5
            number, key = self.rng.randrange(self.plan.partitions), self.rng.choice(self.plan.keys)
            self._append_one(number, key, transaction, is_seen=not (self.plan.read_committed and aborted))
            if transaction is not None and self.rng.random() < 0.3:
                self.broker.end_transaction(transaction, commit=not aborted)
                transaction, aborted = None, False
        if transaction is not None:
            ended, commit = transaction, not aborted
            self.later(self.rng.uniform(0, 1), lambda: self.broker.end_transaction(ended, commit=commit))

    def _append_one(
        self, number: int, key: bytes | None, transaction: Transaction | None = None, *, is_seen: bool = True
    ) -> None:
        value = b"%d" % self.rng.randint(0, 10**6)
        partition, offset = self.broker.append(TOPIC, value, key=key, partition=number, transaction=transaction)
        if is_seen:
            self.truth.appended(Place(partition, offset), key, value)

    # -- members

    def _enter(self, *, until_end: bool | None = None) -> None:
        if sum(not member.is_leaving for member in self.members) >= max(1, self.plan.members):
            return
        until_end = self.plan.until_end and self.rng.random() < 0.5 if until_end is None else until_end
        member = Member(self, f"m{len(self.everybody) + 1}", until_end=until_end)
        if not self.is_healed:
            member.may_end_with.add("BrokerUnreachable")
        self.tell(lambda: f"{member.name} comes{' until the end' if until_end else ''}")
        self.members.append(member)
        self.everybody.append(member)
        member.come()

    def _one(self) -> Member | None:
        able = [member for member in self.members if not member.is_leaving]
        return self.rng.choice(able) if able else None

    def _stop_one(self) -> None:
        if (member := self._one()) is not None:
            drain = self.rng.random() < 0.6
            member.stop(drain=drain)
            if drain and self.rng.random() < 0.3:
                self.later(self.rng.uniform(0, 0.5), lambda: member.stop(drain=False))
            elif not self.plan.calm and self.rng.random() < 0.2:
                self._cancel_again(member)

    def _cancel_one(self) -> None:
        if (member := self._one()) is not None:
            member.cancel()
            if self.rng.random() < 0.3:
                self._cancel_again(member)

    def _cancel_again(self, member: Member) -> None:
        """Cancel it while it is on its way out, perhaps."""
        self.later(self.rng.uniform(0, 0.5), member.cancel)

    def _crash_one(self) -> None:
        member = self._one()
        if member is not None and member.is_open:
            member.crash()

    def _lose_one(self) -> None:
        known = self.broker.member_ids(GROUP)
        if known:
            name = self.rng.choice(known)
            self.tell(lambda: f"the group throws {name} out")
            self.broker.expire_session(GROUP, name, self.loop.time())

    def _pause_one(self) -> None:
        if (member := self._one()) is not None:
            member.pause(self.rng.uniform(0, 0.5))

    # -- brokers

    def _move_a_leader(self) -> None:
        topic = self.rng.choice(("out", "dlq"))
        partition, node = TopicPartition(topic, self.rng.randrange(3)), self.rng.randint(1, NODES)
        self.tell(lambda: f"{partition} moves to node {node}")
        self.broker.move_leader(partition, node)

    def _trouble_a_node(self) -> None:
        node, seconds = self.rng.randint(1, NODES), self.rng.uniform(0.1, 2.0)
        if self.rng.random() < 0.5:
            self.tell(lambda: f"node {node} hangs for {seconds:.2f} s")
            self.broker.hang(node)
            self.later(seconds, lambda: self.broker.unhang(node))
        else:
            self.tell(lambda: f"node {node} stops for {seconds:.2f} s")
            self.broker.stop_node(node)
            self.later(seconds, lambda: self.broker.start_node(node))

    def _vanish(self) -> None:
        seconds = self.rng.uniform(0.05, 1.0)
        self.tell(lambda: f"the broker is gone for {seconds:.2f} s")
        self.broker.go_down()
        self.later(seconds, self.broker.come_back)

    def _lose_the_coordinator(self) -> None:
        seconds = self.rng.uniform(0.05, 1.0)
        self.tell(lambda: f"the coordinator is gone for {seconds:.2f} s")
        self.broker.is_coordinator_available = False
        self.later(seconds, lambda: setattr(self.broker, "is_coordinator_available", True))
