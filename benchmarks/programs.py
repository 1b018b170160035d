"""The contestants' programs: those of this checkout, and external peers, which are built.

A build is reused as long as its sources are the same. Maven downloads the jars of the Java peer into the cache of
Apache Kafka's jars; ``javac`` compiles its sources. Each Python peer has a virtual environment with this checkout's
dependencies, as it speaks the protocol through ``contestant.py``.
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

from aioparallel.jvm.jars import JarSet
from aioparallel.jvm.maven import Artifact, run_program
from aioparallel.jvm.sets import KAFKA_VERSION
from aioparallel.records.errors import AioparallelError

__all__ = ["CONTESTANTS", "PEERS", "ROOT", "Contestant", "PeerMissing", "Workshop", "find_peers"]

ROOT: Final = Path(__file__).resolve().parents[1]
"""The folder of the checkout."""


@dataclass(frozen=True, slots=True)
class Contestant:
    """A program that does the work and speaks the protocol of ``contestant.py``.

    ``command``: the program; the path of ``work.json`` is appended. ``keeps_key_order``: whether it promises and is
    checked for the order of keys. ``reads``: whether it reads the topic at all. ``environment``: variables of its
    process.
    """

    name: str
    title: str
    command: tuple[str, ...]
    keeps_key_order: bool = True
    reads: bool = True
    environment: Mapping[str, str] = field(default_factory=lambda: {"PYTHONPATH": str(ROOT)})


def _here(name: str, title: str, *, keeps_key_order: bool = True, reads: bool = True) -> Contestant:
    module = f"benchmarks.contestants.{name.replace('-', '_')}"
    # -P: the current folder is not searched, as it may have another aioparallel.
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
"""The programs of this checkout, by name."""

JAVA_HEAPS: Final = {"java": (), "java-256m": ("-Xmx256m",)}
"""JVM options by contestant: its own choice of heap, up to a quarter of the memory; and a small heap."""
TIMEOUT: Final = 900.0
"""Seconds for one build step; the first time it downloads."""
JARS: Final = JarSet(
    name="parallel-consumer",
    version="0.5.3.3",
    title="Java Parallel Consumer",
    artifacts=(
        # Brings its kafka-clients.
        Artifact("io.confluent.parallelconsumer", "parallel-consumer-core", "0.5.3.3"),
        Artifact("com.google.code.gson", "gson", "2.13.2"),
        # No logging, whose cost is not measured.
        Artifact("org.slf4j", "slf4j-nop", "2.0.13"),
    ),
    size="about 20 jars",
)


KAFKA_CLIENTS: Final = JarSet(
    name="kafka-clients",
    version=KAFKA_VERSION,
    title="Java KafkaShareConsumer",
    artifacts=(
        Artifact("org.apache.kafka", "kafka-clients", KAFKA_VERSION),
        Artifact("org.slf4j", "slf4j-nop", "1.7.36"),
    ),
    size="about 5 jars",
)


@dataclass(frozen=True, slots=True)
class JavaPeer:
    """A Java peer. ``sources``: patterns in the folder of peers. ``main``: its class. ``classes``: the folder of its
    build. ``options``: of the JVM."""

    jars: JarSet
    sources: tuple[str, ...]
    main: str
    classes: str
    options: tuple[str, ...] = ()
    keeps_key_order: bool = True


JAVA_PEERS: Final = {
    **{name: JavaPeer(JARS, ("java/*.java",), "Peer", ".java", heap) for name, heap in JAVA_HEAPS.items()},
    "java-share": JavaPeer(
        KAFKA_CLIENTS,
        ("java/EventLog.java", "java_share/*.java"),
        "Share",
        ".java_share",
        keeps_key_order=False,
    ),
}


@dataclass(frozen=True, slots=True)
class PythonPeer:
    """A Python peer. ``requirement``: for pip. ``oldest``: the first version of Python it supports."""

    title: str
    requirement: str
    oldest: tuple[int, int]
    keeps_key_order: bool


PYTHON_PEERS: Final = {
    "faststream": PythonPeer("FastStream 0.7.8", "faststream[kafka]==0.7.8", (3, 11), keeps_key_order=False),
    "pyrallel": PythonPeer("Pyrallel Consumer 1.0.0", "pyrallel-consumer==1.0.0", (3, 12), keeps_key_order=True),
    "confluent_share": PythonPeer(
        "confluent-kafka 2.16.1 ShareConsumer", "confluent-kafka==2.16.1", (3, 11), keeps_key_order=False
    ),
}


SHARE_PEERS: Final = ("java-share", "confluent_share")
"""The external programs of ``benchmarks/share.py``, by name."""
PEERS: Final = tuple(name for name in (*JAVA_PEERS, *PYTHON_PEERS) if name not in SHARE_PEERS)
"""The external programs of the cases, by name."""


class PeerMissing(AioparallelError):
    """A peer is not available; the message says why and what to install."""


def find_peers(names: Sequence[str], report: Callable[[str], None]) -> dict[str, Contestant | str]:
    """Each of these peers, or a text that says why it is missing and what to install.

    ``report`` is called before slow steps: about a minute in all the first time, none later. Blocks meanwhile.
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
    """Builds peers.

    ``folder``: ``benchmarks/peers`` of a checkout. ``environment``: PATH, JAVA_HOME and PYENV_ROOT are used.
    ``python``: used for Python peers that support its version, so that they run on the same Python as ours.
    """

    folder: Path
    environment: Mapping[str, str]
    python: str
    report: Callable[[str], None]

    def find(self, name: str) -> Contestant:
        """The peer, built if necessary. Raises PeerMissing or JarsMissing."""
        peer = JAVA_PEERS.get(name)
        return self._python(name, PYTHON_PEERS[name]) if peer is None else self._java(name, peer)

    def _java(self, name: str, peer: JavaPeer) -> Contestant:
        compiler = self._program("javac")
        if compiler is None:
            raise PeerMissing(
                "no Java compiler (javac) in JAVA_HOME or on the PATH: install a JDK of version 17 or newer"
            )
        jars = peer.jars.fetch(self.report)
        classes = self.folder / peer.classes
        sources = sorted(path for pattern in peer.sources for path in self.folder.glob(pattern))
        digest = digest_of(str(jars), *(path.read_text() for path in sources))
        if not is_built(classes, digest):
            shutil.rmtree(classes, ignore_errors=True)
            options = ("--release", "17", "-cp", f"{jars}/*", "-d", str(classes))
            self._run("javac", (str(compiler), *options, *map(str, sources)))
            (classes / "stamp").write_text(digest)
        # Without performance data in the temporary directory, which a killed JVM would leave there.
        started_with = ("-XX:-UsePerfData", *peer.options, "-cp", f"{classes}{os.pathsep}{jars}/*")
        title = " ".join([str(peer.jars), *peer.options])
        # Resolved, as a link on the PATH would hide which JDK it is.
        return Contestant(
            name, title, (str(compiler.resolve().with_name("java")), *started_with, peer.main), peer.keeps_key_order
        )

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
        """Commands of possible Pythons: ours first, then from the oldest useful version."""
        yield self.python
        root = Path(self.environment.get("PYENV_ROOT") or Path.home() / ".pyenv")
        for minor in range(12, 20):
            if found := self._program(f"python3.{minor}"):
                yield str(found)
            yield from map(str, sorted(root.glob(f"versions/3.{minor}.*/bin/python")))

    def _fits(self, python: str, oldest: tuple[int, int]) -> bool:
        """Whether a Python runs, is new enough and has venv and pip: pyenv has commands for versions that do not run,
        and Debian has Pythons without pip."""
        question = f"import ensurepip, sys, venv; sys.exit(sys.version_info < {oldest})"
        try:
            return run_program((python, "-c", question), self.environment, 30.0)[0] == 0
        except (OSError, subprocess.TimeoutExpired):
            return False

    def _program(self, name: str) -> Path | None:
        """Searched in JAVA_HOME first, like Maven (it has no other programs needed here), then on the PATH."""
        home = self.environment.get("JAVA_HOME")
        places = [f"{home}/bin"] if home else []
        found = shutil.which(name, path=os.pathsep.join([*places, self.environment.get("PATH", "")]))
        return Path(found) if found else None

    def _run(self, what: str, command: Sequence[str]) -> None:
        """Raises PeerMissing with the last lines of its output if it fails."""
        try:
            code, said = run_program(command, self.environment, TIMEOUT)
        except subprocess.TimeoutExpired as error:
            raise PeerMissing(f"{what} did not end within {TIMEOUT:g} s; check the network") from error
        if code != 0:
            raise PeerMissing(f"{what} failed (exit code {code}); check the network. It said:\n{said}")


def is_built(place: Path, digest: str) -> bool:
    """Whether a build is complete and from these sources."""
    stamp = place / "stamp"
    return stamp.is_file() and stamp.read_text() == digest


def digest_of(*parts: str) -> str:
    """A digest of all parts."""
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()
