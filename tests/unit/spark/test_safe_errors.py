"""Errors that the JVM can get."""

from __future__ import annotations

import traceback
from typing import Any

import pytest

from aioparallel.records.errors import TaskFailed
from aioparallel.spark import async_udf, parallel_map, run_locally
from aioparallel.spark.safe_errors import safe_errors
from aioparallel.spark.values import MAX_TEXT, text_of


class _Unspeakable(Exception):
    def __str__(self) -> str:
        raise SystemExit


def _with_note(note: str) -> Exception:
    error = ValueError("plain")
    error.add_note(note)
    return error


def _caused(cause: Exception) -> Exception:
    error = ValueError("plain")
    error.__cause__ = cause
    return error


@pytest.mark.parametrize(
    "error",
    [
        ValueError("bad \udc80 text"),
        _with_note("\udc80"),
        _caused(OSError("\ud800")),
        ExceptionGroup("some", [ValueError("\udc80")]),
        ValueError("x" * 5_000_000),
        SystemExit("\udc80"),
    ],
    ids=lambda error: type(error).__name__.encode("ascii", "replace").decode(),
)
def test_what_leaves_can_be_written(error: BaseException) -> None:
    """Whatever the error, its notes and its causes say."""
    with pytest.raises(TaskFailed) as caught, safe_errors():
        raise error
    text = "".join(traceback.format_exception(caught.value))
    assert len(text.encode()) < 4 * MAX_TEXT
    assert type(error).__name__.encode("ascii", "backslashreplace").decode() in text
    assert "test_safe_errors.py" in text


def test_others_are_as_they_were() -> None:
    """The same exception."""
    error = ValueError("ü and 👍")
    with pytest.raises(ValueError, match="ü") as caught, safe_errors():
        raise error
    assert caught.value is error


def test_errors_of_handlers() -> None:
    """In the operator and in the column; one that is a value is as short."""

    async def fail(row: Any) -> Any:
        raise ValueError("bad \udc80 text" + "x" * 1_000_000)

    with pytest.raises(TaskFailed, match=r"bad \\udc80 text"):
        run_locally(parallel_map(fail, schema="n int", retry=None), [{"n": 1}])
    with pytest.raises(TaskFailed, match=r"bad \\udc80 text"):
        run_locally(async_udf(returns="int", retry=None)(fail), [1])
    emitted = run_locally(parallel_map(fail, schema="n int", retry=None, on_error="emit"), [{"n": 1}])
    assert len(emitted[0]["error"]) < MAX_TEXT + 100
    assert "characters left out" in emitted[0]["error"]
    assert text_of(_Unspeakable()) == "_Unspeakable: (its str() raises SystemExit)"
