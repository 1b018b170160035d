"""The committer that writes positions and outputs in transactions. It drives the state machine.

One coroutine runs all transactions. Callers that need a commit (a partition is lost, the run ends) ask it to begin
early and wait. During each ``await`` here, assignments may end or change their generation.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from typing import Final

from aioparallel.config.policies import OnProduced, Transactions
from aioparallel.delivery.outputs import tell
from aioparallel.delivery.waiters import Waiters
from aioparallel.group.assignment import COMMITTABLE, Assignment
from aioparallel.group.client import CommitFault, Generation
from aioparallel.group.committing import GroupContext, owed
from aioparallel.group.offset_commits import Sample, is_large, requests
from aioparallel.group.sampling import Sampler
from aioparallel.observe.health import Problem, ProblemKind
from aioparallel.observe.stats import TransactionStats
from aioparallel.offsets import decode_offset_map
from aioparallel.persistence.transactions.batch import TransactionBatch
from aioparallel.persistence.transactions.builder import TransactionBuilder
from aioparallel.persistence.transactions.codes import Ask, Meaning, meaning_of, name_of
from aioparallel.persistence.transactions.machine import PART_OF_TIMEOUT, Machine, Outcome, Phase
from aioparallel.persistence.transactions.positions import StablePositions
from aioparallel.persistence.transactions.producer import NO_ANSWER, Epoch, TransactionalProducer
from aioparallel.persistence.transactions.refused_outputs import Refusals
from aioparallel.persistence.transactions.sending_outputs import Sending
from aioparallel.persistence.transactions.size import TransactionSize
from aioparallel.persistence.transactions.transaction_counters import TransactionCounters
from aioparallel.persistence.transactions.transaction_outbox import TransactionOutbox
from aioparallel.records.error_codes import ErrorCode
from aioparallel.records.errors import ClientError, ConfigurationError, NotAuthorized
from aioparallel.records.record import Outgoing, TopicPartition

__all__ = ["TransactionCommitter"]

logger = logging.getLogger(__name__)

_ONE: Final = 3.0
"""Seconds for one request about a transaction. A dead coordinator may show only by not answering."""
_LEAVING: Final = 1.0
"""Seconds to abort an open transaction at the end."""
_REST_AFTER_ABORT: Final = 1.0
"""The most seconds before the next transaction after aborts. The pause doubles with each abort in a row."""
_REST_AFTER_NOTHING: Final = 0.005
"""Seconds before the next one if there was nothing to commit."""
_REST_AFTER_REFUSAL: Final = 0.1
"""Seconds before the next one if an extension refused a commit."""
_LONG: Final = 5.0
"""Seconds of waiting for a broker, or of doubt, that become a health problem."""
_MADE_AT_ONCE: Final = 20
"""Partitions for which extensions make outputs in one turn of the event loop."""
_SLOW: Final = 3.0
"""Seconds of waiting for outputs that become a health problem."""


class TransactionCommitter:
    """Runs the transactions of one member. A :class:`~aioparallel.group.committing.PositionCommitter`."""

    def __init__(
        self,
        producer: TransactionalProducer,
        outbox: TransactionOutbox,
        refusals: Refusals,
        member: GroupContext,
        policy: Transactions,
        new_id: Callable[[], str],
    ) -> None:
        self._producer = producer
        self._outbox = outbox
        self._waiting = outbox.waiting
        self._refusals = refusals
        self._member = member
        self._options = member.options
        self._extensions = member.extensions
        self._on_produced: OnProduced | None = member.options.producing.on_produced
        self._policy = policy
        self._new_id = new_id
        self._id = producer.identify_as(new_id())
        self._machine = Machine(policy.transaction_timeout)
        # Outputs of records above the end of a cut map wait. Blocking these partitions bounds them.
        self._sampler = Sampler(member.options, member.scheduler, member.on_unblocked, blocks=True)
        self._early = asyncio.Event()
        self._ended = Waiters()  # callers that wait for the end of a transaction
        self._loop = asyncio.get_running_loop()
        self._has_ended = False
        self._began = 0.0
        self._batch = TransactionBatch(())
        self._sending: Sending | None = None
        self._sent: Sending | None = None
        self._has_slices = True
        self._is_refused = False  # an extension refused a commit last time
        sending_time = policy.transaction_timeout * PART_OF_TIMEOUT
        self._size = TransactionSize(member.options.producing.max_unacknowledged_bytes, sending_time)
        self._builder = TransactionBuilder(outbox, member, self._sampler, self._size)
        self._took_out = False  # whether the last one had refused outputs
        self._phase = self._machine.phase
        self._since = self._loop.time()  # when that phase began
        self.limit, self.maps = self._sampler.limit, self._sampler.maps
        self.commits = self.failed_commits = 0
        self._counters = TransactionCounters()
        self.positions: StablePositions | None = None
        """Its problems are reported with those of transactions."""
        outbox.on_much = self.soon
        producer.on_broken = self._broken

    # -- for callers ------------------------------------------------------------------------------------

    @property
    def cut_maps(self) -> int:
        """Maps that did not fit and were cut."""
        return self._sampler.cut_maps

    def soon(self) -> None:
        """Begin the next transaction before the interval ends."""
        self._early.set()

    async def commit_until(
        self, assignments: Iterable[Assignment], deadline: float
    ) -> Mapping[TopicPartition, CommitFault]:
        """Begin transactions until these assignments are committed, or the deadline. If offsets are not accepted by
        then, the transaction is aborted when its assignments end; otherwise it is committed."""
        asked = {assignment: assignment.ledger.version for assignment in assignments if assignment.state in COMMITTABLE}
        # If more outputs wait than fit and more arrive, no commit ever covers a whole assignment. Its state now is
        # enough.
        is_much = self._outbox.bytes > self._size.bytes
        taken = (
            {assignment: assignment.ledger.snapshot() for assignment in asked if self._waiting.has(assignment)}
            if is_much
            else {}
        )
        kept: set[Assignment] = set()

        def owes(assignment: Assignment, version: tuple[int, int]) -> bool:
            if assignment in kept or not assignment.owes(version):
                return False
            before, committed = taken.get(assignment), assignment.acknowledged
            if before is not None and committed is not None and decode_offset_map(*committed[:2]).covers(before):
                kept.add(assignment)
            return assignment not in kept

        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout_at(deadline):
                cuts = self._builder.count
                while not self._has_ended and any(
                    assignment.may_commit()
                    and owes(assignment, version)
                    and not self._waiting.is_lost(assignment)
                    and not self._builder.is_refused(assignment)
                    and not self._builder.is_short(assignment, cuts)
                    for assignment, version in asked.items()
                ):
                    self.soon()
                    await self._ended.enter()
        why = {assignment.partition: assignment.fault for assignment in asked if assignment.fault is not None}
        why |= {assignment.partition: CommitFault.HELD for assignment in asked if assignment in self._waiting.held}
        owing = owed({assignment: version for assignment, version in asked.items() if assignment not in kept}, why)
        # A cut map is committed, but the outputs of records above its end are not.
        behind = [
            assignment.partition for assignment in asked if assignment.cut is not None and self._waiting.has(assignment)
        ]
        return {**dict.fromkeys(behind, CommitFault.METADATA_TOO_LARGE), **owing}

    async def finish(self, assignments: Collection[Assignment], timeout: float) -> None:
        """Commit all waiting outputs. Continues after an abort, because the next transaction is smaller."""
        longest = max(timeout, 2 * self._policy.transaction_timeout)
        before = -1
        while self._outbox.bytes and self.commits > before:
            before = self.commits
            if not await self.commit_until(assignments, self._loop.time() + longest):
                return

    def released(self, partition: TopicPartition) -> None:
        """Handle the loss of a partition: fail the open transaction if it is part of it."""
        if self._sending is not None and not self._batch.is_ours:
            self._sending.give_up("a partition went")

    # -- one coroutine ----------------------------------------------------------------------------------

    async def run(self) -> None:
        """Run transactions until cancelled. Raises NotAuthorized, ConfigurationError,
        and ClientError for brokers that are too old."""
        try:
            await self._drive()
            while True:
                await self._rest()
                await self._one()
                self._ended.wake_all()
        except Exception as error:
            self._member.fatal(error)  # before callers continue: when a run ends, nothing else reports the error
            raise
        finally:
            self._has_ended = True
            self._ended.wake_all()
            await self._leave()

    async def _rest(self) -> None:
        loop = self._loop
        rest = _REST_AFTER_REFUSAL if self._is_refused else _REST_AFTER_NOTHING
        pause = max(self._sampler.rest, 0.0 if self._has_slices else rest)
        aborts = self._counters.aborts_in_a_row
        if aborts > 1:
            pause = max(pause, min(_REST_AFTER_ABORT, 0.05 * 2 ** min(aborts, 10)))
        await asyncio.sleep(pause)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout_at(max(loop.time(), self._began + self._policy.interval)):
                await self._early.wait()
        self._early.clear()
        self._sampler.begin_round()

    async def _one(self) -> None:
        """Run one transaction, if there is anything to commit."""
        self._waiting.drop_dropped()
        self._began = self._loop.time()
        self._is_refused = False
        self._batch = await self._ready(await self._builder.take())
        self._has_slices = bool(self._batch.slices)
        if not self._has_slices:
            if not self._outbox.bytes:
                self._counters.nothing_left()
            return
        self._took_out = False
        self._machine.begin(self._loop.time())
        await self._drive()
        self._settle()
        if self._machine.phase is Phase.NEW:
            await self._drive()
        self._batch = TransactionBatch(())

    async def _ready(self, batch: TransactionBatch) -> TransactionBatch:
        """Return the batch without the partitions whose commit an extension refuses now."""
        if not (self._extensions.saves and batch.slices):
            return batch
        ends = self._loop.time() + self._options.commit_timeout
        refused = await self._extensions.before_commit(batch.positions, ends)
        for assignment in batch.slices:
            fault = refused.get(assignment.partition)
            assignment.fault = fault or assignment.fault
            if fault is CommitFault.FENCED:
                assignment.fenced = True
            elif fault is CommitFault.REFUSED:
                self._builder.refused(assignment)
            self._builder.let_wait(assignment, is_waiting=fault is not None)
        self.failed_commits += len(refused)
        self._is_refused = bool(refused)
        gone = {assignment.partition for assignment in batch.slices if not assignment.may_commit()}
        return batch.without(refused.keys() | gone)

    async def _drive(self) -> None:
        """Send the requests of the state machine until it has none."""
        machine = self._machine
        answering: Mapping[Ask, Callable[[], Awaitable[None]]] = {
            Ask.INITIALIZE: self._initialize,
            Ask.SEND: self._send,
            Ask.OFFSETS: self._commit_offsets,
            Ask.COMMIT: self._commit,
            Ask.ABORT: self._abort,
            Ask.READ: self._verify,
        }
        while True:
            if not self._batch.is_ours:
                machine.abort("a partition went")
            machine.out_of_time(self._loop.time())
            self._look_at_phase()
            if machine.phase is Phase.FENCED:
                self._fence_all()
                return
            ask = machine.ask
            if ask is None:
                break
            await asyncio.sleep(machine.pause)
            if machine.ask is ask:
                await answering[ask]()
        if machine.forbidden is not None:
            raise self._not_allowed(*machine.forbidden)
        await asyncio.sleep(machine.pause)

    def _not_allowed(self, ask: Ask, code: int) -> Exception:
        """Return the error that ends the run after a permanent refusal."""
        if code == ErrorCode.INVALID_TRANSACTION_TIMEOUT:
            return ConfigurationError(
                "Transactions transaction_timeout",
                self._policy.transaction_timeout,
                "is longer than the brokers allow: lower it, or raise their transaction.max.timeout.ms (15 minutes by "
                "default)",
            )
        if code == ErrorCode.UNSUPPORTED_VERSION:
            return ClientError(
                f"a broker does not support the {ask.value} that transactions of {self._id!r} need: are all brokers "
                "Apache Kafka 4.0 or newer?"
            )
        return NotAuthorized(
            f"WRITE and DESCRIBE on the transactional id {self._id!r} (it begins with the id_prefix of Transactions; "
            f"{ask.value}: {name_of(code)})"
        )

    # -- requests ---------------------------------------------------------------------------------------

    async def _initialize(self) -> None:
        timeout = self._policy.transaction_timeout
        self._machine.initialized(await self._producer.initialize(self._machine.epoch, timeout, _ONE))

    async def _send(self) -> None:
        machine = self._machine
        assert machine.deadline is not None
        self._producer.begin(self._epoch)
        self._sending = sending = Sending(self._producer, keeps_places=self._on_produced is not None)
        began, size = self._loop.time(), self._batch.size
        try:
            await sending.send(
                (entry for one in self._batch.slices.values() for entry in one.entries), await self._commit_outputs()
            )
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout_at(machine.deadline):
                    await sending.wait()
        finally:
            self._sending = None
            answered = sending.part_answered
            if answered < 1:
                self._producer.abandon()
        if answered == 1:
            first = began if sending.first is None else sending.first
            self._size.in_time(size, first - began, self._loop.time() - began, is_part=self._builder.is_part)
        if sending.is_done:
            machine.sent()
            self._sent = sending
            return
        if answered < 1 and self._loop.time() >= machine.deadline:
            self._size.late(size, round(size * answered))
        self._took_out = bool(sending.refused)
        for entry, failure in sending.refused.items():
            machine.abort("an output is refused", str(failure))
            self._outbox.doubt(output.topic for output in entry.outputs)  # its topic may be gone
        if sending.are_others_too_large:
            self._extensions.commit_outputs_too_large()
        await self._refusals.refuse(sending.refused)
        if not machine.out_of_time(self._loop.time(), sending.trouble or ""):
            machine.abort("not acknowledged", sending.trouble or "")

    async def _commit_outputs(self) -> Sequence[Outgoing]:
        """Return the outputs that extensions write with these positions."""
        made: list[Outgoing] = []
        for count, (partition, position) in enumerate(self._batch.positions.items(), 1):
            made += self._extensions.commit_outputs(partition, position)
            if not count % _MADE_AT_ONCE:
                await asyncio.sleep(0)
        return made

    def _broken(self, code: int) -> None:
        self._machine.broken(code)
        if self._sending is not None:
            self._sending.give_up(self._machine.why)

    async def _commit_offsets(self) -> None:
        machine, epoch = self._machine, self._epoch
        codes: dict[TopicPartition, int] = {}
        sampled = {one.sample.assignment.partition: one.sample for one in self._batch.slices.values()}
        for generation, part in requests(sampled.values()):
            positions = {one.assignment.partition: one.committed for one in part}
            answer = await self._producer.commit_offsets(epoch, positions, generation, _ONE)
            may_be_too_large = is_large(positions.values())
            large: list[Sample] = []
            for partition in positions:
                code = answer.get(partition, NO_ANSWER)
                if code == ErrorCode.UNKNOWN_SERVER_ERROR and may_be_too_large:
                    code = ErrorCode.INVALID_COMMIT_OFFSET_SIZE
                codes[partition] = code
                meaning = meaning_of(Ask.OFFSETS, code)
                if meaning is Meaning.TOO_LARGE:
                    large.append(sampled[partition])
                self._apply(sampled[partition], meaning, generation, code)
            if large:
                self._sampler.too_large(large, len(positions))
            if not self._batch.is_ours:
                machine.abort("a partition went")
                return
        if machine.out_of_time(self._loop.time()):
            return
        machine.offsets(codes.values())

    def _apply(self, one: Sample, meaning: Meaning, generation: Generation, code: int) -> None:
        """Apply the answer for one partition."""
        assignment = one.assignment
        match meaning:
            case Meaning.TOO_LARGE:
                assignment.fault = CommitFault.METADATA_TOO_LARGE
            case Meaning.REFUSED:
                self._builder.refused(assignment)
                assignment.fault = CommitFault.REFUSED
            case Meaning.NOT_OURS if assignment.generation == generation:
                self._fence(assignment, generation, instance_fenced=code == ErrorCode.FENCED_INSTANCE_ID)
            case _:
                return
        self.failed_commits += 1

    @property
    def _epoch(self) -> Epoch:
        assert self._machine.epoch is not None
        return self._machine.epoch

    async def _commit(self) -> None:
        self._machine.asking_to_end()
        self._machine.ended(await self._producer.end(self._epoch, _ONE, commit=True))

    async def _abort(self) -> None:
        self._machine.ended(await self._producer.end(self._epoch, _ONE, commit=False))

    async def _verify(self) -> None:
        """Check whether the stable offsets are those of this transaction. Lost partitions are left out: the next owner
        may have committed them since, and their outputs are not sent again here."""
        wanted = {
            assignment: one for assignment, one in self._batch.slices.items() if assignment.may_commit() and one.is_new
        }
        if not wanted:
            self._machine.verified(is_committed=False)
            return
        answer = await self._producer.stable_offsets([assignment.partition for assignment in wanted], _ONE)
        if answer.code != ErrorCode.NONE:
            self._machine.verified(is_committed=None)
            return
        # Each position is new, and all or none were committed, so one of them is enough.
        for assignment, one in wanted.items():
            found = answer.found.get(assignment.partition, ErrorCode.UNSTABLE_OFFSET_COMMIT)
            if not isinstance(found, int):
                self._machine.verified(is_committed=found is not None and found[:2] == one.sample.committed[:2])
                return
        self._machine.verified(is_committed=None)

    # -- outcome ----------------------------------------------------------------------------------------

    def _settle(self) -> None:
        now = self._loop.time()
        if self._machine.outcome is Outcome.COMMITTED:
            self.commits += 1
            self._counters.was_committed(now - self._began)
            self._report_commit(now - self._began, {})
            for assignment, one in self._batch.slices.items():
                self._waiting.remove(assignment, one.entries)
                self._builder.accepted(assignment)
                self._sampler.acknowledged(one.sample)
            if self._builder.is_part:
                self.soon()
            if self._on_produced is not None and self._sent is not None:
                for entry, output, place in self._sent.places or ():
                    if not entry.is_letter:
                        tell(self._on_produced, entry.record, output, place, self._member.fatal)
        elif self._machine.outcome is Outcome.ABORTED:
            cause, why = self._machine.cause or "in doubt", self._machine.why or "in doubt"
            self._report_commit(now - self._began, dict.fromkeys(self._batch.positions, CommitFault.RETRIABLE))
            self._counters.was_aborted(self._id, cause, why, now, began=self._began, is_progress=self._took_out)
        self._waiting.drop_dropped()
        self._outbox.left()
        self._sent = None

    def _report_commit(self, seconds: float, faults: Mapping[TopicPartition, CommitFault]) -> None:
        if self._extensions.commit_ended is not None and self._batch.slices:
            self._extensions.commit_ended(self._batch.positions, faults, seconds)

    def _look_at_phase(self) -> None:
        before, self._phase = self._phase, self._machine.phase
        if self._phase is before:
            return
        self._since = self._loop.time()
        if self._phase is Phase.DOUBT:
            logger.warning(
                "The outcome of a transaction of %s is unknown (%s): checking",
                self._id,
                self._machine.why,
                extra={"action": "transaction_in_doubt", "transactional_id": self._id},
            )

    def _fence(self, assignment: Assignment, generation: Generation, *, instance_fenced: bool = False) -> None:
        """Fence an assignment: another member owns its partition."""
        self._counters.fenced += 1
        assignment.fault, assignment.fenced = CommitFault.FENCED, True
        self._member.client.fenced(generation, instance_fenced=instance_fenced)

    def _fence_all(self) -> None:
        """Give up all partitions, because another producer uses this transactional id, and take a new id."""
        logger.warning(
            "Another producer uses the transactional id %s: giving up all partitions, and joining again with a new id",
            self._id,
            extra={"action": "transaction_fenced", "transactional_id": self._id},
        )
        for assignment in list(self._member.assignments()):
            if assignment.may_commit():
                assignment.abandoned = True
                self._fence(assignment, assignment.generation)
        self._id = self._producer.identify_as(self._new_id())
        self._machine.restart()

    async def _leave(self) -> None:
        """Abort the open transaction at the end, so that readers need not wait for its timeout."""
        machine = self._machine
        epoch = machine.epoch
        if epoch is None or machine.phase not in (Phase.SENDING, Phase.OFFSETS, Phase.ABORTING):
            return
        with contextlib.suppress(Exception):
            self._producer.abandon()
            async with asyncio.timeout(_LEAVING):
                await self._producer.end(epoch, _LEAVING, commit=False)

    def has_outputs_of(self, assignment: Assignment, offset: int) -> bool:
        """Whether outputs of this record wait for a transaction, or are part of the open one."""
        return any(record.offset == offset for entry in self._waiting.of(assignment) for record in entry.records)

    # -- reports ----------------------------------------------------------------------------------------

    def trouble(self) -> Sequence[str]:
        """Returns why commits fail."""
        found = [problem.message for problem in self.problems()]
        return found or [f"the last transaction was aborted: {self._counters.why}"] * bool(self._counters.why)

    def problems(self) -> Sequence[Problem]:
        """Report transactions in doubt, slow transactions and repeated aborts."""
        found = [] if self.positions is None else [*self.positions.problems(self._loop.time())]
        machine = self._machine
        seconds = self._loop.time() - self._since
        if machine.ask is not None and seconds > _LONG and not machine.may_abort:
            text = f"transactions of {self._id} wait for {machine.ask.value} for {seconds:.0f} s"
            why = "; ".join(filter(None, (machine.trouble, machine.why)))
            found.append(Problem(ProblemKind.IN_DOUBT, f"{text}: {why}" if why else text))
        if self._sending is not None and seconds > _SLOW and (what := self._producer.waits_for()):
            text = f"transactions of {self._id} wait for outputs for {seconds:.0f} s: {what}"
            found.append(Problem(ProblemKind.OUTPUTS_WAIT, text))
        return (*found, *self._counters.problems(self._id, self._loop.time()))

    def transactions(self) -> TransactionStats:
        """Return statistics of the transactions."""
        counters = self._counters
        return TransactionStats(
            committed=self.commits,
            aborted=counters.aborted.total(),
            aborted_for=dict(counters.aborted),
            fenced=counters.fenced,
            refused=self._refusals.count,
            seconds=counters.seconds[-1] if counters.seconds else None,
            longest=max(counters.seconds, default=None),
            phase=self._machine.phase.value,
            waiting_outputs=self._waiting.outputs,
            waiting_bytes=self._waiting.bytes,
            transactional_id=self._id,
        )
