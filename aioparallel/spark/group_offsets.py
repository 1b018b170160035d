"""Commits the end offsets of Spark's batches to a consumer group for lag tools: Spark itself has no group.

A thread commits while the query runs, and nothing waits for it. Only the newest offset of each partition is kept until
the next commit. It connects for each commit, at most once in some seconds, which is cheap; an idle connection would
have to survive restarts of brokers.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections import defaultdict
from collections.abc import Mapping
from typing import Final
from uuid import UUID

import aiokafka.errors as kafka

from aioparallel.clients.aiokafka.aiokafka_errors import deadline, is_passing
from aioparallel.event_loop.loop import loop_factory
from aioparallel.records.error_codes import COORDINATOR_MOVED, ErrorCode
from aioparallel.records.errors import ClientError, ClusterChanged
from aioparallel.records.record import TopicPartition
from aioparallel.spark.group_requests import GroupCoordinator, GroupSettings, Position, mark_of, stranger

__all__ = ["GroupCommitter"]

logger = logging.getLogger(__name__)

# Seconds between two commits.
_INTERVAL: Final = 5.0
# Seconds until a failed commit is tried again if nothing new is offered; doubles up to the longest.
_RETRY: Final = 5.0
_LONGEST_RETRY: Final = 30.0
# Seconds for one commit: connecting, checking the group's use, committing, retrying.
_TIMEOUT: Final = 10.0
_RETRY_PAUSE: Final = 0.2
# Seconds for a cancelled commit to end.
_GRACE: Final = 3.0

_MEMBERS: Final = frozenset(
    {ErrorCode.ILLEGAL_GENERATION, ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.REBALANCE_IN_PROGRESS}
)


class GroupCommitter:
    """Commits the newest offsets it was offered, at most once in ``interval`` seconds; ``timeout``: seconds for one.

    Raises ConfigurationError for wrong settings. Later errors are logged once with what to do, and the commit is tried
    again after ``retry`` seconds and then less often. A group is refused for good if consumers use or have used it, or
    another program has committed to it: a commit would move their positions. ``take_over``: refused only if it has
    members, or another program commits after this one has. If the addresses lead to another cluster, every group is
    refused.
    """

    def __init__(
        self,
        bootstrap_servers: str,
        client_options: Mapping[str, object],
        *,
        interval: float = _INTERVAL,
        timeout: float = _TIMEOUT,
        retry: float = _RETRY,
        take_over: bool = False,
    ) -> None:
        self._settings = GroupSettings(bootstrap_servers, client_options)
        self._interval = interval
        self._timeout = timeout
        self._retry = retry
        self._take_over = take_over
        # Written by offer() and by the thread, under the lock.
        self._changed = threading.Condition()
        self._pending: defaultdict[str, dict[TopicPartition, Position]] = defaultdict(dict)
        self._is_new = False
        self._is_closing = False
        self._thread: threading.Thread | None = None
        self._round: tuple[asyncio.AbstractEventLoop, asyncio.Task[None]] | None = None
        # Used only by the thread.
        self._refused: set[str] = set()
        self._acknowledged: defaultdict[str, dict[TopicPartition, str]] = defaultdict(dict)  # marks by group
        self._reported: defaultdict[str, set[str]] = defaultdict(set)  # errors by group

    def offer(self, group: str, query_id: UUID, offsets: Mapping[TopicPartition, int]) -> None:
        """Commit these offsets of a query later: the next to read of each partition. Returns at once; does nothing
        after :meth:`close`."""
        with self._changed:
            if self._is_closing or not offsets:
                return
            mark = mark_of(query_id)
            self._pending[group].update({partition: Position(offset, mark) for partition, offset in offsets.items()})
            self._is_new = True
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="aioparallel-group-offsets", daemon=True)
                self._thread.start()
            self._changed.notify_all()

    def close(self, timeout: float) -> None:
        """Commit the remaining offsets within ``timeout`` seconds, and end."""
        with self._changed:
            self._is_closing = True
            self._changed.notify_all()
            thread = self._thread
        if thread is None:
            return
        thread.join(timeout)
        if thread.is_alive():
            with self._changed:
                if self._round is not None:
                    loop, task = self._round
                    loop.call_soon_threadsafe(task.cancel)
            thread.join(_GRACE)
        with self._changed:
            names = ", ".join(repr(group) for group, offsets in self._pending.items() if offsets)
        if names:
            logger.warning(
                "The last offsets of group %s were not committed within %g s; its lag is reported too high",
                names,
                timeout,
                extra={"action": "group_offsets_left", "group_id": names},
            )

    def _run(self) -> None:
        with asyncio.Runner(loop_factory=loop_factory()) as runner:
            resting_until, retry_at, pause = 0.0, None, self._retry
            while True:
                with self._changed:
                    while not self._is_closing:
                        due = resting_until if self._is_new else retry_at
                        rest = None if due is None else due - time.monotonic()
                        if rest is not None and rest <= 0:
                            break
                        self._changed.wait(rest)
                    is_last = self._is_closing
                    taken, self._pending = self._pending, defaultdict(dict)
                    self._is_new = False
                try:
                    runner.run(self._commit_all(taken))
                except asyncio.CancelledError:
                    is_last = True
                if is_last:
                    return
                resting_until = time.monotonic() + self._interval
                if not any(taken.values()):
                    retry_at, pause = None, self._retry
                else:
                    retry_at, pause = time.monotonic() + pause, min(2 * pause, max(self._retry, _LONGEST_RETRY))

    async def _commit_all(self, taken: dict[str, dict[TopicPartition, Position]]) -> None:
        loop, task = asyncio.get_running_loop(), asyncio.current_task()
        assert task is not None  # a coroutine that runs has one
        with self._changed:
            self._round = loop, task
        try:
            # Concurrently: a slow group does not delay others.
            await asyncio.gather(*(self._commit(group, offsets) for group, offsets in taken.items()))
        finally:
            with self._changed:
                self._round = None
                for group, offsets in taken.items():  # _commit has removed the committed ones
                    if offsets:
                        self._pending[group] = {**offsets, **self._pending[group]}

    async def _commit(self, group: str, offsets: dict[TopicPartition, Position]) -> None:
        """Commit, and remove committed offsets from ``offsets``."""
        if group in self._refused:
            offsets.clear()
            return
        try:
            async with deadline(self._timeout, f"committing to group {group!r}"):
                await self._until_answered(group, offsets)
        except ClusterChanged as error:
            self._refused.add(group)
            offsets.clear()
            logger.error(  # noqa: TRY400 - the message says everything
                "Spark's offsets are not committed to group %r any more: %s",
                group,
                error,
                extra={"action": "cluster_changed", "group_id": group, "cluster_id": error.found},
            )
        except Exception as error:  # the thread must go on
            self._report(group, error)

    async def _until_answered(self, group: str, offsets: dict[TopicPartition, Position]) -> None:
        while True:
            try:
                failed = await self._once(group, offsets)
                break
            except kafka.KafkaError as error:
                if not is_passing(error):
                    raise
            await asyncio.sleep(_RETRY_PAUSE)
        for partition in [partition for partition in offsets if partition not in failed]:
            self._acknowledged[group][partition] = offsets.pop(partition).mark
        if failed:
            raise ClientError(_advice(failed, self._settings.bootstrap_servers))
        if self._reported.pop(group, None):
            logger.info("Group %r: commits are acknowledged again", group, extra={"action": "group_offsets_again"})

    async def _once(self, group: str, offsets: dict[TopicPartition, Position]) -> dict[TopicPartition, int]:
        """One attempt. Returns the error codes of partitions that failed."""
        # Its timeout is shorter, so that an error of the connection is reported before the overall deadline.
        async with self._settings.coordinator(group, self._timeout * 0.8) as coordinator:
            # Checked each time: the broker accepts commits again once consumers have left.
            if (others := await self._others(group, coordinator, offsets)) is not None:
                self._refuse(group, others, offsets)
                return {}
            failed = await coordinator.commit(offsets)
        codes = set(failed.values())
        if codes & _MEMBERS:
            self._refuse(group, "has live members now", offsets)
            return {}
        for code in codes & COORDINATOR_MOVED:
            raise kafka.for_code(code)(group)
        return failed

    async def _others(
        self, group: str, coordinator: GroupCoordinator, offsets: Mapping[TopicPartition, Position]
    ) -> str | None:
        """Describes the users of the group whose positions a commit would move."""
        users = await coordinator.users()
        if users is not None and (users.are_members or not self._take_over):
            return users.text
        return stranger(await coordinator.committed(), offsets, self._acknowledged[group], take_over=self._take_over)

    def _refuse(self, group: str, why: str, offsets: dict[TopicPartition, Position]) -> None:
        self._refused.add(group)
        offsets.clear()
        logger.error(
            "commit_group=%r: this group %s. Spark's offsets are not committed to it, as this would move the positions "
            "of those consumers; give commit_group a name that no consumer has used%s, and start again",
            group,
            why,
            "" if self._take_over else ", or take_over=True if nobody needs these positions",
            extra={"action": "group_refused", "group_id": group},
        )

    def _report(self, group: str, error: Exception) -> None:
        kind = type(error).__name__ if not isinstance(error, ClientError) else str(error)
        level = logging.DEBUG if kind in self._reported[group] else logging.WARNING
        self._reported[group].add(kind)
        logger.log(
            level,
            "Spark's offsets could not be committed to group %r: %s. The query goes on; the commit is tried again "
            "every %g s at most, and this is not logged again until it succeeds",
            group,
            error,
            max(self._retry, _LONGEST_RETRY),
            extra={"action": "group_offsets_failed", "group_id": group},
        )


def _advice(failed: Mapping[TopicPartition, int], servers: str) -> str:
    first, code = next(iter(failed.items()))
    where = f"{first}" if len(failed) == 1 else f"{first} and {len(failed) - 1} more partitions"
    if code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
        return f"{where}: not at {servers}; name the cluster that the query reads from in bootstrap_servers"
    if code == ErrorCode.TOPIC_AUTHORIZATION_FAILED:
        return f"{where}: this user may not read the topic (permission READ), see client_options"
    if code == ErrorCode.GROUP_AUTHORIZATION_FAILED:
        return f"{where}: this user may not use the group (permission READ on the group), see client_options"
    if code == ErrorCode.OFFSET_METADATA_TOO_LARGE:
        return (
            f"{where}: the broker does not accept {len(mark_of(UUID(int=0)))} characters of metadata, which mark the "
            "query of a commit; set its offset.metadata.max.bytes=4096, Kafka's default"
        )
    return f"{where}: the broker answered {kafka.for_code(code).__name__} (error code {code})"
