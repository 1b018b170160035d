"""An output and what is read, by their paths. Needs no Spark."""

from __future__ import annotations

from pathlib import Path
from typing import cast

import pytest
from pyspark.sql import SparkSession

from aioparallel.records.errors import ConfigurationError
from aioparallel.spark.file_systems import whole_path
from aioparallel.spark.frame_inputs import check_paths

CONNECT = cast(SparkSession, object())
"""Has no JVM to ask."""


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a link to ``in``."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "in" / "a").mkdir(parents=True)
    (tmp_path / "link").symlink_to("in")


@pytest.mark.parametrize(
    ("read", "written"),
    [
        ("in", "in"),
        ("in", "link/"),
        ("link", "file:{}/in/late"),
        ("file://{}/in", "in/late"),
        ("in/*", "in/late"),
        ("in/*", "in/month=3"),
        ("in/*/*.parquet", "in/late/x.parquet"),
        ("in/{{a,month=[12]}}", "in/month=2"),
        ("in/[!b]", "in/a/late"),
        ("link/month=?", "in/month=9"),
        ("*", "in"),
        ("in/a", "in"),
        ("in/a/*", "in"),
        ("in/a/*", "."),
        ("s3a://bucket/in/*", "s3a://bucket/in/late"),
        ("s3a://bucket/in/", "s3a://bucket/in"),
    ],
)
def test_an_output_in_its_own_input(tmp_path: Path, read: str, written: str) -> None:
    """Also one that is not there yet: the next run would read it."""
    read, written = read.format(tmp_path), written.format(tmp_path)
    with pytest.raises(ConfigurationError, match="write to another directory"):
        check_paths(CONNECT, [read], whole_path(CONNECT, written), written)


@pytest.mark.parametrize(
    ("read", "written"),
    [
        ("in", "in2"),
        ("in/a", "in/b"),
        ("in/?", "in/bb"),
        ("in/[!b]", "in/b"),
        ("in/{a,b}", "in/c"),
        ("in/a.b", "in/aXb"),
        ("in/*.parquet", "in/late"),
        ("in/\\*", "in/late"),
        ("s3a://bucket/in", "s3a://other/in"),
    ],
)
def test_an_output_beside_its_input(read: str, written: str) -> None:
    """Names that begin alike, and patterns that do not match."""
    check_paths(CONNECT, [read], whole_path(CONNECT, written), written)
