"""The cache of a set of jars: fetched once, checked, fetched again when damaged. Maven is played by a script."""

from __future__ import annotations

import json
import threading
from pathlib import Path

import pytest

from aioparallel.jvm import maven
from aioparallel.jvm.__main__ import main
from aioparallel.jvm.sets import JAR_SETS, KAFKA, SPARK_KAFKA
from aioparallel.records.errors import JarsMissing

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
echo slf4j > "$output/slf4j-simple-1.7.36.jar"
"""


class Machine:
    """A user's machine: a cache directory of its own, and a Maven that counts its calls."""

    def __init__(self, directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.calls = directory / "calls"
        self.program = directory / "mvn"
        self.said: list[str] = []
        monkeypatch.setenv("XDG_CACHE_HOME", str(directory / "cache"))
        monkeypatch.setattr(maven, "maven", lambda: str(self.program) if self.program.exists() else None)

    def install(self, script: str) -> None:
        self.program.write_text(script.format(calls=self.calls))
        self.program.chmod(0o755)

    def fetch(self) -> Path:
        return KAFKA.fetch(self.said.append)

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
    assert KAFKA.cached() is None
    first = machine.fetch()
    assert (first / "kafka_2.13-4.3.1.jar").exists()
    said = len(machine.said)
    assert said == 2
    assert machine.fetch() == first == KAFKA.cached() == KAFKA.directory
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
    assert KAFKA.cached() is None
    assert machine.fetch() == KAFKA.cached()
    assert machine.runs == 2
    assert jar.read_text() == "clients\n"


def test_a_download_that_was_killed_leaves_nothing(machine: Machine) -> None:
    """What a killed download left beside the cache is removed by the next one."""
    leftover = KAFKA.directory.with_name(f"{KAFKA.directory.name}-work-killed")
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
    assert found == [KAFKA.directory] * 2
    assert machine.runs == 1
    assert any("waiting" in sentence for sentence in machine.said)


def test_maven_failing_is_told_with_what_it_said(machine: Machine) -> None:
    """When Maven fails, its last words are in the error, and the cache stays empty."""
    machine.install("#!/bin/sh\necho 'could not resolve'\nexit 1\n")
    with pytest.raises(JarsMissing, match=r"(?s)exit code 1.*could not resolve"):
        machine.fetch()
    assert KAFKA.cached() is None


def test_without_maven_it_says_what_to_install(machine: Machine) -> None:
    """Without Maven and with an empty cache the error says what to install."""
    machine.program.unlink()
    with pytest.raises(JarsMissing, match="install Maven"):
        machine.fetch()


def test_a_cache_that_cannot_be_written_is_named(machine: Machine, tmp_path: Path) -> None:
    """A cache directory that cannot be made is an error that names it and the way round."""
    (tmp_path / "cache").write_text("a file")
    with pytest.raises(JarsMissing, match="XDG_CACHE_HOME"):
        machine.fetch()


def test_an_empty_manifest_is_no_cache(machine: Machine) -> None:
    """A manifest that lists nothing does not make an empty directory complete."""
    machine.fetch()
    (KAFKA.directory / "manifest.json").write_text(json.dumps({}))
    assert KAFKA.cached() is None


def test_a_jar_that_maven_did_not_bring_is_named(machine: Machine) -> None:
    """Maven may succeed and bring less than was asked for: the jar that is not there is named, nothing is kept."""
    with pytest.raises(JarsMissing, match=r"without spark-sql-kafka-0-10_2\.13-4\.2\.0\.jar, .*commons-pool2"):
        SPARK_KAFKA.fetch(machine.said.append)
    assert SPARK_KAFKA.cached() is None


def test_jars_asked_for_alone_come_without_what_they_depend_on() -> None:
    """The project handed to Maven excludes everything else for each of Spark's four jars, and nothing for Kafka's."""
    assert maven.pom(SPARK_KAFKA.artifacts).count("<artifactId>*</artifactId>") == 4
    assert "exclusion" not in maven.pom(KAFKA.artifacts)


def test_sets_have_directories_of_their_own() -> None:
    """Two sets, or two versions of one, never share a directory."""
    assert len({one.directory for one in JAR_SETS.values()}) == len(JAR_SETS)
    assert all(one.directory.name.endswith(one.version) for one in JAR_SETS.values())


def test_the_command_prints_what_fits_into_another_command(
    machine: Machine, capsys: pytest.CaptureFixture[str]
) -> None:
    """Standard output has the jars with commas between, or the directory, and nothing else."""
    main(["kafka"])
    told = capsys.readouterr()
    assert [Path(jar).name for jar in told.out.strip().split(",")] == [
        "kafka-clients-4.3.1.jar",
        "kafka_2.13-4.3.1.jar",
        "slf4j-simple-1.7.36.jar",
    ]
    assert "Fetching" in told.err
    main(["kafka", "--directory"])
    assert capsys.readouterr().out == f"{KAFKA.directory}\n"
    machine.program.unlink()
    with pytest.raises(SystemExit, match="1"):
        main(["spark"])
    assert "install Maven" in capsys.readouterr().err
