"""What a handler raises that is no Exception, and clients that do not open: both are named."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from aioparallel import batches
from aioparallel.engine.flow import loop_thread
from aioparallel.spark import async_udf, parallel_map, run_locally
from aioparallel.spark.values import Row
from tests.support.spark.tried import numbers


class NoException(BaseException):
    """Of a library's."""


KINDS: list[type[BaseException]] = [SystemExit, GeneratorExit, NoException, asyncio.CancelledError]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("form", ["row", "batch", "key", "column"])
def test_the_row_is_named(form: str, kind: type[BaseException]) -> None:
    """Wherever it is raised, and though ``on_error`` is for failures."""

    def check(number: int) -> int:
        if number == 3:
            raise kind
        return number

    async def row(given: Row) -> Row:
        await asyncio.sleep(0)
        return {"n": check(given["n"])}

    async def several(given: Any) -> list[Row]:
        await asyncio.sleep(0)
        return [{"n": check(one["n"])} for one in given]

    async def value(n: int) -> int:
        return check(n)

    forms: dict[str, Callable[[], Any]] = {
        "row": lambda: parallel_map(row, schema="n bigint", retry=None, max_concurrency=1),
        "batch": lambda: parallel_map(batches(several, size=2), schema="n bigint", retry=None, max_concurrency=1),
        "key": lambda: parallel_map(row, schema="n bigint", retry=None, key=lambda one: check(one["n"])),
        "column": lambda: async_udf(returns="bigint", retry=None)(value),
    }
    tried = forms[form]()
    with pytest.raises(BaseException) as caught:  # noqa: PT011 - the kind is looked at below
        run_locally(tried, range(10) if form == "column" else numbers(10))
    said = " ".join([str(caught.value), *caught.value.__notes__])
    assert "row 3" in said or "row 2 of partition 0 (and 1 more in its batch)" in said
    # One of these would pass for the end of the generator that a task reads.
    assert not isinstance(caught.value, GeneratorExit)
    if kind is GeneratorExit:
        assert isinstance(caught.value.__cause__, GeneratorExit)


def test_a_client_that_hangs_while_it_opens_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the seconds it had, and where it stood."""
    monkeypatch.setattr(loop_thread, "_OPEN_TIMEOUT", 0.05)

    @contextlib.asynccontextmanager
    async def hangs() -> AsyncIterator[None]:
        await asyncio.Event().wait()
        yield

    operator = parallel_map(plain, schema="n bigint", resources={"crm": hangs})
    with pytest.raises(TimeoutError, match=r"resource 'crm' did not open within 0\.05 s"):
        run_locally(operator, numbers(1))


def test_a_time_out_of_the_client_itself_stays_what_it_is() -> None:
    """It is said of which it is."""

    @contextlib.asynccontextmanager
    async def gives_up() -> AsyncIterator[None]:
        if numbers(1):
            raise TimeoutError("no answer from the login server")
        yield

    operator = parallel_map(plain, schema="n bigint", resources={"crm": gives_up})
    with pytest.raises(TimeoutError, match="no answer from the login server") as caught:
        run_locally(operator, numbers(1))
    assert caught.value.__notes__ == ["while opening resource 'crm'"]


async def plain(row: Row) -> Row:
    return {"n": row["n"]}
