"""The operator through run_locally: all but Spark itself."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
import logging
import pickle
import sys
import threading
import weakref
from collections.abc import AsyncIterator, Iterator
from types import FunctionType
from typing import Any

import psutil
import pyarrow as pa
import pytest
from pyspark.sql.types import IntegerType, LongType, StructField, StructType

from aioparallel import in_processes
from aioparallel.config.policies import RetryPolicy
from aioparallel.engine.flow.flow import Outcome
from aioparallel.engine.flow.sizes import Sized
from aioparallel.handlers.resources import resource
from aioparallel.records.errors import ConfigurationError, InvalidOutput, RetryLater
from aioparallel.spark import async_udf, parallel_map, run_locally
from aioparallel.spark.arrow_batches import Results
from aioparallel.spark.values import Row
from tests.support.spark.tried import double, numbers, plain, yields

QUICKLY = RetryPolicy(max_attempts=2, first_delay=0.001)


def test_each_row_once() -> None:
    """In whatever order they end, more than an output batch holds."""
    given = run_locally(parallel_map(double, schema="n bigint, twice int"), numbers(2_500))
    assert sorted(row["n"] for row in given) == list(range(2_500))
    assert all(row["twice"] == 2 * row["n"] for row in given)


def test_in_order() -> None:
    """Rows come out as they went in."""

    async def jittery(row: Row) -> Row:
        await asyncio.sleep(row["n"] * 7 % 5 / 1000)
        return {"n": row["n"]}

    operator = parallel_map(jittery, schema="n bigint", in_order=True, max_concurrency=50)
    assert [row["n"] for row in run_locally(operator, numbers(500))] == list(range(500))


@pytest.mark.parametrize("key", ["k", ["k"], lambda row: row["k"]])
def test_rows_of_a_key_one_after_the_other(key: Any) -> None:
    """And those of other keys beside them."""
    running: set[str] = set()
    most = 0
    seen: dict[str, list[int]] = {}

    async def alone(row: Row) -> Row:
        nonlocal most
        assert row["k"] not in running
        running.add(row["k"])
        most = max(most, len(running))
        await asyncio.sleep(0.001)
        running.remove(row["k"])
        seen.setdefault(row["k"], []).append(row["n"])
        return {"n": row["n"]}

    # What is seen is seen here: nothing is sent anywhere.
    run_locally(parallel_map(alone, schema="n bigint", key=key, max_concurrency=5), numbers(200))
    assert most == 5
    assert sum(map(len, seen.values())) == 200
    assert all(numbers == sorted(numbers) for numbers in seen.values())


def test_failures_as_rows() -> None:
    """Value, row, error, attempts and seconds; what failed can be run again."""

    async def some(row: Row) -> Row:
        if row["n"] % 10 == 3:
            raise ValueError("three")
        if row["n"] % 10 == 4:
            await asyncio.sleep(60)
        if row["n"] % 10 == 5 and row["n"] not in again:
            again.add(row["n"])
            raise RetryLater(0.001)
        return {"n": row["n"]}

    again: set[int] = set()
    operator = parallel_map(some, schema="n bigint", on_error="emit", retry=QUICKLY, timeout=0.05)
    given = run_locally(operator, numbers(100))
    assert len(given) == 100
    ok = [row for row in given if row["error"] is None]
    failed = [row for row in given if row["error"] is not None]
    assert len(ok) == 80
    assert all(row["row"] is None and row["value"]["n"] % 10 not in (3, 4) for row in ok)
    assert all(row["value"] is None and row["attempts"] == 2 and row["seconds"] > 0 for row in failed)
    errors = {row["row"]["n"] % 10: row["error"] for row in failed}
    assert errors[3] == "ValueError: three"
    assert errors[4].startswith("HandlerTimeout: ")
    assert {row["row"]["k"] for row in failed} <= {f"k{n}" for n in range(7)}


def test_a_failure_ends_it_all() -> None:
    """With its own error, which says of which row it is."""

    async def fail(row: Row) -> Row:
        if row["n"] == 17:
            raise ValueError("seventeen")
        return {"n": row["n"]}

    with pytest.raises(ValueError, match="seventeen") as caught:
        run_locally(parallel_map(fail, schema="n bigint", key="k", retry=None), numbers(1_000))
    assert "row 17 of partition 0 (k='k3') failed for good after 1 attempt" in caught.value.__notes__[0]


def test_rows_of_a_topic_are_named_by_their_place_there() -> None:
    """Where they have Kafka's three columns."""

    async def fail(row: Row) -> Row:
        raise ValueError("no")

    rows = [{"topic": "flights", "partition": 3, "offset": 77}]
    with pytest.raises(ValueError, match="no") as caught:
        run_locally(parallel_map(fail, schema="n bigint", retry=None), rows)
    assert "flights-3 offset 77 failed for good" in caught.value.__notes__[0]


def test_rows_left_out(caplog: pytest.LogCaptureFixture) -> None:
    """Those that have failed, and those whose value does not fit."""

    async def some(row: Row) -> Row:
        if row["n"] == 3:
            raise ValueError("three")
        return {"n": "four" if row["n"] == 4 else row["n"]}

    with caplog.at_level(logging.WARNING):
        given = run_locally(parallel_map(some, schema="n bigint", on_error="skip", retry=None), numbers(6))
    assert sorted(row["n"] for row in given) == [0, 1, 2, 5]
    assert "row 3 of partition 0 failed" in caplog.text
    assert (
        "row 4 of partition 0 does not fit the declared schema: n is 'four' (str); bigint wants a whole number"
        in caplog.text
    )


opened = 0


@contextlib.asynccontextmanager
async def client() -> AsyncIterator[str]:
    global opened
    opened += 1
    yield "client"


@contextlib.asynccontextmanager
async def another() -> AsyncIterator[str]:
    yield "another"


def test_resources_are_opened_once() -> None:
    """And kept for the next task; another operator's are its own, though their names are the same."""

    async def use(row: Row) -> Row:
        return {"c": resource("client", str)}

    first = parallel_map(use, schema="c string", resources={"client": client})
    assert run_locally(first, numbers(1)) == [{"c": "client"}]
    assert run_locally(first, numbers(1)) == [{"c": "client"}]
    assert opened == 1
    second = parallel_map(use, schema="c string", resources={"client": another})
    assert run_locally(second, numbers(1)) == [{"c": "another"}]


def test_an_error_of_the_input() -> None:
    """Comes through, when what was read before has ended."""

    def batches() -> Iterator[pa.RecordBatch]:
        yield pa.RecordBatch.from_pylist(numbers(3))
        raise OSError("the socket is gone")

    ended: list[int] = []

    async def slowly(row: Row) -> Row:
        await asyncio.sleep(0.01)
        ended.append(row["n"])
        return {"n": row["n"]}

    run = parallel_map(slowly, schema="n bigint").on_executor(StructType([]))
    with pytest.raises(OSError, match="the socket is gone"):
        list(run(batches()))
    assert sorted(ended) == [0, 1, 2]


def test_left_early() -> None:
    """Nothing runs on, nothing more is read, and the thread that reads has ended."""
    started = 0

    async def slowly(row: Row) -> Row:
        nonlocal started
        started += 1
        await asyncio.sleep(0.001)
        return {"n": row["n"]}

    read = 0

    def batches() -> Iterator[pa.RecordBatch]:
        nonlocal read
        for _ in range(1_000):
            read += 1
            yield pa.RecordBatch.from_pylist(numbers(100))

    operator = parallel_map(slowly, schema="n bigint", max_buffered=200, max_concurrency=10)
    output: Any = operator.on_executor(StructType([]))(batches())
    next(output)
    output.close()
    then = started
    for thread in threading.enumerate():
        if thread.name == "aioparallel-reading":
            thread.join(10)
            assert not thread.is_alive()
    assert started == then
    assert read < 10  # of 1,000; the thread may have been reading when its flow was closed


def test_large_values_come_in_small_batches() -> None:
    """A batch has about 8 MB, whatever the rows are."""

    async def page(row: Row) -> Row:
        return {"page": b"x" * 1_000_000}

    run = parallel_map(page, schema="page binary").on_executor(StructType([]))
    sizes = [batch.num_rows for batch in run(iter([pa.RecordBatch.from_pylist(numbers(200))]))]
    assert sum(sizes) == 200
    assert max(sizes[1:]) <= 8


@pytest.mark.parametrize(
    ("options", "wrong"),
    [
        ({"schema": "n"}, "schema='n': must be columns"),
        ({"schema": StructType([])}, "must be columns"),
        ({"key": 3}, "key=3: must be a column, a list of columns, or a plain function"),
        ({"key": plain}, "must be a column, a list of columns, or a plain function"),
        ({"key": []}, "must be a column"),
        ({"timeout": 0}, "timeout=0"),
        ({"max_concurrency": 0}, "max_concurrency=0"),
        ({"job_concurrency": 500}, "say how many, with tasks="),
        ({"job_concurrency": 5, "tasks": 8}, "less than one call for each of 8 tasks"),
        ({"job_concurrency": 500, "tasks": 8, "max_concurrency": 7}, "is each task's limit"),
        ({"on_error": "drop"}, "on_error='drop'"),
        ({"retry": 3}, "retry=3"),
        ({"handler": yields}, "must return one result, this one yields"),
        ({"schema": "n decimal(39, 2)"}, "does not exist"),
        ({"schema": "n struct<>"}, "a struct needs fields"),
        ({"schema": "été int"}, "a column's name is expected"),
        ({"resources": {"lock": threading.Lock()}}, "resources="),
        ({"middleware": [lambda row, call_next: threading.Lock()]}, "middleware"),
    ],
)
def test_mistakes(options: Any, wrong: str) -> None:
    """Are refused on the driver, before anything runs."""
    with pytest.raises(ConfigurationError) as caught:
        parallel_map(**{"handler": plain, "schema": "n int", **options})
    assert wrong in str(caught.value)


@pytest.mark.skipif(sys.platform != "linux", reason="what a process takes is known on Linux")
def test_garbage_of_few_objects_is_collected() -> None:
    """Cycles that hold much: the collector counts objects, and is told to count to thousands while handlers run. The
    process may grow by a quarter and 64 MB."""
    alive: weakref.WeakSet[Page] = weakref.WeakSet()
    most, may_grow = 0, 0.25 * psutil.Process().memory_info().rss + 64 * 1024**2

    async def leave_a_cycle(row: Row) -> Row:
        nonlocal most
        page = Page()
        alive.add(page)
        most = max(most, len(alive))
        await asyncio.sleep(0.002)
        return {"n": row["n"]}

    run_locally(parallel_map(leave_a_cycle, schema="n bigint", max_concurrency=4), numbers(4_000))
    assert most < may_grow / 100_000 + 300


class Page:
    def __init__(self) -> None:
        self.body = b"x" * 100_000  # which are in memory, as those of bytes() are not
        self.page = self


def test_what_cannot_be_sent() -> None:
    """A handler that holds something open is refused, and the message says where to open it."""
    lock = threading.Lock()

    async def hold(row: Row) -> Row:
        with lock:
            return row

    with pytest.raises(ConfigurationError, match=r"cannot be sent to the executors .* open them there, with resources"):
        parallel_map(hold, schema="n int")
    with pytest.raises(ConfigurationError, match="must be an `async def` function"):
        parallel_map(lambda row: row, schema="n int")  # type: ignore[arg-type, return-value]


def test_a_function_of_a_script_for_processes_is_refused_on_the_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wherever it is used: on a worker no process could import it."""
    made = FunctionType((lambda row: row).__code__, vars(sys.modules["__main__"]), "work")
    made.__module__, made.__qualname__ = "__main__", "work"
    monkeypatch.setattr(sys.modules["__main__"], "work", made, raising=False)
    monkeypatch.setattr(sys.modules["__main__"], "__file__", __file__, raising=False)  # pytest-xdist's has none
    work = in_processes(made)

    async def calls_it(row: Row) -> Row:
        return {"n": await work(row)}

    for handler in (work, calls_it, in_processes(functools.partial(made))):
        with pytest.raises(ConfigurationError, match=r"belongs to this program, .* put it into a module"):
            parallel_map(handler, schema="n int")
    assert pickle.loads(pickle.dumps(in_processes(json.dumps)))  # between processes of one program, as before


def test_limits_are_divided() -> None:
    """What a job may have at once, by the tasks that run at once."""
    operator = parallel_map(plain, schema="n int", job_concurrency=500, tasks=8)
    assert operator._shipment.work.handling.max_concurrency == 62


async def test_a_handler_that_changes_its_row() -> None:
    """Changes a copy: the next attempt gets the row as it was read, and so does whoever looks at what failed."""
    attempts: list[Row] = []

    async def spoil(row: Row) -> Row:
        attempts.append({"n": row["n"], "tags": list(row["tags"]), "names": list(row)})
        row["n"] += 100
        row["tags"].append("spoilt")
        row["more"] = 1
        del row["k"]
        raise ValueError("no")

    operator = parallel_map(spoil, schema="n bigint", on_error="emit", retry=QUICKLY)
    given = await asyncio.to_thread(run_locally, operator, [{"n": 1, "k": "a", "tags": ["x"]}])
    assert given[0]["row"] == {"n": 1, "k": "a", "tags": ["x"]}
    assert attempts == [{"n": 1, "tags": ["x"], "names": ["n", "k", "tags"]}] * 2


class SpeechlessError(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no words")


class Speechless:
    def __repr__(self) -> str:
        raise RuntimeError("no words")


def test_errors_of_any_text_are_rows() -> None:
    """Those that cannot be written, or have none, too."""

    async def fail(row: Row) -> Row:
        if row["n"] == 0:
            raise ValueError("bad \ud800 text")
        if row["n"] == 1:
            raise SpeechlessError
        return {"n": Speechless()} if row["n"] == 2 else {"n": 3}

    given = run_locally(parallel_map(fail, schema="n bigint", on_error="emit", retry=None, in_order=True), numbers(4))
    assert given[0]["error"] == r"ValueError: bad \ud800 text"
    assert given[1]["error"] == "SpeechlessError: (its str() raises RuntimeError)"
    assert "a value whose repr() raises RuntimeError (Speechless); bigint wants" in given[2]["error"]
    assert given[3]["value"] == {"n": 3}


def test_after_a_misfit_no_handler_starts() -> None:
    """The error is in the reader's hands, and nothing runs on behind it."""
    calls = 0

    async def slowly(row: Row) -> Row:
        nonlocal calls
        calls += 1
        await asyncio.sleep(0.001)
        return {"n": "x"}

    with pytest.raises(InvalidOutput):
        run_locally(parallel_map(slowly, schema="n bigint", max_concurrency=2), numbers(10_000))
    then = calls
    run_locally(parallel_map(double, schema="n bigint, twice int"), numbers(100))  # the loop has turned
    assert calls == then < 1_000


def test_a_key_of_several_columns() -> None:
    """Is none where all of them are null."""
    most = running = 0

    async def count(row: Row) -> Row:
        nonlocal most, running
        running += 1
        most = max(most, running)
        await asyncio.sleep(0.001)
        running -= 1
        return {"n": row["n"]}

    rows = [{"n": n, "a": None, "b": None} for n in range(50)]
    run_locally(parallel_map(count, schema="n bigint", key=["a", "b"]), rows, schema="n bigint, a string, b string")
    assert most > 1


@pytest.mark.parametrize("small", [0, 1_000], ids=["large ones", "small ones first"])
def test_large_rows_are_not_read_ahead_by_number(small: int) -> None:
    """Some 64 MB of them, whatever max_buffered says."""
    read = 0
    goes_on: list[bool] = []

    def batches() -> Iterator[pa.RecordBatch]:
        nonlocal read
        yield pa.RecordBatch.from_pylist([{"page": b"x"}] * small, pa.schema([("page", pa.binary())]))
        for _ in range(100):
            read += 1
            yield pa.RecordBatch.from_pylist([{"page": b"x" * 1_000_000}] * 10)

    async def wait(row: Row) -> Row:
        while not goes_on:
            await asyncio.sleep(0.001)
        return {"n": len(row["page"])}

    operator = parallel_map(wait, schema="n bigint", max_concurrency=4)
    output = operator.on_executor(StructType([]))(batches())

    def end() -> None:
        settled(lambda: read)
        goes_on.append(True)

    ending = threading.Thread(target=end)
    ending.start()
    assert sum(batch.num_rows for batch in output) == 1_000 + small
    ending.join()
    assert most_read[0] < 10


async def slow_first(row: Row) -> Row:
    called.append(row["n"])
    while row["n"] == 0 and not is_over.is_set():
        await asyncio.sleep(0.001)
    return {"n": row["n"], "page": b"x" * 500_000}


called: list[int] = []
is_over = threading.Event()


@pytest.mark.parametrize("form", ["operator", "column"])
def test_large_results_are_not_kept_by_number(form: str) -> None:
    """Behind a slow row, in order: some 64 MB of them, and those of the calls that run."""
    called.clear()
    is_over.clear()
    if form == "operator":
        operator = parallel_map(slow_first, schema="n bigint, page binary", max_concurrency=4, in_order=True)
        output: Any = operator.on_executor(StructType([]))([pa.RecordBatch.from_pylist(numbers(400))])
    else:
        column = async_udf(returns="struct<n bigint, page binary>", max_concurrency=4)(slow_first_of)
        output = column.on_executor()(iter([pa.array(range(400))]))

    def end() -> None:
        settled(lambda: len(called))
        is_over.set()

    ending = threading.Thread(target=end)
    ending.start()
    given = [row["n"] for batch in output for row in batch.to_pylist()]
    ending.join()
    assert given == list(range(400))
    assert 100 < most_read[0] < 150


async def slow_first_of(n: int) -> Row:
    return await slow_first({"n": n})


most_read: list[int] = []


def settled(count: Any) -> None:
    """Wait until it grows no more."""
    before = -1
    while count() != before or not before:
        before = count()
        threading.Event().wait(0.3)
    most_read[:] = [before]


def test_a_batch_that_arrow_cannot_hold_is_divided() -> None:
    """More than 2 GB in one array; here the builder says so at a few rows."""

    def build(outcomes: list[Any]) -> pa.Array:
        if len(outcomes) > 3:
            raise TypeError("Cannot convert pyarrow.lib.ChunkedArray to pyarrow.lib.Array")
        return pa.array([outcome.value for outcome in outcomes])

    def lists() -> Any:
        yield Sized([Outcome(None, n, n, None, 1, 0.0) for n in range(50)], 50)

    results = Results(build, lambda value: None, "raise", lambda item, index: f"row {index}")
    assert [value for array in results.of(lists()) for value in array.to_pylist()] == list(range(50))


def test_the_output_of_failures_as_rows() -> None:
    """Names the handler's columns and those of the input."""
    operator = parallel_map(plain, schema="n int", on_error="emit")
    given = operator.output(StructType([StructField("m", LongType())]))
    assert given.fieldNames() == ["value", "row", "error", "attempts", "seconds"]
    assert given["value"].dataType == StructType([StructField("n", IntegerType())])
    assert given["row"].dataType == StructType([StructField("m", LongType())])
