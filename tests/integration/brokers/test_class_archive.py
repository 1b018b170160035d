"""The archive of Kafka's classes: made once, used by brokers, found by nobody whom it does not fit."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import psutil
import pytest

from aioparallel.jvm.java_runtime import JavaRuntime, find_java
from aioparallel.jvm.sets import KAFKA
from aioparallel.testing import LocalKafka
from aioparallel.testing.brokers import class_archive
from aioparallel.testing.brokers.class_archive import find_archive, prepare

pytestmark = pytest.mark.real


@pytest.fixture
def jars(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Kafka's, in a cache of their own."""
    found = KAFKA.fetch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return Path(shutil.copytree(found, KAFKA.directory))


def test_the_broker_of_tests_uses_what_there_is(local_kafka: LocalKafka) -> None:
    """``make test`` has prepared it."""
    archive = find_archive(find_java(), KAFKA.fetch())
    if archive is None:
        pytest.skip("nobody has prepared an archive")
    assert uses(local_kafka, archive)


def uses(kafka: LocalKafka, archive: Path) -> bool:
    """Whether its Java was told of the archive, and has it mapped."""
    process = psutil.Process(kafka.pid)
    is_told = f"-XX:SharedArchiveFile={archive}" in process.cmdline()
    return is_told and (not psutil.LINUX or str(archive) in [mapped.path for mapped in process.memory_maps()])


@pytest.mark.slow
def test_brokers_use_what_was_prepared(jars: Path) -> None:
    """Java has it mapped. It is made once, and nothing else is left of the making; not after jars were fetched anew."""
    java = find_java()
    assert find_archive(java, jars) is None
    told: list[str] = []
    assert prepare(told.append) == jars
    archive = find_archive(java, jars)
    assert archive is not None
    assert not told
    made = archive.stat().st_ino
    prepare(told.append)
    assert archive.stat().st_ino == made
    assert sorted(jars.parent.iterdir()) == sorted([jars, archive])
    with LocalKafka(compile_once=True) as kafka:
        assert uses(kafka, archive)
    newer = archive.stat().st_mtime + 1
    os.utime(next(jars.glob("*.jar")), (newer, newer))
    assert find_archive(java, jars) is None


def test_brokers_start_beside_one_that_does_not_fit(jars: Path) -> None:
    """What is no archive is passed over, without a word in the broker's log."""
    class_archive._place(find_java(), jars).write_bytes(b"no archive")
    with LocalKafka(compile_once=True) as kafka:
        assert "archive" not in kafka.log_tail(200)


def test_another_java_has_another(jars: Path, tmp_path: Path) -> None:
    """By its place, and by the time of its file: a newer one may come there."""
    java = JavaRuntime(tmp_path / "java", 17, "here")
    java.executable.write_bytes(b"")
    class_archive._place(java, jars).write_bytes(b"")
    assert find_archive(java, jars) is not None
    os.utime(java.executable, (1, 1))
    assert find_archive(java, jars) is None


def test_a_java_that_writes_none(jars: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is told, and the jars are there all the same."""
    monkeypatch.setattr(class_archive, "_write", lambda *_: False)
    told: list[str] = []
    assert prepare(told.append) == jars
    assert "brokers start without" in " ".join(told)
