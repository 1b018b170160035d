"""What a run that is killed, interrupted or fails while it moves files leaves. Without Spark: rows are texts here."""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, cast
from unittest.mock import MagicMock

import pytest
from pyspark.sql import DataFrame, SparkSession

from aioparallel.records.errors import ConfigurationError
from aioparallel.spark.file_systems import LocalFiles, Location
from aioparallel.spark.parquet_output import Mode, ParquetOutput

OLD: Final = {"month=1": "old", "month=2": "old", "month=3": "old"}
NEW: Final = {"month=2": "new", "month=3": "new", "month=4": "new"}
move = LocalFiles.move


class Killed(BaseException):
    """The process is gone: nothing that it would do after this is done."""


class Frame:
    """Writes a file into each of these directories, as Spark does it."""

    def __init__(self, rows: Mapping[str, str]) -> None:
        self._rows = rows
        self.write = self

    def parquet(self, uri: str, mode: str, partitionBy: object) -> None:  # noqa: N803 - Spark's
        """Of Spark."""
        for directory, text in self._rows.items():
            path = Path(uri.removeprefix("file:")) / directory
            path.mkdir(parents=True, exist_ok=mode == "append")
            (path / f"part-{text}.parquet").write_text(text)


@pytest.fixture(autouse=True)
def local(monkeypatch: pytest.MonkeyPatch) -> None:
    """Files of this machine."""
    monkeypatch.setattr("aioparallel.spark.parquet_output.locate", lambda _, path: Location(str(path), LocalFiles()))


def output(path: Path, mode: Mode = "overwrite", partition_by: Sequence[str] = ("month",)) -> ParquetOutput:
    """The beginning of a run."""
    return ParquetOutput(cast(SparkSession, MagicMock()), path, mode, partition_by)


def frame(rows: Mapping[str, str]) -> DataFrame:
    """What it writes."""
    return cast(DataFrame, Frame(rows))


def found(path: Path) -> dict[str, str]:
    """Texts by directory, each once."""
    files = sorted(path.rglob("*.parquet"))
    texts = {str(file.parent.relative_to(path)): file.read_text() for file in files}
    assert len(texts) == len(files)
    return texts


def dying(at: int, *, after: bool, error: type[BaseException]) -> Callable[..., None]:
    """A move that raises, before or after it is done; as often as it is called then, if the process is dead."""
    calls = 0

    def moves(self: LocalFiles, path: str, to: str) -> None:
        nonlocal calls
        calls += 1
        if calls < at or (calls > at and error is not Killed):
            move(self, path, to)
            return
        if after and calls == at:
            move(self, path, to)
        raise error

    return moves


DEATHS: Final = [(at, after) for at in range(1, 6) for after in (False, True)]
"""Each place at which a run may end while it moves: five moves with partitions, two without."""


@pytest.mark.parametrize("columns", [("month",), ()])
@pytest.mark.parametrize(("at", "after"), DEATHS)
def test_killed_while_files_are_moved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, columns: tuple[str, ...], at: int, after: bool
) -> None:
    """Each partition, or the whole, is old or new when the next run begins. What is deleted then stays deleted, and
    the next run is like any other."""
    out = tmp_path / "out"
    output(out, partition_by=columns).write(frame(OLD))
    run = output(out, partition_by=columns)
    with monkeypatch.context() as patch:
        patch.setattr(LocalFiles, "move", dying(at, after=after, error=Killed))
        patch.setattr(LocalFiles, "remove", lambda *_: None)
        with contextlib.suppress(Killed):
            run.write(frame(NEW))
    output(out, "append", ("month",))
    texts = found(out)
    if columns:
        assert texts.keys() in ({*OLD}, {*OLD, *NEW})
        assert texts["month=1"] == "old"
    else:
        assert texts in (OLD, NEW)
    shutil.rmtree(out / "month=2")
    output(out, "append", ("month",))
    assert "month=2" not in found(out)
    output(out, partition_by=columns).write(frame(NEW))
    assert found(out) == ({**OLD, **NEW} if columns else NEW)


@pytest.mark.parametrize("columns", [("month",), ()])
@pytest.mark.parametrize(("at", "after"), DEATHS)
def test_interrupted_while_files_are_moved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, columns: tuple[str, ...], at: int, after: bool
) -> None:
    """By Ctrl-C, before a move or behind it: all of it is as it was, and nothing is left."""
    out = tmp_path / "out"
    output(out, partition_by=columns).write(frame(OLD))
    run = output(out, partition_by=columns)
    monkeypatch.setattr(LocalFiles, "move", dying(at, after=after, error=KeyboardInterrupt))
    try:
        run.write(frame(NEW))
    except KeyboardInterrupt:
        assert found(out) == OLD
    else:
        assert not columns
        assert at > 2
        assert found(out) == NEW
    assert [one.name for one in tmp_path.iterdir()] == ["out"]


def test_what_another_run_has_replaced_meanwhile_is_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run that fails afterwards takes back what is its own."""
    out = tmp_path / "out"
    output(out).write(frame(OLD))
    run, calls = output(out), []

    def meanwhile(self: LocalFiles, path: str, to: str) -> None:
        calls.append(path)
        if len(calls) == 4:  # month=2 is replaced, and month=3 moved away
            output(out).write(frame({"month=2": "other", "month=3": "other"}))
        move(self, path, to)

    monkeypatch.setattr(LocalFiles, "move", meanwhile)
    with pytest.raises(OSError, match="not empty"):
        run.write(frame(NEW))
    assert found(out) == {"month=1": "old", "month=2": "other", "month=3": "other"}
    assert [one.name for one in tmp_path.iterdir()] == ["out"]


def test_what_cannot_be_moved_back_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Where it was moved to, until the next run: it is nowhere else."""
    out = tmp_path / "out"
    for columns in (("month",), ()):
        output(out, partition_by=columns).write(frame(OLD))
        run = output(out, partition_by=columns)

        def broken(self: LocalFiles, path: str, to: str) -> None:
            if not path.startswith(str(out)):
                raise OSError("the disk is gone")
            move(self, path, to)

        caplog.set_level(logging.ERROR, "aioparallel.spark")
        with monkeypatch.context() as patch:
            patch.setattr(LocalFiles, "move", broken)
            with pytest.raises(OSError, match="the disk is gone"):
                run.write(frame(NEW))
        assert "which the next backfill there does: the disk is gone" in caplog.text
        output(out, partition_by=columns)
        assert found(out) == OLD


def test_new_rows_that_cannot_be_moved_away_stay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Nobody is told that the next run puts the others back: it does not."""
    out, left = tmp_path / "out", 3
    output(out, partition_by=("month",)).write(frame(OLD))
    run = output(out, partition_by=("month",))

    def broken(self: LocalFiles, path: str, to: str) -> None:
        nonlocal left
        left -= 1
        if left < 0:
            raise OSError("the disk is gone")
        move(self, path, to)

    caplog.set_level(logging.ERROR, "aioparallel.spark")
    with monkeypatch.context() as patch:
        patch.setattr(LocalFiles, "move", broken)
        with pytest.raises(OSError, match="the disk is gone"):
            run.write(frame(NEW))
    told = [one.getMessage() for one in caplog.records]
    stayed = [one for one in told if "where the new rows stay" in one]
    assert len(stayed) == 1
    before = found(out)
    output(out, partition_by=("month",))
    assert {name: rows for name, rows in found(out).items() if name in before} == before


def test_the_error_of_the_run_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the file system is gone, too: what is left is no matter then."""

    def gone(*_: object) -> bool:
        raise OSError("no connection")

    def fails(*_: object, **__: object) -> None:
        monkeypatch.setattr(LocalFiles, "is_there", gone)
        raise ValueError("no such thing")

    monkeypatch.setattr(Frame, "parquet", fails)
    with pytest.raises(ValueError, match="no such thing"):
        output(tmp_path / "out").write(frame(NEW))


def test_the_error_of_the_run_is_told_over_connect(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whose sessions do not tell which tasks run, and raise an error of their own when asked."""

    def fails(*_: object, **__: object) -> None:
        raise ValueError("no such thing")

    monkeypatch.setattr(Frame, "parquet", fails)
    connect = cast(SparkSession, MagicMock(spec=["catalog", "read"]))
    with pytest.raises(ValueError, match="no such thing"):
        ParquetOutput(connect, tmp_path / "out", "error", ()).write(frame(NEW))


def test_files_that_vanish_while_a_run_clears_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A task that ends late removes its own files: the rest is removed all the same."""
    for name in ("a", "b"):
        (tmp_path / "staging" / name).mkdir(parents=True)
        (tmp_path / "staging" / name / "file").touch()
    unlink = os.unlink

    def removed_by_its_task(*arguments: Any, **options: Any) -> None:
        monkeypatch.setattr(os, "unlink", unlink)
        unlink(*arguments, **options)
        unlink(*arguments, **options)

    monkeypatch.setattr(os, "unlink", removed_by_its_task)
    LocalFiles().remove(str(tmp_path / "staging"))
    assert not list(tmp_path.iterdir())


def test_directories_of_others_are_not_put_back(tmp_path: Path) -> None:
    """Whose names begin alike."""
    left = tmp_path / f".out.backfill-2024.backfill-{32 * 'a'}"
    for part in ("_replaced", "_rows"):
        (left / part).mkdir(parents=True)
    output(tmp_path / "out")
    assert not (tmp_path / "out").exists()
    output(tmp_path / "out.backfill-2024")
    assert (tmp_path / "out.backfill-2024").exists()


@pytest.mark.parametrize("name", ["_backup/rows.parquet", ".git/HEAD", "_delta_log/0.json"])
def test_what_readers_leave_out_is_not_removed(tmp_path: Path, name: str) -> None:
    """By a run that adds, or expects nothing. Only what a job of Spark has left is nothing."""
    file = tmp_path / "out" / name
    file.parent.mkdir(parents=True)
    file.touch()
    with pytest.raises(ConfigurationError, match="already exists"):
        output(tmp_path / "out", "error", ())
    for mode in ("append", "overwrite"):
        output(tmp_path / "out", cast(Any, mode)).write(frame(NEW))
    assert file.exists()


@pytest.mark.parametrize(
    ("there", "columns"),
    [
        ("month=1", ("month", "day")),
        ("month=1/day=1", ("month",)),
        ("day=1/month=1", ("month", "day")),
        ("Month=1", ("month",)),
        ("", ("month",)),
        ("month=1", ()),
    ],
)
def test_rows_that_readers_would_not_take_together(tmp_path: Path, there: str, columns: tuple[str, ...]) -> None:
    """With other columns, in another order, or with none: refused, also when files are added."""
    output(tmp_path / "out", "error", ()).write(frame({there: "old"}))
    for mode in ("overwrite", "append") if columns else ("append",):
        with pytest.raises(ConfigurationError, match=r"is (not )?partitioned.*, it has .*write to another directory"):
            output(tmp_path / "out", cast(Any, mode), columns)


def test_names_with_an_equals_sign_that_are_no_partitions(tmp_path: Path) -> None:
    """Files are taken as they are."""
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "a=b.parquet").touch()
    output(tmp_path / "out", "append", ()).write(frame({"": "new"}))
    with pytest.raises(ConfigurationError, match="is a file"):
        output(tmp_path / "out" / "a=b.parquet", "append", ())


@pytest.mark.parametrize("columns", [("month",), ("year", "month")], ids=["one column", "two columns"])
def test_rows_without_a_month_are_not_replaced(tmp_path: Path, columns: Sequence[str]) -> None:
    """They may be of any run: two runs that each have such rows lost those of the first."""
    above = "year=2013/" if len(columns) == 2 else ""
    null = f"{above}month=__HIVE_DEFAULT_PARTITION__"
    output(tmp_path / "out", partition_by=columns).write(frame({null: "old", f"{above}month=1": "old"}))
    output(tmp_path / "out", partition_by=columns).write(frame({f"{above}month=1": "new"}))
    again = output(tmp_path / "out", partition_by=columns)
    with pytest.raises(ConfigurationError, match=rf"rows with NULL in .*month \({null}\)"):
        again.write(frame({null: "new", f"{above}month=2": "new"}))
    assert found(tmp_path / "out") == {null: "old", f"{above}month=1": "new"}
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
