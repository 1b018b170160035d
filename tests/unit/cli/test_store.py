"""``aioparallel store``."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from aioparallel.cli.app import WRONG_USE, run


def test_init_makes_the_tables(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Once; what is there already is left."""
    database = tmp_path / "results.db"
    for _ in range(2):
        assert run(["store", "init", f"sqlite+aiosqlite:///{database}", "--prefix", "mine_"]) == 0
    assert "mine_partition" in capsys.readouterr().err
    with sqlite3.connect(database) as connection:
        names = {name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
        assert names == {"mine_partition", "mine_position", "mine_done", "mine_log", "mine_version"}
        assert connection.execute("SELECT value FROM mine_version").fetchall() == [(1,)]
    connection.close()


def test_sql_shows_what_init_would_do(capsys: pytest.CaptureFixture[str]) -> None:
    """For whoever may do it; each statement ends as SQL does, and nothing is connected."""
    assert run(["store", "init", "--sql", "postgresql", "--schema", "kafka"]) == 0
    shown = capsys.readouterr().out
    assert shown.count(";") == 6
    assert "CREATE TABLE IF NOT EXISTS kafka.aioparallel_done" in shown


def test_what_is_missing_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    """The database, or that it cannot be reached."""
    assert run(["store", "init"]) == WRONG_USE
    assert "--sql" in capsys.readouterr().err
    assert run(["store", "init", "postgresql://user:secret@host/db"]) == WRONG_USE
    assert "DATABASE='postgresql://...': names no async driver; write postgresql+asyncpg://" in capsys.readouterr().err
    assert run(["store", "init", "postgresql+asyncpg://nobody@127.0.0.1:1/nothing"]) == 1
    assert "could not be created" in capsys.readouterr().err
