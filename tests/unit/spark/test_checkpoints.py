"""How far a stream is, from files as Spark 4.2 writes them; tests/spark has those that it has just written."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path

import pytest

from aioparallel.records.errors import ConfigurationError
from aioparallel.spark import checkpoints
from aioparallel.spark.checkpoints import CheckpointStatus, PartitionStatus, checkpoint_status
from aioparallel.spark.logs import Log
from aioparallel.spark.status import main

SETTINGS = '{"batchWatermarkMs":0,"batchTimestampMs":1767268800500,"conf":{"spark.sql.shuffle.partitions":"200"}}'
AT = datetime(2026, 1, 1, 12, 0, 0, 500_000, UTC)


def write(directory: Path, name: str, *lines: str) -> None:
    """A file of the checkpoint, and the checksum that Hadoop puts beside it."""
    file = directory / name
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("\n".join(lines))
    file.with_name(f".{file.name}.crc").write_bytes(b"crc")


def offsets(directory: Path, batch: int, *sources: str, version: str = "v1") -> None:
    """A batch was begun."""
    write(directory, f"offsets/{batch}", version, SETTINGS, *sources)


def commit(directory: Path, batch: int) -> None:
    """A batch has ended."""
    write(directory, f"commits/{batch}", "v1", '{"nextBatchWatermarkMs":0}')


@pytest.fixture
def stream(tmp_path: Path) -> Path:
    """A stream of one topic that was started and has done nothing."""
    write(tmp_path, "metadata", '{"id":"36f403ea"}')
    write(tmp_path, "sources/0/0", '\0v1\n{"raw":{"0":5,"1":0}}')
    return tmp_path


def test_before_the_first_batch_a_stream_stands_where_it_began(stream: Path) -> None:
    """The initial offsets count as committed: what is before them is not the stream's."""
    assert checkpoint_status(stream) == CheckpointStatus(
        "36f403ea", None, None, None, (PartitionStatus("0", "raw", 0, 5, None), PartitionStatus("0", "raw", 1, 0, None))
    )


def test_batches_that_have_ended_and_one_that_is_open(stream: Path) -> None:
    """The newest by number (10 comes after 9); the open one's offsets stand beside those that are committed."""
    for batch in range(11):
        offsets(stream, batch, f'{{"raw":{{"0":{10 * batch},"1":7}}}}')
        if batch < 10:
            commit(stream, batch)
    status = checkpoint_status(stream)
    assert (status.batch, status.open_batch, status.planned_at) == (9, 10, AT)
    assert status.partitions == (PartitionStatus("0", "raw", 0, 90, 100), PartitionStatus("0", "raw", 1, 7, 7))
    commit(stream, 10)
    status = checkpoint_status(stream)
    assert (status.batch, status.open_batch) == (10, None)
    assert status.partitions[0] == PartitionStatus("0", "raw", 0, 100, None)


def test_a_first_batch_that_is_open(stream: Path) -> None:
    """Nothing has ended yet; a partition that is new has no beginning."""
    offsets(stream, 0, '{"raw":{"0":9,"1":2,"2":4}}')
    status = checkpoint_status(stream)
    assert (status.batch, status.open_batch) == (None, 0)
    assert [(one.committed, one.planned) for one in status.partitions] == [(5, 9), (0, 2), (None, 4)]


def test_several_sources(stream: Path) -> None:
    """Two of them Kafka, each by its number; one that is not, and one that has brought nothing yet."""
    offsets(stream, 0, '{"raw":{"0":9}}', '{"offset":10,"timestamp":1000}', "-", '{"raw":{"0":3}}')
    commit(stream, 0)
    status = checkpoint_status(stream)
    assert [(one.source, one.committed) for one in status.partitions] == [("0", 9), ("3", 3)]
    assert status.other_sources == 1


def test_sources_with_names(stream: Path) -> None:
    """Version 2 of the file, of queries whose sources have names."""
    offsets(stream, 0, 'flights:{"raw":{"0":9}}', version="v2")
    commit(stream, 0)
    assert checkpoint_status(stream).partitions[-1] == PartitionStatus("flights", "raw", 0, 9, None)


def test_a_version_that_is_not_known_is_refused(stream: Path) -> None:
    """Rather than read wrongly."""
    offsets(stream, 0, '{"raw":{"0":9}}', version="v3")
    with pytest.raises(ConfigurationError, match="has version 'v3' in offsets/0, and only v1 and v2 are known"):
        checkpoint_status(stream)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("offsets/0", b""),
        ("offsets/0", b"v1"),
        ("offsets/0", b'v1\n{"batch'),
        ("offsets/0", b"\xff\xfe"),
        ("metadata", b""),
        ("metadata", b"[]"),
    ],
)
def test_a_file_that_is_cut_off_is_named(
    stream: Path, name: str, content: bytes, capsys: pytest.CaptureFixture[str]
) -> None:
    """By the command in a sentence, too."""
    (stream / "offsets").mkdir()
    (stream / name).write_bytes(content)
    with pytest.raises(ConfigurationError, match=f"has a file {name} that is not as Spark writes it"):
        checkpoint_status(stream)
    with pytest.raises(SystemExit, match="1"):
        main([str(stream)])
    assert "Spark cannot go on" in capsys.readouterr().err


def test_what_is_no_checkpoint_is_refused_with_those_below(stream: Path) -> None:
    """A pipeline's storage is easily taken for one."""
    offsets(stream / "_checkpoints" / "work" / "to_work" / "0", 0, '{"raw":{"0":9}}')
    with pytest.raises(ConfigurationError, match=r"no metadata and no offsets; below it are .*work/to_work/0$"):
        checkpoint_status(stream / "_checkpoints")
    with pytest.raises(ConfigurationError, match=r"no metadata and no offsets$"):
        checkpoint_status(stream / "nowhere")
    with pytest.raises(ConfigurationError, match="must be a directory or a URI"):
        checkpoint_status("gopher://host/path")


def test_a_uri_is_read_as_the_directory_that_it_names(stream: Path) -> None:
    """With three slashes as pyarrow has them, and with one as Hadoop writes them."""
    expected = checkpoint_status(stream)
    assert checkpoint_status(f"file://{stream}") == checkpoint_status(f"file:{stream}") == expected


@pytest.mark.parametrize("name", ["two words", "two%20words", "Zürich#1"])
def test_a_uri_is_read_letter_by_letter(stream: Path, name: str) -> None:
    """As Spark does: it makes a directory ``two%20words`` of ``file:///two%20words``, and takes spaces as they are."""
    directory = stream / name
    write(directory, "metadata", '{"id":"36f403ea"}')
    for prefix in ("", "file:", "file://"):
        assert checkpoint_status(f"{prefix}{directory}").query == "36f403ea"


def test_the_command_shows_batches_offsets_and_lag(
    stream: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As a table and as JSON; a partition that is gone has no lag, and then there is no sum."""
    offsets(stream, 0, '{"raw":{"0":1000,"1":7}}')
    commit(stream, 0)
    ends = {"raw": {0: Log(0, 1500), 1: Log(0, 7)}}
    monkeypatch.setattr(checkpoints, "survey", lambda *_arguments, **_options: ends)
    main([str(stream), "--bootstrap-servers", "broker:9092"])
    shown = capsys.readouterr().out
    assert "batch 0 has ended, none is open, started 2026-01-01 12:00:00 UTC" in shown
    assert "1,500" in shown
    assert "Lag in all: 500" in shown
    del ends["raw"][1]
    main([str(stream), "--bootstrap-servers", "broker:9092", "--json"])
    found = json.loads(capsys.readouterr().out)
    assert [one["lag"] for one in found["partitions"]] == [500, None]
    with pytest.raises(SystemExit, match="1"):
        main([str(stream / "nowhere")])
    assert "is no checkpoint" in capsys.readouterr().err
