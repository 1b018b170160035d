"""The cache of Apache Kafka's jars: fetched once, checked, fetched again when damaged. Maven is played by a script."""

from __future__ import annotations

import json
import threading
from pathlib import Path

import pytest

from aioparallel.errors import BrokerStartError
from aioparallel.testing import jars
from aioparallel.testing.jars import cached_jars, fetch_jars, jar_directory

MAVEN = """#!/bin/sh
echo run >> "{calls}"
for argument in "$@"; do
    case "$argument" in
        -DoutputDirectory=*) output="${{argument#-DoutputDirectory=}}" ;;
    esac
done
mkdir -p "$output"
echo kafka > "$output/kafka_2.13-4.3.1.jar"
echo clients > "$output/kafka-clients-4.3.1.jar"
"""


class Machine:
    """A user's machine: a cache directory of its own, and a Maven that counts its calls."""

    def __init__(self, directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.calls = directory / "calls"
        self.program = directory / "mvn"
        self.said: list[str] = []
        monkeypatch.setenv("XDG_CACHE_HOME", str(directory / "cache"))
        monkeypatch.setattr(jars, "maven", lambda: str(self.program) if self.program.exists() else None)

    def install(self, script: str) -> None:
        self.program.write_text(script.format(calls=self.calls))
        self.program.chmod(0o755)

    def fetch(self) -> Path:
        return fetch_jars(self.said.append)

    @property
    def runs(self) -> int:
        return len(self.calls.read_text().splitlines()) if self.calls.exists() else 0


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    """A machine with Maven and an empty cache."""
    machine = Machine(tmp_path, monkeypatch)
    machine.install(MAVEN)
    return machine


def test_jars_are_fetched_once(machine: Machine) -> None:
    """The first time Maven runs and what it does is said; after that the cache serves, silently."""
    assert cached_jars() is None
    first = machine.fetch()
    assert (first / "kafka_2.13-4.3.1.jar").exists()
    said = len(machine.said)
    assert said == 2
    assert machine.fetch() == first == cached_jars() == jar_directory()
    assert machine.runs == 1
    assert len(machine.said) == said


@pytest.mark.parametrize("damage", ["changed", "missing", "no manifest", "foreign manifest"])
def test_a_damaged_cache_is_fetched_again(machine: Machine, damage: str) -> None:
    """A changed or missing jar, and a missing or unreadable manifest, make the cache be fetched again."""
    directory = machine.fetch()
    jar, manifest = directory / "kafka-clients-4.3.1.jar", directory / "manifest.json"
    match damage:
        case "changed":
            jar.write_text("clientz")
        case "missing":
            jar.unlink()
        case "no manifest":
            manifest.unlink()
        case _:
            manifest.write_text("[1, 2]")
    assert cached_jars() is None
    assert machine.fetch() == cached_jars()
    assert machine.runs == 2
    assert jar.read_text() == "clients\n"


def test_a_download_that_was_killed_leaves_nothing(machine: Machine) -> None:
    """What a killed download left beside the cache is removed by the next one."""
    leftover = jar_directory().with_name(f"{jar_directory().name}-work-killed")
    leftover.mkdir(parents=True)
    machine.fetch()
    assert sorted(path.name for path in leftover.parent.iterdir()) == ["kafka-4.3.1", "kafka-4.3.1.lock"]


def test_two_at_once_fetch_once(machine: Machine) -> None:
    """Of two that need the jars at the same time one fetches, and the other takes what it brought."""
    machine.install("#!/bin/sh\nsleep 0.3\n" + MAVEN.removeprefix("#!/bin/sh\n"))
    found: list[Path] = []
    threads = [threading.Thread(target=lambda: found.append(machine.fetch())) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert found == [jar_directory()] * 2
    assert machine.runs == 1
    assert any("waiting" in sentence for sentence in machine.said)


def test_maven_failing_is_told_with_what_it_said(machine: Machine) -> None:
    """When Maven fails, its last words are in the error, and the cache stays empty."""
    machine.install("#!/bin/sh\necho 'could not resolve'\nexit 1\n")
    with pytest.raises(BrokerStartError, match=r"(?s)exit code 1.*could not resolve"):
        machine.fetch()
    assert cached_jars() is None


def test_without_maven_it_says_what_to_install(machine: Machine) -> None:
    """Without Maven and with an empty cache the error says what to install."""
    machine.program.unlink()
    with pytest.raises(BrokerStartError, match="install Maven"):
        machine.fetch()


def test_a_cache_that_cannot_be_written_is_named(machine: Machine, tmp_path: Path) -> None:
    """A cache directory that cannot be made is an error that names it and the way round."""
    (tmp_path / "cache").write_text("a file")
    with pytest.raises(BrokerStartError, match="XDG_CACHE_HOME"):
        machine.fetch()


def test_an_empty_manifest_is_no_cache(machine: Machine) -> None:
    """A manifest that lists nothing does not make an empty directory complete."""
    machine.fetch()
    (jar_directory() / "manifest.json").write_text(json.dumps({}))
    assert cached_jars() is None
