"""Finding and building the peers; Python is a small shell script that notes what it is asked for."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from benchmarks.programs import PEERS, ROOT, Contestant, PeerMissing, Workshop

# The Python of a virtual environment is the one that made it.
_PYTHON = """echo "python $1 $2 $3" >> {log}
if [ "$2" = venv ]; then mkdir -p "$3/bin"; cp "$0" "$3/bin/python"; fi
if [ "$1" = -c ]; then exit {fits}; fi
if [ "$2" = pip ]; then {pip}; fi"""


class Bench:
    """A folder for peers, and a PATH with only the programs that a test puts there."""

    def __init__(self, root: Path) -> None:
        self.folder, self.programs, self.log = root / "peers", root / "bin", root / "log"
        self.programs.mkdir()
        shutil.copytree(ROOT / "benchmarks" / "peers" / "java", self.folder / "java")
        for tool in ("sh", "mkdir", "cp"):
            found = shutil.which(tool)
            assert found is not None
            (self.programs / tool).symlink_to(found)
        self.reports: list[str] = []
        environment = {"PATH": str(self.programs), "PYENV_ROOT": str(root / "pyenv")}
        self.workshop = Workshop(self.folder, environment, str(self.python("ours")), self.reports.append)

    def python(self, name: str, *, fits: int = 0, pip: str = "exit 0") -> Path:
        program = self.programs / name
        program.write_text("#!/bin/sh\n" + _PYTHON.format(log=self.log, fits=fits, pip=pip))
        program.chmod(0o755)
        return program


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


def test_without_a_jdk_it_says_what_to_install(bench: Bench) -> None:
    """A Java compiler is looked for in JAVA_HOME and on the PATH."""
    with pytest.raises(PeerMissing, match=r"no Java compiler .* install a JDK of version 17 or newer"):
        bench.workshop.find("java")


@pytest.mark.slow
@pytest.mark.real
def test_java_is_built_once(bench: Bench) -> None:
    """For both heaps, until its sources change; what the compiler said of wrong ones is handed on."""
    compiler = shutil.which("javac")
    assert compiler is not None, "the tests of Apache Kafka need a JDK"
    (bench.programs / "javac").symlink_to(compiler)
    small, own = bench.workshop.find("java-256m"), bench.workshop.find("java")
    assert "-Xmx256m" in small.command
    assert not any(part.startswith("-Xmx") for part in own.command)
    built = bench.folder / ".java" / "Peer.class"
    before = built.stat().st_mtime_ns
    bench.workshop.find("java")
    assert built.stat().st_mtime_ns == before
    with (bench.folder / "java" / "Work.java").open("a") as source:
        source.write("nonsense")
    with pytest.raises(PeerMissing, match=r"javac failed \(exit code 1\)(?s:.*)nonsense"):
        bench.workshop.find("java")


def test_without_a_python_that_fits_it_says_which(bench: Bench) -> None:
    """Ours is too old, and there is no other."""
    bench.python("ours", fits=1)
    with pytest.raises(PeerMissing, match=r"needs Python 3\.12 or newer .* `pyenv install 3\.12`"):
        bench.workshop.find("pyrallel")


def test_another_python_is_found_among_those_of_pyenv(bench: Bench, tmp_path: Path) -> None:
    """Commands on the PATH that do not work, as pyenv's do, are passed over."""
    bench.python("ours", fits=1)
    bench.python("python3.12", fits=127)
    version = tmp_path / "pyenv" / "versions" / "3.13.0" / "bin"
    version.mkdir(parents=True)
    (version / "python").symlink_to(bench.python("fitting"))
    found = bench.workshop.find("pyrallel")
    assert found.command[0] == str(bench.folder / ".venvs" / "pyrallel" / "bin" / "python")
    assert str(version / "python") in bench.reports[0]


def test_a_virtual_environment_is_made_once(bench: Bench) -> None:
    """One that failed is made again, and what pip said is handed on."""
    bench.python("ours", pip="echo no route; exit 1")
    with pytest.raises(PeerMissing, match=r"pip for faststream failed .*\n.*no route"):
        bench.workshop.find("faststream")
    bench.python("ours")
    for _ in range(2):
        found = bench.workshop.find("faststream")
        assert found == Contestant("faststream", "FastStream 0.7.8", found.command, keeps_key_order=False)
    assert len(bench.reports) == 2
    assert [line.split()[2] for line in bench.log.read_text().splitlines() if "-m" in line] == ["venv", "pip"] * 2


def test_every_peer_has_its_program() -> None:
    """A module of its own, or the one in Java."""
    for name in PEERS:
        source = "java/Peer.java" if name.startswith("java") else f"{name}.py"
        assert (ROOT / "benchmarks" / "peers" / source).is_file()
