"""Async functions as columns, through run_locally."""

from __future__ import annotations

import asyncio
import logging
import pickle
import sys
from functools import partial
from typing import Any

import pytest
from pyspark import cloudpickle

from aioparallel import in_processes
from aioparallel.records.errors import ConfigurationError, HandlerTimeout
from aioparallel.spark import async_udf, parallel_map, run_locally
from tests.support.spark.tried import plain, yields


def test_names_of_columns_and_of_what_is_sent() -> None:
    """A column is called like its function; a function of a module is sent by its name, as others are."""
    from tests.support.spark import columns  # noqa: PLC0415

    assert columns.counted.on_executor().__name__ == "counted"
    assert run_locally(columns.counted, [1, 2]) == [1, 2]
    sent = pickle.loads(cloudpickle.dumps(columns.counted._work.handler))  # type: ignore[no-untyped-call]
    assert sent._function is columns.counted.function


@async_udf(returns="struct<n int, text string>", key="n", retry=None)
async def both(n: int, text: str) -> dict[str, object]:
    """What it does."""
    return {"n": n, "text": text}


def test_a_column_of_structs() -> None:
    """In the order of the rows, and the function keeps its name."""
    given = run_locally(both, [(n, f"t{n}") for n in range(1_500)])
    assert given == [{"n": n, "text": f"t{n}"} for n in range(1_500)]
    assert (both.__name__, both.__doc__) == ("both", "What it does.")  # type: ignore[attr-defined]


def test_a_column_of_values() -> None:
    """Any type, and null."""

    @async_udf(returns="array<int>")
    async def some(n: int | None) -> list[int] | None:
        return None if n is None else [n]

    assert run_locally(some, [1, None, 3]) == [[1], None, [3]]


def test_a_struct_may_be_null() -> None:
    """Though its fields may not."""

    @async_udf(returns="struct<n int not null>")
    async def some(n: int) -> dict[str, int] | None:
        return None if n == 1 else {"n": n}

    assert run_locally(some, [0, 1, 2]) == [{"n": 0}, None, {"n": 2}]


@async_udf(returns="int", on_error="emit", retry=None)
async def emits(n: int) -> Any:
    if n == 1:
        raise ValueError("one")
    return "text" if n == 2 else n


@async_udf(returns="int", on_error="null", retry=None)
async def nulls(n: int) -> Any:
    if n == 1:
        raise ValueError("one")
    return "text" if n == 2 else n


def test_calls_that_fail(caplog: pytest.LogCaptureFixture) -> None:
    """Are values, or null with a line in the log; and so is what does not fit."""
    given = run_locally(emits, [0, 1, 2, 3])
    assert [row["value"] for row in given] == [0, None, None, 3]
    assert [row["error"] for row in given][:2] == [None, "ValueError: one"]
    assert (
        "row 2 of partition 0 does not fit the declared schema: it is 'text' (str); int wants a whole number"
        in given[2]["error"]
    )
    assert emits.returns.simpleString() == "struct<value:int,error:string,attempts:int,seconds:double>"
    with caplog.at_level(logging.WARNING):
        assert run_locally(nulls, [0, 1, 2, 3]) == [0, None, None, 3]
    assert "1 calls failed for good and are null, the first of them row 1 of partition 0" in caplog.text
    assert "row 2 of partition 0 does not fit" in caplog.text


def test_a_call_with_a_key_is_named_by_it() -> None:
    """Its place in the task alone says little to somebody who reads the log."""

    @async_udf(returns="int", key="tailnum", retry=None)
    async def fails(n: int, tailnum: str) -> int:
        raise ValueError("no")

    with pytest.raises(ValueError, match="no") as caught:
        run_locally(fails, [(1, "N14228")])
    assert "row 0 of partition 0 (tailnum='N14228') failed for good" in caught.value.__notes__[0]


def test_a_call_that_fails_ends_it_all() -> None:
    """Unless said otherwise."""

    @async_udf(returns="int", timeout=0.01, retry=None)
    async def hangs(n: int) -> int:
        await asyncio.sleep(60)
        return n

    with pytest.raises(HandlerTimeout) as caught:
        run_locally(hangs, [1])
    assert "row 0 of partition 0" in caught.value.__notes__[0]
    assert 'on_error="emit" or "null" goes on without it' in caught.value.__notes__[0]


def test_calls_of_a_key() -> None:
    """By a parameter, or by a function of the arguments."""
    running: set[int] = set()

    async def alone(n: int, other: str) -> int:
        assert n % 3 not in running
        running.add(n % 3)
        await asyncio.sleep(0)
        running.remove(n % 3)
        return n

    @async_udf(returns="bigint", key="third")
    async def by_name(third: int, n: int) -> int:
        return await alone(n, "")

    by_function = async_udf(returns="bigint", key=lambda n, other: n % 3)(alone)
    assert run_locally(by_name, [(n % 3, n) for n in range(100)]) == list(range(100))
    assert run_locally(by_function, [(n, "x") for n in range(100)]) == list(range(100))


def test_mistakes_of_columns() -> None:
    """Are refused where they are made."""

    async def one(n: int) -> int:
        return n

    with pytest.raises(ConfigurationError, match="is no parameter of the function; it has n"):
        async_udf(returns="int", key="m")(one)
    with pytest.raises(ConfigurationError, match="must decorate an `async def` function"):
        async_udf(returns="int")(lambda n: n)
    with pytest.raises(ConfigurationError, match="returns='strin'"):
        async_udf(returns="strin")
    with pytest.raises(ConfigurationError, match="on_error='skip'"):
        async_udf(returns="int", on_error="skip")  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="does not fit its parameters: missing a required argument: 'text'"):
        both("n")
    with pytest.raises(ConfigurationError, match="must return one result"):
        async_udf(returns="int")(yields)

    async def with_default(n: int, text: str = "") -> int:
        return n

    with pytest.raises(ConfigurationError, match="its parameter number 2 gets no column"):
        async_udf(returns="int", key="text")(with_default)("n")
    with pytest.raises(ConfigurationError, match="row 1 has 'm', which is not in the schema"):
        run_locally(parallel_map(plain, schema="n int"), [{"n": 1}, {"m": 1}], schema="n int")
    with pytest.raises(ConfigurationError, match="key='zz': is no column; there are n"):
        run_locally(parallel_map(plain, schema="n int", key="zz"), [{"n": 1}])
    with pytest.raises(ConfigurationError, match='must be a type, like "string"'):
        async_udf(returns="strin")
    with pytest.raises(ConfigurationError, match=r"must be a DataFrame: df.transform"):
        parallel_map(plain, schema="n int")([])  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="must be the result of parallel_map"):
        run_locally(one, [])  # type: ignore[arg-type]


def test_a_partial_of_a_function_of_this_program_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """In processes of an executor, which could not import it: on the driver, wherever the handler has it."""

    def shout(text: str) -> str:
        return text.upper()

    class Shouting:
        pass

    for mine in (shout, Shouting):
        mine.__module__, mine.__qualname__ = "__main__", mine.__name__
        monkeypatch.setattr(sys.modules["__main__"], mine.__name__, mine, raising=False)
    for given in (
        partial(map, shout),
        partial(partial(sorted, key=shout), reverse=True),
        partial(map, [shout]),
        partial(map, Shouting()),
    ):
        handler = in_processes(given)

        async def calls(row: Any, handler: Any = handler) -> Any:
            return await handler(row)

        for refused in (
            lambda handler=handler: parallel_map(handler, schema="n int"),
            lambda calls=calls: parallel_map(calls, schema="n int"),
            lambda handler=handler: async_udf(returns="int")(handler).on_executor(),
            lambda calls=calls: async_udf(returns="int")(calls).on_executor(),
        ):
            with pytest.raises(ConfigurationError, match=r"belongs to this program, .* put it into a module"):
                refused()


def test_a_partial_of_a_function_of_a_module_is_sent() -> None:
    """In a column, too, although a partial has no name."""
    column = async_udf(returns="string")(in_processes(partial(str.removeprefix, "abc")))
    assert run_locally(column, ["a", "ab", "b"]) == ["bc", "c", "abc"]
