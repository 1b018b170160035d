"""Finding and building the peers of the benchmark, with small shell scripts in place of Java, Maven and Python."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from aioparallel.cli.bench.model import Contestant
from aioparallel.cli.bench.peers import PeerMissing, Workshop, find_peers, peers_folder

# They say when they are used. The Python of a virtual environment is the one that made it.
_MAVEN = 'echo "mvn $JAVA_HOME" >> {log}; mkdir -p {target}/classes {target}/jars'
_PYTHON = """echo "python $1 $2 $3" >> {log}
if [ "$2" = venv ]; then mkdir -p "$3/bin"; cp "$0" "$3/bin/python"; fi
if [ "$1" = -c ]; then exit {fits}; fi"""


class Bench:
    """A checkout with peers' sources, and a PATH with only the programs that a test puts there."""

    def __init__(self, root: Path) -> None:
        self.checkout, self.programs, self.log = root / "checkout", root / "jdk" / "bin", root / "log"
        self.programs.mkdir(parents=True)
        sources = peers_folder()
        assert sources is not None
        shutil.copytree(sources, self.folder, ignore=shutil.ignore_patterns("target", ".venvs", "__pycache__"))
        (self.checkout / "pyproject.toml").write_text('[project]\ndependencies = ["aiokafka"]\n')
        self.reports: list[str] = []
        python = self.put("python-of-ours", _PYTHON, fits=0)
        self.workshop = Workshop(
            self.folder, {"PATH": f"{self.programs}:/usr/bin:/bin"}, str(python), self.reports.append
        )

    @property
    def folder(self) -> Path:
        return self.checkout / "benchmarks" / "peers"

    def put(self, name: str, script: str = "true", **parts: object) -> Path:
        program = self.programs / name
        text = script.format(log=self.log, target=self.folder / "java" / "target", **parts) if parts else script
        program.write_text(f"#!/bin/sh\n{text}\n")
        program.chmod(0o755)
        return program

    def without(self, *names: str) -> Workshop:
        """With nothing of the system's on the PATH but what a script needs, so that these are not found there."""
        tools = self.programs.parent / "tools"
        tools.mkdir()
        for tool in {"sh", "mkdir", "cp"} - set(names):
            found = shutil.which(tool)
            assert found is not None
            (tools / tool).symlink_to(found)
        environment = {"PATH": f"{self.programs}:{tools}", "PYENV_ROOT": str(tools)}
        return Workshop(self.folder, environment, self.workshop.python, self.reports.append)

    def log_lines(self) -> list[str]:
        return self.log.read_text().splitlines()


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


def test_without_a_jdk_it_says_what_to_install(bench: Bench) -> None:
    """A Java compiler is looked for in JAVA_HOME and on the PATH."""
    with pytest.raises(PeerMissing, match=r"no Java compiler .* install a JDK of version 17 or newer"):
        bench.without("javac").find("java")


def test_without_maven_it_says_what_to_install(bench: Bench) -> None:
    """There is a JDK, but nothing to build with."""
    bench.put("javac")
    with pytest.raises(PeerMissing, match=r"Maven \(mvn\).* is not on the PATH: install it"):
        bench.without("mvn").find("java")


def test_what_maven_said_is_handed_on(bench: Bench) -> None:
    """And nothing counts as built."""
    bench.put("javac")
    bench.put("mvn", "echo it is raining; exit 3")
    for _ in range(2):
        with pytest.raises(PeerMissing, match=r"Maven failed \(exit code 3\).*\n.*it is raining"):
            bench.workshop.find("java")


def test_java_is_built_once(bench: Bench) -> None:
    """For both heaps, until its sources change; Maven is told which JDK is meant."""
    bench.put("javac")
    bench.put("mvn", _MAVEN, fits=0)
    small, own = bench.workshop.find("java-256m"), bench.workshop.find("java")
    assert bench.log_lines() == [f"mvn {bench.programs.parent}"]
    assert len(bench.reports) == 1
    assert "-Xmx256m" in small.command
    assert not any(part.startswith("-Xmx") for part in own.command)
    assert own.command[0] == str(bench.programs / "java")
    assert own.title.startswith("Java Parallel Consumer 0.")

    source = next(bench.folder.glob("java/src/**/*.java"))
    source.write_text(source.read_text() + "\n")
    bench.workshop.find("java")
    assert len(bench.log_lines()) == 2


def test_java_home_goes_before_the_path(bench: Bench, tmp_path: Path) -> None:
    """As Maven does it."""
    bench.put("mvn", _MAVEN, fits=0)
    bench.put("javac")
    home = tmp_path / "home"
    (home / "bin").mkdir(parents=True)
    shutil.copy(bench.programs / "javac", home / "bin")
    environment = {**bench.workshop.environment, "JAVA_HOME": str(home)}
    found = Workshop(bench.folder, environment, bench.workshop.python, bench.reports.append).find("java")
    assert found.command[0] == str(home / "bin" / "java")


def test_without_a_python_that_fits_it_says_which(bench: Bench) -> None:
    """Ours is too old, and there is no other."""
    bench.put("python-of-ours", _PYTHON, fits=1)
    with pytest.raises(PeerMissing, match=r"needs Python 3\.12 or newer .* `pyenv install 3\.12`"):
        bench.without("python3.12").find("pyrallel")


def test_another_python_is_found_among_those_of_pyenv(bench: Bench, tmp_path: Path) -> None:
    """Commands on the PATH that do not work, as pyenv's do, are passed over."""
    bench.put("python-of-ours", _PYTHON, fits=1)
    bench.put("python3.12", "exit 127")
    workshop = bench.without("python3.12")
    fitting = bench.put("fitting", _PYTHON, fits=0)
    version = Path(workshop.environment["PYENV_ROOT"]) / "versions" / "3.13.0" / "bin"
    version.mkdir(parents=True)
    (version / "python").symlink_to(fitting)
    found = workshop.find("pyrallel")
    assert found.command[0] == str(bench.folder / ".venvs" / "pyrallel" / "bin" / "python")
    assert str(version / "python") in bench.reports[0]


def test_a_virtual_environment_is_made_once(bench: Bench) -> None:
    """Until the peer's requirements change, or ours."""
    script = str(bench.folder / "python" / "faststream_peer.py")
    for _ in range(2):
        found = bench.workshop.find("faststream")
        assert found.command[1] == script
        assert not found.keeps_key_order
        assert found.title.startswith("FastStream 0.")
    assert len(bench.reports) == 1
    assert [line.split()[2] for line in bench.log_lines() if "-m" in line] == ["venv", "pip"]

    (bench.checkout / "pyproject.toml").write_text('[project]\ndependencies = ["aiokafka", "another"]\n')
    bench.workshop.find("faststream")
    assert len(bench.reports) == 2


def test_a_failed_installation_is_tried_again(bench: Bench) -> None:
    """What pip said is handed on."""
    bench.put("python-of-ours", _PYTHON + '\nif [ "$2" = pip ]; then echo no route; exit 1; fi', fits=0)
    for tries in (1, 2):
        with pytest.raises(PeerMissing, match=r"pip for faststream failed .*\n.*no route"):
            bench.workshop.find("faststream")
        assert len(bench.reports) == tries


def test_those_that_are_missing_are_named_beside_those_that_are_there(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One peer that cannot be had keeps nobody from running."""
    monkeypatch.setattr("aioparallel.cli.bench.peers.peers_folder", lambda: bench.folder)
    monkeypatch.setattr("sys.executable", bench.workshop.python)
    monkeypatch.setenv("PATH", bench.without("javac").environment["PATH"])
    monkeypatch.delenv("JAVA_HOME", raising=False)
    found = find_peers(["java", "faststream", "nobody"], bench.reports.append)
    assert list(found) == ["java", "faststream", "nobody"]
    assert "install a JDK" in str(found["java"])
    assert isinstance(found["faststream"], Contestant)
    assert "there is no peer of this name" in str(found["nobody"])


def test_without_their_sources_all_are_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As when the package was installed alone, and is used far from a checkout."""
    monkeypatch.setattr("aioparallel.cli.bench.peers.__file__", str(tmp_path / "a" / "b" / "c" / "peers.py"))
    monkeypatch.chdir(tmp_path)
    assert "run the benchmark in a checkout" in str(find_peers(["java"], print)["java"])
    (tmp_path / "benchmarks" / "peers").mkdir(parents=True)
    assert peers_folder() == Path(os.path.realpath(tmp_path)) / "benchmarks" / "peers"
