"""The listener: figures from what Spark sends, the calls in whatever order they come, and its options."""

from __future__ import annotations

import io
import logging
import subprocess
import sys
import threading
from dataclasses import FrozenInstanceError
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import cast

import pytest
from pyspark.sql.streaming.listener import QueryProgressEvent, QueryTerminatedEvent, StreamingQueryProgress
from rich.console import Console

from aioparallel.records.errors import ConfigurationError
from aioparallel.records.record import TopicPartition
from aioparallel.spark.progress import PartitionProgress, ProgressListener, QueryProgress
from aioparallel.spark.query_progress import first_line
from tests.support.spark import progress_events as events

RAW = [TopicPartition("raw", number) for number in range(3)]


def heard(*sent: QueryProgressEvent) -> QueryProgress:
    listener = ProgressListener(show="nothing")
    for event in sent:
        listener.onQueryProgress(event)
    (figure,) = listener.snapshot()
    return figure


def test_a_batch_from_kafka_gives_offsets_and_lag() -> None:
    """End offsets are the next to read, lag is what is left to the latest; the largest says of which partition."""
    figure = heard(events.progress(events.FIRST))
    (source,) = figure.sources
    assert source.partitions == {
        RAW[0]: PartitionProgress(start=None, end=176, latest=440, lag=264),
        RAW[1]: PartitionProgress(start=None, end=136, latest=340, lag=204),
        RAW[2]: PartitionProgress(start=None, end=88, latest=220, lag=132),
    }
    assert (figure.lag, figure.largest_lag) == (600, (RAW[0], 264))
    assert figure.end_offsets == {RAW[0]: 176, RAW[1]: 136, RAW[2]: 88}
    assert source.metrics["maxOffsetsBehindLatest"] == "264"
    assert (source.description, source.rows) == ("KafkaV2[Subscribe[raw]]", 400)


def test_rates_times_and_ids_are_in_seconds_and_plain_types() -> None:
    """Milliseconds become seconds, timestamps are aware, ids are UUIDs, and nothing can be changed."""
    figure = heard(events.progress(events.FIRST))
    assert (str(figure.query_id), str(figure.run_id)) == (events.FIRST["id"], events.FIRST["runId"])
    assert figure.batch_at == datetime(2026, 11, 22, 8, 54, 25, 464_000, tzinfo=UTC)
    assert (figure.name, figure.state, figure.batch_id, figure.rows, figure.sink_rows) == (
        "flights",
        "running",
        0,
        400,
        400,
    )
    assert (figure.batch_seconds, figure.rows_per_second, figure.input_rows_per_second) == (4.48, 89.3, 0.0)
    assert (figure.phase_seconds["addBatch"], figure.phase_seconds["triggerExecution"]) == (2.758, 4.473)
    with pytest.raises(FrozenInstanceError):
        figure.rows = 3  # type: ignore[misc]


def test_batches_add_up() -> None:
    """Rows and batches are counted, the last batch's figures stand, and the median is that of all."""
    figure = heard(*(events.progress(event) for event in (events.FIRST, events.SECOND, events.THIRD)))
    assert (figure.batches, figure.total_rows, figure.batch_id, figure.rows) == (3, 1_000, 2, 200)
    assert figure.recent_batch_seconds == (4.48, 0.484, 0.399)
    assert figure.median_batch_seconds == 0.484
    assert (figure.lag, figure.largest_lag) == (0, (RAW[0], 0))
    assert figure.sources[0].partitions[RAW[2]] == PartitionProgress(start=176, end=220, latest=220, lag=0)


def test_only_the_last_20_batches_count_for_the_median() -> None:
    """A slow beginning is forgotten."""
    slow = events.progress(events.FIRST, batchDuration=60_000)
    quick = [events.progress(events.FIRST, batchDuration=100) for _ in range(20)]
    assert heard(slow, *quick).recent_batch_seconds == (0.1,) * 20


def test_other_sources_have_no_lag() -> None:
    """A rate source has offsets of its own kind: no partitions, no lag, nothing to commit."""
    figure = heard(events.progress(events.RATE))
    assert (figure.lag, figure.largest_lag, figure.end_offsets) == (None, None, {})
    assert figure.sources[0].partitions == {}


def test_the_kafka_source_among_several_counts() -> None:
    """In a query of Kafka and rate the lag is Kafka's."""
    figure = heard(events.progress(events.TWO_SOURCES))
    assert len(figure.sources) == 2
    assert (figure.lag, figure.end_offsets) == (0, {RAW[0]: 1012, RAW[1]: 782, RAW[2]: 506})


def test_two_readers_of_a_partition_in_a_query_are_done_where_the_slower_one_is() -> None:
    """The lower end offset counts: below it both have read all."""
    both = [events.FIRST["sources"][0], events.SECOND["sources"][0]]
    assert heard(events.progress(events.FIRST, sources=both)).end_offsets == {RAW[0]: 176, RAW[1]: 136, RAW[2]: 88}


def test_real_time_mode_reads_beyond_the_latest_offset_that_spark_knows() -> None:
    """``latestOffset`` is from the beginning of the batch there: the lag is not known, rather than 0 or negative."""
    figure = heard(events.progress(events.REAL_TIME))
    assert (figure.lag, figure.largest_lag) == (None, None)
    assert figure.sources[0].partitions[RAW[0]] == PartitionProgress(start=None, end=748, latest=528, lag=None)
    assert figure.end_offsets[RAW[0]] == 748


def test_classic_spark_writes_none_and_nan() -> None:
    """py4j gives offsets that are missing as the text None, and rates that are no numbers."""
    event = events.progress(events.FIRST)
    source = event.progress.sources[0]
    source["startOffset"] = source["latestOffset"] = "None"
    source["inputRowsPerSecond"] = event.progress["inputRowsPerSecond"] = float("nan")
    figure = heard(event)
    assert figure.sources[0].partitions[RAW[0]] == PartitionProgress(start=None, end=176, latest=None, lag=None)
    assert (figure.lag, figure.input_rows_per_second) == (None, 0.0)


def test_a_sink_that_does_not_count_and_observed_values() -> None:
    """-1 rows mean: not known. What ``observe`` has computed is there by name."""
    sink = {"description": "ForeachBatchSink", "numOutputRows": -1}
    figure = heard(events.progress(events.FIRST, sink=sink, observedMetrics={"late": {"rows": 7}}))
    assert figure.sink_rows is None
    assert figure.observed == {"late": {"rows": 7}}


def test_a_life() -> None:
    """Started, batches, idle, another batch, terminated: one entry, whose state follows."""
    listener = ProgressListener(show="nothing")

    def state() -> str:
        (figure,) = listener.snapshot()
        return figure.state

    listener.onQueryStarted(events.started(events.FIRST))
    assert (state(), listener.snapshot()[0].batch_id, listener.snapshot()[0].rows) == ("running", None, None)
    listener.onQueryProgress(events.progress(events.FIRST))
    assert state() == "running"
    listener.onQueryIdle(events.idle(events.FIRST))
    assert state() == "idle"
    listener.onQueryProgress(events.progress(events.SECOND))
    assert state() == "running"
    listener.onQueryTerminated(events.terminated(events.SECOND))
    assert (state(), listener.snapshot()[0].error) == ("terminated", None)
    assert listener.snapshot()[0].started_at == datetime(2026, 11, 22, 8, 54, 25, 464_000, tzinfo=UTC)


def test_a_start_that_is_told_late_does_not_wake_the_dead() -> None:
    """Spark Connect tells of the start in another thread: it may come after the first batch, or after the end."""
    listener = ProgressListener(show="nothing")
    listener.onQueryProgress(events.progress(events.FIRST))
    listener.onQueryTerminated(events.terminated(events.FIRST, events.JAVA_ERROR))
    listener.onQueryStarted(events.started(events.FIRST))
    listener.onQueryIdle(events.idle(events.FIRST))
    (figure,) = listener.snapshot()
    assert (figure.state, figure.batches, figure.error) == (
        "terminated",
        1,
        "SparkRuntimeException: [USER_RAISED_EXCEPTION] boom",
    )


def test_each_start_of_a_query_is_an_entry_of_its_own() -> None:
    """The same checkpoint started again: the id is the same, the run is not. Names may be missing."""
    listener = ProgressListener(show="nothing")
    again = {**events.FIRST, "runId": events.RATE["runId"]}
    for event in (events.FIRST, again, events.UNNAMED):
        listener.onQueryProgress(events.progress(event))
    assert [figure.label for figure in listener.snapshot()] == [
        "flights",
        "flights",
        f"query {events.UNNAMED['id'][:8]}",
    ]


def test_ended_queries_are_forgotten_after_a_hundred() -> None:
    """A driver that starts queries for ever does not grow; what runs is never forgotten."""
    listener = ProgressListener(show="nothing")
    listener.onQueryProgress(events.progress(events.RATE))
    for number in range(150):
        run = {**events.FIRST, "runId": f"00000000-0000-0000-0000-{number:012}"}
        listener.onQueryProgress(events.progress(run))
        listener.onQueryTerminated(events.terminated(run))
    kept = listener.snapshot()
    assert len(kept) == 101
    assert (kept[0].name, kept[1].run_id.int) == ("rate", 0x50)


@pytest.mark.parametrize(
    ("exception", "line"),
    [
        (events.JAVA_ERROR, "SparkRuntimeException: [USER_RAISED_EXCEPTION] boom"),
        (events.PYTHON_ERROR, "ValueError: row 7: no tail number"),
        (events.FOREACH_BATCH_ERROR, "ValueError: in foreachBatch"),
        ("java.lang.NullPointerException", "NullPointerException"),
        ("plain words", "plain words"),
        ("", ""),
    ],
)
def test_the_line_of_an_exception_that_says_most(exception: str, line: str) -> None:
    """Of a Python error its own message, not the Java class that carries it, nor "Traceback"."""
    assert first_line(exception) == line


def test_what_cannot_be_read_is_told_once_and_stops_nothing(caplog: pytest.LogCaptureFixture) -> None:
    """An event of another shape leaves the figures as they were, and raises nothing into Spark."""
    listener = ProgressListener(show="nothing")
    listener.onQueryProgress(events.progress(events.FIRST))
    for _ in range(3):
        broken = SimpleNamespace(progress=SimpleNamespace(runId="?", id="?"))
        listener.onQueryProgress(cast("QueryProgressEvent", broken))
        listener.onQueryTerminated(cast("QueryTerminatedEvent", SimpleNamespace()))
    assert len([record for record in caplog.records if record.levelno >= logging.WARNING]) == 1
    assert [figure.batches for figure in listener.snapshot()] == [1]


def test_snapshots_while_events_come() -> None:
    """A snapshot is whole: rows and batches belong together, whatever thread asks."""
    listener = ProgressListener(show="nothing")
    done = threading.Event()
    torn: list[QueryProgress] = []

    def watch() -> None:
        while not done.is_set():
            torn.extend(figure for figure in listener.snapshot() if figure.total_rows != 400 * figure.batches)

    watcher = threading.Thread(target=watch)
    watcher.start()
    for _ in range(300):
        listener.onQueryProgress(events.progress(events.FIRST))
    done.set()
    watcher.join()
    assert torn == []
    assert listener.snapshot()[0].batches == 300


def test_after_the_end_of_the_block_figures_go_on_and_nothing_is_drawn() -> None:
    """A listener that is closed still counts; it writes no more."""
    said = io.StringIO()
    with ProgressListener(console=Console(file=said), every=0) as listener:
        listener.onQueryProgress(events.progress(events.FIRST))
    before = said.getvalue()
    listener.onQueryProgress(events.progress(events.SECOND))
    listener.close()
    assert before.count("\n") == 1
    assert said.getvalue() == before
    assert listener.snapshot()[0].batches == 2


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"show": "table"}, "show='table'"),
        ({"every": -1}, "every=-1"),
        ({"every": True}, "every=True"),
        ({"commit_group": ""}, "commit_group=''"),
        ({"commit_group": {}}, "commit_group={}"),
        ({"commit_group": "lag"}, "bootstrap_servers=None"),
        ({"bootstrap_servers": "broker:9092"}, "without commit_group"),
        ({"client_options": {}}, "without commit_group"),
        ({"take_over": True}, "take_over=True: has no effect without commit_group"),
        ({"commit_group": "lag", "bootstrap_servers": "broker:9092", "take_over": "yes"}, "take_over='yes'"),
        ({"commit_group": "lag", "bootstrap_servers": "broker:x"}, "bootstrap_servers='broker:x'"),
        ({"commit_group": "lag", "bootstrap_servers": "b:1", "client_options": {"sasl": 1}}, "no such option"),
        ({"commit_group": "lag", "bootstrap_servers": "b:1", "client_options": {"loop": 1}}, "its own event loop"),
    ],
)
def test_wrong_options_are_named(options: dict[str, object], named: str) -> None:
    """At once, with what was found."""
    with pytest.raises(ConfigurationError, match=named.replace("{", "\\{")):
        ProgressListener(**options)  # type: ignore[arg-type]


def test_no_kafka_client_is_loaded_without_a_group() -> None:
    """Who draws only needs none."""
    code = (
        "import sys; from aioparallel.spark.progress import ProgressListener; ProgressListener(); "
        "sys.exit('aiokafka' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_spark_still_has_the_attributes_that_are_read() -> None:
    """Of the class that both kinds of Spark fill."""
    for name in ("batchDuration", "durationMs", "observedMetrics", "processedRowsPerSecond", "inputRowsPerSecond"):
        assert isinstance(getattr(StreamingQueryProgress, name), property)
