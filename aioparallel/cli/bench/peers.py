"""The contestants outside this package: found in ``benchmarks/peers``, built when they are asked for the first time.

Java is built with Maven, the peers in Python get a virtual environment each, with this checkout beside them (they speak
the protocol through ``wire.py``). What is built is found again for as long as what it was built from stays the same.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from aioparallel.cli.bench.model import Contestant
from aioparallel.jvm.programs import run_program

__all__ = ["PeerMissing", "Workshop", "find_peers"]

JAVA_HEAPS: Final = {"java": (), "java-256m": ("-Xmx256m",)}
"""Options of the JVM by contestant: the heap it chooses itself, up to a quarter of the memory; and a small one."""
TIMEOUT: Final = 900.0
"""Seconds for one program that builds something: the first time, it downloads."""
OUR_OLDEST_PYTHON: Final = (3, 11)


@dataclass(frozen=True, slots=True)
class PythonPeer:
    """A peer in Python. ``oldest``: the first version of Python that it runs on."""

    title: str
    package: str
    oldest: tuple[int, int]
    keeps_key_order: bool


PYTHON_PEERS: Final = {
    "faststream": PythonPeer("FastStream", "faststream[kafka]", OUR_OLDEST_PYTHON, keeps_key_order=False),
    "pyrallel": PythonPeer("Pyrallel Consumer", "pyrallel-consumer", (3, 12), keeps_key_order=True),
}


class PeerMissing(Exception):
    """A peer cannot be had; the message says why and what to install."""


def find_peers(names: Sequence[str], report: Callable[[str], None]) -> dict[str, Contestant | str]:
    """Each of these peers, or a text that says why it is missing and what to install.

    ``report`` is told in sentences what takes long: a minute in all the first time, nothing later. Blocks meanwhile.
    """
    folder = peers_folder()
    if folder is None:
        return dict.fromkeys(
            names, "its sources (benchmarks/peers) were not found: run the benchmark in a checkout of aioparallel"
        )
    workshop = Workshop(folder, os.environ, sys.executable, report)
    found: dict[str, Contestant | str] = {}
    for name in names:
        try:
            found[name] = workshop.find(name)
        except (PeerMissing, OSError) as error:
            found[name] = str(error)
    return found


def peers_folder() -> Path | None:
    """In the checkout that this package is installed from, or else below the working directory."""
    roots = (Path(__file__).resolve().parents[3], Path.cwd())
    return next((folder for root in roots if (folder := root / "benchmarks" / "peers").is_dir()), None)


@dataclass(frozen=True, slots=True)
class Workshop:
    """Where peers are built, and with what.

    ``folder``: ``benchmarks/peers`` of a checkout. ``environment``: PATH, JAVA_HOME and PYENV_ROOT are looked into.
    ``python``: taken for peers in Python that it is new enough for, so that they run on what we run on.
    """

    folder: Path
    environment: Mapping[str, str]
    python: str
    report: Callable[[str], None]

    def find(self, name: str) -> Contestant:
        """The peer, built if need be. Raises PeerMissing."""
        if name in JAVA_HEAPS:
            return self._java(name)
        if name in PYTHON_PEERS:
            return self._python(name, PYTHON_PEERS[name])
        raise PeerMissing(f"there is no peer of this name; there are {', '.join([*JAVA_HEAPS, *PYTHON_PEERS])}")

    def _java(self, name: str) -> Contestant:
        project = self.folder / "java"
        compiler = self._program("javac")
        if compiler is None:
            raise PeerMissing(
                "no Java compiler (javac) in JAVA_HOME or on the PATH: install a JDK of version 17 or newer"
            )
        target = project / "target"
        target.mkdir(exist_ok=True)
        sources = [project / "pom.xml", *sorted(project.glob("src/**/*.java"))]
        with locked(target / "lock"):
            if not is_built(target, digest := digest_of(path.read_bytes() for path in sources)):
                self._build_java(project, compiler)
                (target / "stamp").write_text(digest)
        heap = JAVA_HEAPS[name]
        version = re.search(r"parallel-consumer-core</artifactId>\s*<version>(.+?)<", sources[0].read_text())
        title = " ".join(["Java Parallel Consumer", *(version.groups() if version else ()), *heap])
        # Without a file of performance data in the temporary directory, which a killed JVM would leave there.
        options = ("-XX:-UsePerfData", *heap, "-cp", os.pathsep.join([f"{target}/classes", f"{target}/jars/*"]))
        command = (str(compiler.with_name("java")), *options, "aioparallel.bench.Peer")
        return Contestant(name, title, command, keeps_key_order=True)

    def _build_java(self, project: Path, compiler: Path) -> None:
        maven = self._program("mvn")
        if maven is None:
            raise PeerMissing("Maven (mvn), which builds the peer in Java, is not on the PATH: install it")
        target = project / "target"
        clear(target, "classes", "jars")
        self.report("Building the peer in Java with Maven (the first time it fetches about 20 jars)")
        goals = ("compile", "dependency:copy-dependencies", "-DincludeScope=runtime")
        command = (str(maven), "-B", "-q", "-f", str(project / "pom.xml"), *goals, f"-DoutputDirectory={target}/jars")
        self._run("Maven", command, JAVA_HOME=str(compiler.parent.parent))

    def _python(self, name: str, peer: PythonPeer) -> Contestant:
        script = self.folder / "python" / f"{name}_peer.py"
        requirements = script.with_name(f"{name}-requirements.txt")
        venvs = self.folder / ".venvs"
        venv = venvs / name
        venvs.mkdir(exist_ok=True)
        with locked(venvs / f"{name}.lock"):
            if not is_built(venv, digest := digest_of([requirements.read_bytes(), self._own_requirements()])):
                self._build_venv(name, venv, requirements, peer)
                (venv / "stamp").write_text(digest)
        version = re.search(re.escape(peer.package) + r"==(\S+)", requirements.read_text())
        title = f"{peer.title} {version[1]}" if version else peer.title
        return Contestant(name, title, (str(venv / "bin" / "python"), str(script)), peer.keeps_key_order)

    @property
    def _checkout(self) -> Path:
        return self.folder.parents[1]

    def _own_requirements(self) -> bytes:
        """What the checkout depends on: it is installed beside the peer, and its sources are used as they are."""
        project = tomllib.loads((self._checkout / "pyproject.toml").read_text())["project"]
        return "\n".join([str(self._checkout), *project["dependencies"]]).encode()

    def _build_venv(self, name: str, venv: Path, requirements: Path, peer: PythonPeer) -> None:
        python = next((python for python in self._pythons() if self._fits(python, peer.oldest)), None)
        if python is None:
            oldest = ".".join(map(str, peer.oldest))
            raise PeerMissing(
                f"{peer.title} needs Python {oldest} or newer with venv and pip, and none was found on the PATH or "
                f"among pyenv's: install one (with pyenv: `pyenv install {oldest}`)"
            )
        self.report(f"Making a virtual environment for {peer.title}, with {python}")
        shutil.rmtree(venv, ignore_errors=True)
        self._run(f"venv for {name}", (python, "-m", "venv", str(venv)))
        pip = (str(venv / "bin" / "python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check")
        self._run(f"pip for {name}", (*pip, "-r", str(requirements), "--editable", str(self._checkout)))

    def _pythons(self) -> Iterator[str]:
        """Commands of Pythons that may be there: ours first, then from the oldest version that is of use."""
        yield self.python
        root = Path(self.environment.get("PYENV_ROOT") or Path.home() / ".pyenv")
        for minor in range(12, 20):
            if found := self._program(f"python3.{minor}"):
                yield str(found)
            yield from map(str, sorted(root.glob(f"versions/3.{minor}.*/bin/python")))

    def _fits(self, python: str, oldest: tuple[int, int]) -> bool:
        """Asked of itself: pyenv has commands for versions that cannot be run, and Debian has Pythons without pip."""
        question = f"import ensurepip, sys, venv; sys.exit(sys.version_info < {oldest})"
        try:
            answer = subprocess.run(
                [python, "-c", question], env=self.environment, capture_output=True, timeout=30.0, check=False
            )
        except (OSError, subprocess.TimeoutExpired):
            return False
        return answer.returncode == 0

    def _program(self, name: str) -> Path | None:
        """In JAVA_HOME first, as Maven does it (it holds no other programs that are looked for), then on the PATH."""
        home = self.environment.get("JAVA_HOME")
        places = [f"{home}/bin"] if home else []
        found = shutil.which(name, path=os.pathsep.join([*places, self.environment.get("PATH", "")]))
        # The link that a PATH often has would hide which JDK it is; that of a Python's would hide its environment.
        return (Path(found).resolve() if name == "javac" else Path(found)) if found else None

    def _run(self, what: str, command: Sequence[str], **environment: str) -> None:
        """Raises PeerMissing with the last lines of what the program said when it fails."""
        try:
            code, said = run_program(command, {**self.environment, **environment}, TIMEOUT)
        except subprocess.TimeoutExpired as error:
            raise PeerMissing(f"{what} did not end within {TIMEOUT:g} s; check the network") from error
        if code != 0:
            raise PeerMissing(f"{what} failed (exit code {code}); check the network. It said:\n{said}")


def is_built(place: Path, digest: str) -> bool:
    """Whether it was built completely, and from this."""
    stamp = place / "stamp"
    return stamp.is_file() and stamp.read_text() == digest


def digest_of(parts: Iterator[bytes] | Sequence[bytes]) -> str:
    """A text that is another one when any part is."""
    return hashlib.sha256(b"\0".join(hashlib.sha256(part).digest() for part in parts)).hexdigest()


def clear(target: Path, *folders: str) -> None:
    """Remove the stamp first: half of something must not look like all of it."""
    (target / "stamp").unlink(missing_ok=True)
    for folder in folders:
        shutil.rmtree(target / folder, ignore_errors=True)


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Two benchmarks in one checkout build once."""
    import fcntl  # noqa: PLC0415 - not on Windows, where there is no benchmark either

    with path.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
