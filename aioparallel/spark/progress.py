"""Progress of Spark's streaming queries: on the terminal, as figures, and as the lag of a consumer group.

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

from aioparallel.errors import ConfigurationError
from aioparallel.records import TopicPartition
from aioparallel.spark.progress_figures import (
    PartitionProgress,
    QueryProgress,
    QuerySource,
    QueryState,
    after_batch,
    first_line,
    timestamp,
)
from aioparallel.spark.progress_line import ProgressDisplay, Show

if TYPE_CHECKING:
    from types import TracebackType
    from typing import Self

    from pyspark.sql.streaming.listener import (
        QueryIdleEvent,
        QueryProgressEvent,
        QueryStartedEvent,
        QueryTerminatedEvent,
    )

    from aioparallel.spark.group_offsets import GroupCommitter

__all__ = ["PartitionProgress", "ProgressListener", "QueryProgress", "QuerySource", "QueryState", "Show"]

logger = logging.getLogger(__name__)

# Seconds for the last events of queries that have ended: Spark sends them from a queue, and on a busy machine that took
# more than 5 of them.
_LAST_EVENTS: Final = 20.0
# Seconds for the last commit when the process ends without close().
_EXIT_TIMEOUT: Final = 5.0
# Ended queries that are remembered; the oldest are forgotten.
_ENDED_KEPT: Final = 100


class ProgressListener(StreamingQueryListener):
    """Hears of the streaming queries of a session: ``spark.streams.addListener(listener)``. Classic Spark and Spark
    Connect (it runs in the client); pyspark 4.2.

    ``show``: ``"live"`` draws a table on the terminal (stderr), which stays below what else the process prints and
    logs; ``"lines"`` writes a plain line for each query to stderr, ``"log"`` to logging (INFO, with the figures as
    fields); ``"nothing"``. Default ``"auto"``: a table on a terminal, lines elsewhere.
    ``every``: seconds between two lines about a query, 0 or more; its first batch and its end are told at once.
    Default 10.
    ``console``: of rich, to draw on another one.

    ``commit_group``: also commit what each batch has ended with to this consumer group, or, as ``{query name: group}``,
    to one for each query: Spark has no group of its own that lag tools could see. Only what has been processed is
    committed, every 5 s at most, by a thread beside the query, which neither waits for it nor fails by it: what goes
    wrong is logged once with what to do, and tried again, every 30 s at last. **The group must be nobody else's**: one
    that has members, or has ever had any, or to which somebody else has committed (a consumer that assigns its
    partitions itself, a query with another checkpoint), is refused, with an error in the log, since its consumers would
    be moved. Commits carry the query's id in their metadata, by which they are told apart.
    Where several running queries read the same partition, the one that came first is shown in the group.
    ``take_over``: True commits to a group in which others have left positions; not while it has members, nor once
    somebody else has committed beside this.
    ``bootstrap_servers``: of the cluster that the queries read from, needed with ``commit_group``.
    ``client_options``: aiokafka's options for the connection, as ``security_protocol``, ``ssl_context``, ``sasl_...``.

    :meth:`snapshot` gives the figures, for exporters. As a context manager it leaves the terminal as it was and commits
    the last offsets; without, this is done when the process ends.

    Declared pipelines, whose own client shows neither rates nor lag, have it too: add the listener to
    ``SparkSession.active()`` in a module of ``transformations/``; queries have the names of their flows.

    Raises ConfigurationError for a wrong option.

    Known limits of Spark 4.2:

    - Spark Connect and **Python data sources**: they can end a client's listeners, with a warning (SPARK-59135). The
      figures then stand still, and :attr:`QueryProgress.heard_at` with them; the queries go on.
    - Spark Connect: a process with a listener ends only after ``spark.stop()``, or after the listener was removed, as
      this one does at the end of its block when no query runs any more: Spark's thread for listeners keeps it.
    - Spark Connect: ``removeListener`` while queries run can hang for ever (SPARK-59623); stop them first.
    - What the JVM itself writes to the terminal (its log, its progress bar) runs into the table. Set
      ``spark.log.level`` to ``OFF`` and ``spark.ui.showConsoleProgress`` to ``false``, send log4j to a file, or take
      ``show="lines"``.
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
        _check_drawing(show, every)
        _check_groups(commit_group, take_over, bootstrap_servers, client_options)
        self._heard = threading.Condition()
        self._runs: dict[UUID, QueryProgress] = {}  # under the condition; replaced, never changed
        self._has_complained = False
        self._is_closed = False
        self._display = ProgressDisplay(show, every, console or Console(stderr=True), self.snapshot)
        self._groups = commit_group
        self._readers: dict[tuple[str, TopicPartition], UUID] = {}  # whose offsets a group shows
        self._committer: GroupCommitter | None = None
        if bootstrap_servers is not None:
            # A Kafka client is loaded only where one is needed.
            from aioparallel.spark.group_offsets import GroupCommitter  # noqa: PLC0415

            self._committer = GroupCommitter(bootstrap_servers, client_options or {}, take_over=take_over)
        atexit.register(self._end, _EXIT_TIMEOUT)

    def snapshot(self) -> tuple[QueryProgress, ...]:
        """The figures of each query that was heard of, in the order of their starts; of those that have ended the last
        100. From any thread."""
        with self._heard:
            return tuple(self._runs.values())

    def close(self, timeout: float = 30.0) -> None:
        """Wait for what Spark still has to say of queries that have ended (20 s at most), leave the terminal as it was,
        and commit the last offsets; all within about ``timeout`` seconds. Figures go on. On Spark Connect the listener
        is removed if no query runs. Twice does no harm."""
        if self._is_closed:
            return
        ends = time.monotonic() + timeout
        session = self.spark or SparkSession.getActiveSession()
        is_quiet = session is not None and self._wait_for_last_events(session, min(_LAST_EVENTS, timeout))
        self._end(max(0.0, ends - time.monotonic()))
        if is_quiet and self.spark is not None:  # set by Connect only; in classic Spark nothing waits for a listener
            self.spark.streams.removeListener(self)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        self.close()

    # -- what Spark calls, in threads of its own --------------------------------------------------------

    def onQueryStarted(self, event: QueryStartedEvent) -> None:  # noqa: N802 - Spark's name
        """Of Spark."""
        with self._complaining():
            # With Connect the first batch may have come before.
            self._hear(
                event.runId,
                event.id,
                lambda before: replace(before, name=event.name, started_at=timestamp(event.timestamp)),
            )

    def onQueryProgress(self, event: QueryProgressEvent) -> None:  # noqa: N802 - Spark's name
        """Of Spark."""
        with self._complaining():
            progress = event.progress
            figure = self._hear(progress.runId, progress.id, lambda before: after_batch(before, progress))
            self._commit(figure)
            if figure.state == "terminated":  # its last batch was told after its end
                self._release(figure.query_id)

    def onQueryIdle(self, event: QueryIdleEvent) -> None:  # noqa: N802 - Spark's name
        """Of Spark."""
        with self._complaining():
            self._hear(
                event.runId,
                event.id,
                lambda before: before if before.state == "terminated" else replace(before, state="idle"),
            )

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:  # noqa: N802 - Spark's name
        """Of Spark."""
        with self._complaining():
            error = first_line(event.exception) if event.exception is not None else None
            self._hear(
                event.runId,
                event.id,
                lambda before: replace(
                    before, state="terminated", error=error, error_class=event.errorClassOnException
                ),
            )
            self._release(event.id)

    def _release(self, query_id: UUID) -> None:
        """Let another query be shown for the partitions of this one."""
        for shown in [shown for shown, query in list(self._readers.items()) if query == query_id]:
            self._readers.pop(shown, None)

    def _hear(self, run_id: UUID, query_id: UUID, change: Callable[[QueryProgress], QueryProgress]) -> QueryProgress:
        with self._heard:
            before = self._runs.get(run_id) or QueryProgress(run_id, query_id)
            figure = self._runs[run_id] = replace(change(before), heard_at=datetime.now(UTC))
            ended = [run for run, one in self._runs.items() if one.state == "terminated"]
            for run in ended[:-_ENDED_KEPT]:
                del self._runs[run]
            self._heard.notify_all()
        self._display.changed(figure)
        return figure

    @contextlib.contextmanager
    def _complaining(self) -> Iterator[None]:
        """Nothing of this is worth a query, or the other listeners; the first time is worth a line."""
        try:
            yield
        except Exception:
            logger.log(
                logging.DEBUG if self._has_complained else logging.WARNING,
                "Cannot make out what Spark says about a streaming query; its figures may be old from now on",
                exc_info=True,
                extra={"action": "query_progress_failed"},
            )
            self._has_complained = True

    # -- a group ----------------------------------------------------------------------------------------

    def _commit(self, figure: QueryProgress) -> None:
        group = self._groups.get(figure.name or "") if isinstance(self._groups, Mapping) else self._groups
        if group is None or self._committer is None:
            return
        ends = figure.end_offsets
        others = [tp for tp in ends if self._readers.setdefault((group, tp), figure.query_id) != figure.query_id]
        if others and figure.batches == 1:
            logger.warning(
                "Group %r shows %s as another query has read it, not as %r has (%d partitions are read by both); give "
                "each query a group of its own: commit_group={query name: group}",
                group,
                others[0],
                figure.label,
                len(others),
                extra={"action": "group_offsets_shared", "group_id": group},
            )
        self._committer.offer(group, figure.query_id, {tp: offset for tp, offset in ends.items() if tp not in others})

    # -- the end ----------------------------------------------------------------------------------------

    def _wait_for_last_events(self, session: SparkSession, timeout: float) -> bool:
        """Whether no query runs any more, and no event of one is to come."""
        try:
            active = {UUID(str(query.runId)) for query in session.streams.active}
        except Exception as error:  # the session has ended; whatever Spark calls that
            logger.debug("Spark was not asked for its queries: %r", error, extra={"action": "close"})
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


def _check_drawing(show: object, every: object) -> None:
    if show not in get_args(Show):
        raise ConfigurationError("show", show, f"one of {', '.join(map(repr, get_args(Show)))}")
    if isinstance(every, bool) or not isinstance(every, int | float) or not 0 <= every < 1e9:
        raise ConfigurationError("every", every, "seconds, 0 or more")


def _check_groups(groups: object, take_over: object, bootstrap_servers: object, client_options: object) -> None:
    names = list(groups.values()) if isinstance(groups, Mapping) else [groups]
    if not isinstance(take_over, bool):
        raise ConfigurationError("take_over", take_over, "True or False")
    if groups is None:
        given = {"bootstrap_servers": bootstrap_servers, "client_options": client_options, "take_over": take_over}
        for option, value in given.items():
            if value not in (None, False):
                raise ConfigurationError(option, value, "has no effect without commit_group")
    elif not names or not all(isinstance(name, str) and name for name in names):
        raise ConfigurationError("commit_group", groups, "the name of a group, or {query name: group}")
    elif not isinstance(bootstrap_servers, str):
        raise ConfigurationError(
            "bootstrap_servers", bootstrap_servers, 'is needed with commit_group: "host:port" of the queries\' cluster'
        )
