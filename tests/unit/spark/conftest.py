"""No session of another test of the same process is heard by those of this room."""

from __future__ import annotations

import pytest
from pyspark.sql import SparkSession


@pytest.fixture(autouse=True)
def no_session(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """A listener would wait for the last events of queries that it never had."""
    if request.module.__name__.rpartition(".")[2].startswith("test_progress"):
        monkeypatch.setattr(SparkSession, "getActiveSession", lambda: None)
