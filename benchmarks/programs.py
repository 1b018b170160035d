"""The contestants' programs: those of this checkout, and the peers outside it, which are found and built.

What is built is found again for as long as what it was built from stays the same. The jars of the Java peer come by
Maven into the cache that those of Apache Kafka are in; its sources are compiled with ``javac``. Each peer in Python
gets a virtual environment, with what this checkout depends on beside it: it speaks the protocol through
``contestant.py``.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from aioparallel.errors import AioparallelError
from aioparallel.jvm.jars import JarSet
from aioparallel.jvm.maven import Artifact
from aioparallel.jvm.programs import run_program

__all__ = ["CONTESTANTS", "PEERS", "ROOT", "Contestant", "PeerMissing", "Workshop", "find_peers"]

ROOT: Final = Path(__file__).resolve().parents[1]
"""Of the checkout."""


@dataclass(frozen=True, slots=True)
class Contestant:
    """A way to do the work: a program that speaks the protocol of ``contestant.py``.

    ``command``: the program; the path of ``work.json`` is put behind it. ``keeps_key_order``: what it promises, and so
    what is checked of it where keys are the order. ``reads``: whether it reads the topic at all. ``environment``:
    variables of its process.
    """

    name: str
    title: str
    command: tuple[str, ...]
    keeps_key_order: bool = True
    reads: bool = True
    environment: Mapping[str, str] = field(default_factory=lambda: {"PYTHONPATH": str(ROOT)})


def _here(name: str, title: str, *, keeps_key_order: bool = True, reads: bool = True) -> Contestant:
    module = f"benchmarks.contestants.{name.replace('-', '_')}"
    # -P: the folder where somebody calls it is not searched, which may hold another aioparallel.
    return Contestant(name, title, (sys.executable, "-P", "-m", module), keeps_key_order, reads)


_HERE: Final = (
    _here("ours", "aioparallel"),
    _here("getmany", "aiokafka getmany(500), one at a time"),
    _here("async-for", "aiokafka async for, one at a time"),
    _here("task-per-record", "aiokafka, a task per record", keeps_key_order=False),
    _here("by-hand", "aiokafka, a task per record, contiguous commits", keeps_key_order=False),
    _here("least", "aiokafka and as many tasks as handlers run at once", keeps_key_order=False),
    _here("producer", "AIOKafkaProducer alone", reads=False),
    _here("ceiling", "the event loop alone, only sleeping", keeps_key_order=False, reads=False),
)
CONTESTANTS: Final = {one.name: one for one in _HERE}
"""Those of this checkout, by name."""

JAVA_HEAPS: Final = {"java": (), "java-256m": ("-Xmx256m",)}
"""Options of the JVM by contestant: the heap it chooses itself, up to a quarter of the memory; and a small one."""
TIMEOUT: Final = 900.0
"""Seconds for one program that builds something: the first time, it downloads."""
JARS: Final = JarSet(
    name="parallel-consumer",
    version="0.5.3.3",
    title="Java Parallel Consumer",
    artifacts=(
        # With the kafka-clients that it asks for.
        Artifact("io.confluent.parallelconsumer", "parallel-consumer-core", "0.5.3.3"),
        Artifact("com.google.code.gson", "gson", "2.13.2"),
        # It logs nothing: what a log costs is not measured.
        Artifact("org.slf4j", "slf4j-nop", "2.0.13"),
    ),
    size="about 20 jars",
)


@dataclass(frozen=True, slots=True)
class PythonPeer:
    """A peer in Python. ``requirement``: what pip installs. ``oldest``: the first version of Python that it runs on."""

    title: str
    requirement: str
    oldest: tuple[int, int]
    keeps_key_order: bool


PYTHON_PEERS: Final = {
    "faststream": PythonPeer("FastStream 0.7.8", "faststream[kafka]==0.7.8", (3, 11), keeps_key_order=False),
    "pyrallel": PythonPeer("Pyrallel Consumer 1.0.0", "pyrallel-consumer==1.0.0", (3, 12), keeps_key_order=True),
}


PEERS: Final = (*JAVA_HEAPS, *PYTHON_PEERS)
"""Those outside this checkout, by name."""


class PeerMissing(AioparallelError):
    """A peer cannot be had; the message says why and what to install."""


def find_peers(names: Sequence[str], report: Callable[[str], None]) -> dict[str, Contestant | str]:
    """Each of these peers, or a text that says why it is missing and what to install.

    ``report`` is told in sentences what takes long: a minute in all the first time, nothing later. Blocks meanwhile.
    """
    workshop = Workshop(ROOT / "benchmarks" / "peers", os.environ, sys.executable, report)
    found: dict[str, Contestant | str] = {}
    for name in names:
        try:
            found[name] = workshop.find(name)
        except (AioparallelError, OSError) as error:
            found[name] = str(error)
    return found


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
        """The peer, built if need be. Raises PeerMissing, or JarsMissing."""
        return self._java(name) if name in JAVA_HEAPS else self._python(name, PYTHON_PEERS[name])

    def _java(self, name: str) -> Contestant:
        compiler = self._program("javac")
        if compiler is None:
            raise PeerMissing(
                "no Java compiler (javac) in JAVA_HOME or on the PATH: install a JDK of version 17 or newer"
            )
        jars = JARS.fetch(self.report)
        classes, sources = self.folder / ".java", sorted(self.folder.glob("java/*.java"))
        digest = digest_of(str(jars), *(path.read_text() for path in sources))
        if not is_built(classes, digest):
            shutil.rmtree(classes, ignore_errors=True)
            options = ("--release", "17", "-cp", f"{jars}/*", "-d", str(classes))
            self._run("javac", (str(compiler), *options, *map(str, sources)))
            (classes / "stamp").write_text(digest)
        # Without a file of performance data in the temporary directory, which a killed JVM would leave there.
        started_with = ("-XX:-UsePerfData", *JAVA_HEAPS[name], "-cp", f"{classes}{os.pathsep}{jars}/*")
        title = " ".join([str(JARS), *JAVA_HEAPS[name]])
        # The link that a PATH often has would hide which JDK it is.
        return Contestant(name, title, (str(compiler.resolve().with_name("java")), *started_with, "Peer"))

    def _python(self, name: str, peer: PythonPeer) -> Contestant:
        venv = self.folder / ".venvs" / name
        ours = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
        digest = digest_of(peer.requirement, *ours)
        if not is_built(venv, digest):
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
            self._run(f"pip for {name}", (*pip, peer.requirement, *ours))
            (venv / "stamp").write_text(digest)
        command = (str(venv / "bin" / "python"), "-m", f"benchmarks.peers.{name}")
        return Contestant(name, peer.title, command, peer.keeps_key_order)

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
            return run_program((python, "-c", question), self.environment, 30.0)[0] == 0
        except (OSError, subprocess.TimeoutExpired):
            return False

    def _program(self, name: str) -> Path | None:
        """In JAVA_HOME first, as Maven does it (it holds no other programs that are looked for), then on the PATH."""
        home = self.environment.get("JAVA_HOME")
        places = [f"{home}/bin"] if home else []
        found = shutil.which(name, path=os.pathsep.join([*places, self.environment.get("PATH", "")]))
        return Path(found) if found else None

    def _run(self, what: str, command: Sequence[str]) -> None:
        """Raises PeerMissing with the last lines of what the program said when it fails."""
        try:
            code, said = run_program(command, self.environment, TIMEOUT)
        except subprocess.TimeoutExpired as error:
            raise PeerMissing(f"{what} did not end within {TIMEOUT:g} s; check the network") from error
        if code != 0:
            raise PeerMissing(f"{what} failed (exit code {code}); check the network. It said:\n{said}")


def is_built(place: Path, digest: str) -> bool:
    """Whether it was built completely, and from this."""
    stamp = place / "stamp"
    return stamp.is_file() and stamp.read_text() == digest


def digest_of(*parts: str) -> str:
    """A text that is another one when any part is."""
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()
