"""Progress of Spark's streaming queries: on the terminal, as values, and as the lag of a consumer group.

::

    with ProgressListener() as progress:
        spark.streams.addListener(progress)
        query = df.writeStream.format("noop").queryName("flights").option("checkpointLocation", "checkpoint").start()
        query.awaitTermination()

On the terminal::

    query    state        batch  rows/s  batch time     p50  lag  rows   most behind
    flights  running 1 s     42   2,571      0.48 s  0.50 s  264  9,000  raw-0: 132
"""

from __future__ import annotations

import atexit
import contextlib
import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final, get_args
from uuid import UUID

from pyspark.sql import SparkSession
from pyspark.sql.streaming.listener import StreamingQueryListener
from rich.console import Console

from aioparallel.config.handling import check_choice, check_time
from aioparallel.config.unknown_options import refuses_others
from aioparallel.records.errors import ConfigurationError
from aioparallel.records.record import TopicPartition
from aioparallel.spark.progress_line import ProgressDisplay, Show
from aioparallel.spark.query_progress import (
    PartitionProgress,
    QueryProgress,
    QuerySource,
    QueryState,
    after_batch,
    first_line,
    timestamp,
)

if TYPE_CHECKING:
    from types import TracebackType
    from typing import Self, TypeAlias

    from pyspark.sql.streaming.listener import (
        QueryIdleEvent,
        QueryProgressEvent,
        QueryStartedEvent,
        QueryTerminatedEvent,
        StreamingQueryProgress,
    )

    from aioparallel.spark.group_offsets import GroupCommitter

    _Event: TypeAlias = QueryStartedEvent | StreamingQueryProgress | QueryIdleEvent | QueryTerminatedEvent

__all__ = ["PartitionProgress", "ProgressListener", "QueryProgress", "QuerySource", "QueryState", "Show"]

logger = logging.getLogger(__name__)

# Seconds to wait for the last events of ended queries: Spark sends them through a queue, which took more than 5 s on a
# busy machine.
_LAST_EVENTS: Final = 20.0
# Seconds for the last commit if the process ends without close().
_EXIT_TIMEOUT: Final = 5.0
# Ended queries to remember; older ones are dropped.
_ENDED_KEPT: Final = 100


@refuses_others
class ProgressListener(StreamingQueryListener):
    """Listens to the streaming queries of a session: ``spark.streams.addListener(listener)``. For classic Spark and
    Spark Connect (in the client), from pyspark 4.2.

    ``show``: ``"live"`` draws a table on the terminal (stderr) below other output and logs of the process; ``"lines"``
    writes a line for each query to stderr, ``"log"`` to logging (INFO, with the values as fields); ``"nothing"``.
    ``"auto"`` (default): a table on a terminal, otherwise lines.
    ``every``: seconds between two lines about a query, 0 or more; its first batch and its end are reported at once.
    Default 10.
    ``console``: a console of rich to draw on.

    ``commit_group``: also commit the end offsets of each batch to this consumer group, or for each query to its own:
    ``{query name: group}``. Spark itself has no group that lag tools could see. Only processed offsets are committed,
    every 5 s at most, by a thread that neither delays the query nor makes it fail. Errors are logged once with what to
    do, and commits are tried again, at last every 30 s. **Use a group that nothing else uses**: a group that has or
    ever had members, or that another program has committed to (a consumer that assigns its own partitions, a query with
    another checkpoint), is refused with an error in the log, as its consumers would be moved. Commits carry the query's
    id in their metadata, by which they are recognised. If several running queries read the same partition, the group
    shows the first one.
    ``take_over``: True commits to a group with positions of others; not while it has members, nor after another program
    has committed as well.
    ``bootstrap_servers``: the cluster that the queries read from, needed with ``commit_group``.
    ``client_options``: aiokafka's options for the connection: ``security_protocol``, ``ssl_context``, ``sasl_...``.

    :meth:`snapshot` returns the values, for exporters. As a context manager it restores the terminal and commits the
    last offsets at the end of the block; otherwise this is done when the process ends.

    It also works for declared pipelines, whose own client shows neither rates nor lag: add the listener to
    ``SparkSession.active()`` in a module of ``transformations/``; queries have the names of their flows.

    Raises ConfigurationError for a wrong option.

    Known limits of Spark 4.2:

    - Spark Connect: **Python data sources** can end a client's listeners, with a warning (SPARK-59135). Values and
      :attr:`QueryProgress.heard_at` then no longer change; the queries go on.
    - Spark Connect: Spark's listener thread keeps the process alive until ``spark.stop()``, or until the listener is
      removed, as this one does at the end of its block if no query runs any more.
    - Spark Connect: ``removeListener`` while queries run can hang for ever (SPARK-59623); stop them first.
    - Output of the JVM itself (its log, its progress bar) is mixed into the table. Set ``spark.log.level`` to ``OFF``
      and ``spark.ui.showConsoleProgress`` to ``false``, send log4j to a file, or use ``show="lines"``.
    """

    def __init__(
        self,
        *,
        show: Show = "auto",
        every: float = 10.0,
        console: Console | None = None,
        commit_group: str | Mapping[str, str] | None = None,
        take_over: bool = False,
        bootstrap_servers: str | None = None,
        client_options: Mapping[str, object] | None = None,
    ) -> None:
        check_choice("show", show, get_args(Show))
        check_time("every", every, zero=True)
        _check_groups(commit_group, take_over, bootstrap_servers, client_options)
        self._heard = threading.Condition()
        self._runs: dict[UUID, QueryProgress] = {}  # under the condition; values are replaced, never changed
        self._has_failed = False
        self._is_closed = False
        self._display = ProgressDisplay(show, every, console or Console(stderr=True), self.snapshot)
        self._groups = commit_group
        self._readers: dict[tuple[str, TopicPartition], UUID] = {}  # the query that a group shows for a partition
        self._committer: GroupCommitter | None = None
        if bootstrap_servers is not None:
            # The Kafka client is imported only if it is needed.
            from aioparallel.spark.group_offsets import GroupCommitter  # noqa: PLC0415

            self._committer = GroupCommitter(bootstrap_servers, client_options or {}, take_over=take_over)
        atexit.register(self._end, _EXIT_TIMEOUT)

    def snapshot(self) -> tuple[QueryProgress, ...]:
        """The progress of each known query in the order of their starts; of ended ones the last 100. From any
        thread."""
        with self._heard:
            return tuple(self._runs.values())

    def close(self, timeout: float = 30.0) -> None:
        """Wait for Spark's last events of ended queries (20 s at most), restore the terminal, and commit the last
        offsets, within about ``timeout`` seconds. Values are still updated afterwards. On Spark Connect the listener is
        removed if no query runs. A second call does nothing."""
        if self._is_closed:
            return
        ends = time.monotonic() + timeout
        session = self.spark or SparkSession.getActiveSession()
        is_quiet = session is not None and self._wait_for_last_events(session, min(_LAST_EVENTS, timeout))
        self._end(max(0.0, ends - time.monotonic()))
        if is_quiet and self.spark is not None:  # only Connect sets it; classic Spark does not wait for listeners
            self.spark.streams.removeListener(self)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        self.close()

    # Spark calls these in threads of its own.

    def onQueryStarted(self, event: QueryStartedEvent) -> None:  # noqa: N802 - Spark's name
        """Called by Spark."""
        with self._catching():
            # With Connect the first batch may have been reported before.
            self._hear(event, lambda run: replace(run, name=event.name, started_at=timestamp(event.timestamp)))

    def onQueryProgress(self, event: QueryProgressEvent) -> None:  # noqa: N802 - Spark's name
        """Called by Spark."""
        with self._catching():
            query = self._hear(event.progress, lambda run: after_batch(run, event.progress))
            self._commit(query)
            if query.state == "terminated":  # its last batch was reported after its end
                self._release(query.query_id)

    def onQueryIdle(self, event: QueryIdleEvent) -> None:  # noqa: N802 - Spark's name
        """Called by Spark."""
        with self._catching():
            self._hear(event, lambda run: run if run.state == "terminated" else replace(run, state="idle"))

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:  # noqa: N802 - Spark's name
        """Called by Spark."""
        with self._catching():
            error = first_line(event.exception) if event.exception is not None else None
            kind = event.errorClassOnException
            self._hear(event, lambda run: replace(run, state="terminated", error=error, error_class=kind))
            self._release(event.id)

    def _release(self, query_id: UUID) -> None:
        """Let a group show another query for the partitions of this one."""
        for shown in [shown for shown, query in list(self._readers.items()) if query == query_id]:
            self._readers.pop(shown, None)

    def _hear(self, event: _Event, change: Callable[[QueryProgress], QueryProgress]) -> QueryProgress:
        with self._heard:
            before = self._runs.get(event.runId) or QueryProgress(event.runId, event.id)
            query = self._runs[event.runId] = replace(change(before), heard_at=datetime.now(UTC))
            ended = [run for run, one in self._runs.items() if one.state == "terminated"]
            for run in ended[:-_ENDED_KEPT]:
                del self._runs[run]
            self._heard.notify_all()
        self._display.changed(query)
        return query

    @contextlib.contextmanager
    def _catching(self) -> Iterator[None]:
        """Log errors, the first as a warning: they must not affect queries or other listeners."""
        try:
            yield
        except Exception:
            logger.log(
                logging.DEBUG if self._has_failed else logging.WARNING,
                "Cannot read an event of Spark about a streaming query; its progress may be outdated from now on",
                exc_info=True,
                extra={"action": "query_progress_failed"},
            )
            self._has_failed = True

    def _commit(self, query: QueryProgress) -> None:
        group = self._groups.get(query.name or "") if isinstance(self._groups, Mapping) else self._groups
        if group is None or self._committer is None:
            return
        ends = query.end_offsets
        others = [tp for tp in ends if self._readers.setdefault((group, tp), query.query_id) != query.query_id]
        if others and query.batches == 1:
            logger.warning(
                "Group %r shows %s as read by another query, not by %r (both read %d partitions); give each query its "
                "own group: commit_group={query name: group}",
                group,
                others[0],
                query.label,
                len(others),
                extra={"action": "group_offsets_shared", "group_id": group},
            )
        self._committer.offer(group, query.query_id, {tp: offset for tp, offset in ends.items() if tp not in others})

    def _wait_for_last_events(self, session: SparkSession, timeout: float) -> bool:
        """Returns whether no query runs any more, and all of their events have arrived."""
        try:
            active = {UUID(str(query.runId)) for query in session.streams.active}
        except Exception as error:  # the session has ended, for which Spark has several errors
            logger.debug("Spark could not be asked for its queries: %r", error, extra={"action": "close"})
            return False
        with self._heard:
            has_heard = self._heard.wait_for(
                lambda: all(one.state == "terminated" or one.run_id in active for one in self._runs.values()), timeout
            )
        return has_heard and not active

    def _end(self, timeout: float) -> None:
        if self._is_closed:
            return
        self._is_closed = True
        atexit.unregister(self._end)
        self._display.close()
        if self._committer is not None:
            self._committer.close(timeout)


def _check_groups(groups: object, take_over: object, bootstrap_servers: object, client_options: object) -> None:
    names = list(groups.values()) if isinstance(groups, Mapping) else [groups]
    if not isinstance(take_over, bool):
        raise ConfigurationError("take_over", take_over, "must be True or False")
    if groups is None:
        given = {"bootstrap_servers": bootstrap_servers, "client_options": client_options, "take_over": take_over}
        for option, value in given.items():
            if value not in (None, False):
                raise ConfigurationError(option, value, "has no effect without commit_group")
    elif not names or not all(isinstance(name, str) and name for name in names):
        raise ConfigurationError("commit_group", groups, "must be the name of a group, or {query name: group}")
    elif not isinstance(bootstrap_servers, str):
        raise ConfigurationError(
            "bootstrap_servers", bootstrap_servers, 'is needed with commit_group: "host:port" of the queries\' cluster'
        )
