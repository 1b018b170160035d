"""Kafka's own classes of messages: they write for us, and read what we write, by the program Messages.

``python -m tests.support.interop.java_messages`` records what they write, for tests that run without Java.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterable, Iterator, Mapping
from itertools import product
from pathlib import Path
from random import Random
from typing import Any, Final, NamedTuple

from aioparallel.clients.messages import APIS
from aioparallel.jvm.jars import JarSet
from aioparallel.jvm.maven import Artifact
from aioparallel.jvm.sets import KAFKA, KAFKA_VERSION
from tests.support.interop.java_programs import JavaProgramsMissing
from tests.support.messages.definitions import Definition, definitions, random_json

__all__ = ["NAMES", "VECTORS", "JavaMessages", "Vector", "find", "message_classes", "random_vectors", "read_vectors"]

VECTORS: Final = Path(__file__).parents[2] / "unit" / "clients" / "messages" / "data" / "java_messages.json"
NAMES: Final = [api.name + kind for api, kind in product(APIS, ("Request", "Response"))]

_PROGRAM: Final = Path(__file__).parent / "messages" / "Messages.java"
_JVM: Final = ("-Xmx384m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-XX:-UsePerfData")
_TIMEOUT: Final = 300.0


class Vector(NamedTuple):
    """A message that Kafka's classes have written. ``tagged``: with tagged fields that no version knows."""

    name: str
    version: int
    content: Any
    data: bytes
    tagged: bytes


def message_classes() -> dict[str, type[Any]]:
    """Our classes by the names of Kafka's."""
    return {api.name + "Request": api.request for api in APIS} | {api.name + "Response": api.response for api in APIS}


class JavaMessages(NamedTuple):
    """Kafka's classes of one version."""

    java: str
    clients: Path
    """The jar of Kafka's clients."""
    others: Path
    """The directory with the jars that it needs."""

    @property
    def definitions(self) -> dict[str, Definition]:
        """Kafka's definitions of the messages that we have, as far as this version has them."""
        return definitions(self.clients, NAMES)

    def encode(self, messages: Iterable[tuple[str, int, Any]], *, tagged: bool = False) -> list[bytes]:
        """The bytes of messages that are given by name, version and content in JSON."""
        command = "tagged" if tagged else "encode"
        answers = self._ask(f"{command} {name} {version} {json.dumps(content)}" for name, version, content in messages)
        return [bytes.fromhex(answer.removeprefix("encoded ")) for answer in answers]

    def decode(self, messages: Iterable[tuple[str, int, bytes]]) -> Iterator[tuple[bytes, Any]]:
        """What the classes read: the bytes that they write of it, and the content. Raises ValueError if they refuse."""
        for read in self.try_to_decode(messages):
            if isinstance(read, str):
                raise ValueError(read)
            yield read

    def try_to_decode(self, messages: Iterable[tuple[str, int, bytes]]) -> Iterator[tuple[bytes, Any] | str]:
        """The same, with the reason of each refusal."""
        for answer in self._ask(f"decode {name} {version} {data.hex()}" for name, version, data in messages):
            word, rest = answer.split(" ", 1)
            if word != "decoded":
                yield rest
            else:
                data, content = rest.split(" ", 1)
                yield bytes.fromhex(data.strip("-")), json.loads(content)

    def _ask(self, lines: Iterable[str]) -> list[str]:
        classpath = os.pathsep.join([str(self.clients), f"{self.others}/*"])
        run = subprocess.run(
            [self.java, *_JVM, "-cp", classpath, str(_PROGRAM)],
            input="".join(f"{line}\n" for line in lines),
            capture_output=True,
            encoding="utf-8",
            timeout=_TIMEOUT,
            check=False,
        )
        assert run.returncode == 0, f"Messages ended with code {run.returncode}; it said:\n{run.stderr}"
        return run.stdout.removesuffix("\n").split("\n")  # strings may contain other ends of lines


def find(version: str, environment: Mapping[str, str]) -> JavaMessages:
    """Kafka's classes of this version; fetches their jar with Maven the first time. Raises JavaProgramsMissing, and
    JarsMissing."""
    java = shutil.which("java", path=f"{environment['JAVA_HOME']}/bin" if "JAVA_HOME" in environment else None)
    if java is None or shutil.which("javac", path=str(Path(java).resolve().parent)) is None:
        raise JavaProgramsMissing("no JDK in JAVA_HOME or on the PATH; a runtime cannot run a program from its source")
    others = KAFKA.fetch()
    if version == KAFKA_VERSION:
        return JavaMessages(java, others / f"kafka-clients-{version}.jar", others)
    artifact = Artifact("org.apache.kafka", "kafka-clients", version, alone=True)
    clients = JarSet("kafka-clients", version, "Kafka's clients", (artifact,), "1 jar, 10 MB")
    return JavaMessages(java, clients.fetch() / artifact.jar, others)


def random_vectors(java: JavaMessages, seed: int, of_each: int, longest: int = 4) -> list[Vector]:
    """``of_each`` random messages of each kind and version that Kafka and we have."""
    random = Random(seed)
    definitions = java.definitions
    messages = [
        (one.name, version, random_json(one, version, random, longest))
        for api in APIS
        for name in (api.name + "Request", api.name + "Response")
        if (one := definitions.get(name)) is not None
        for version in range(max(one.least, api.least), min(one.most, api.most) + 1)
        for _ in range(of_each)
    ]
    written = zip(messages, java.encode(messages), java.encode(messages, tagged=True), strict=True)
    return [Vector(*message, data, tagged) for message, data, tagged in written]


def read_vectors() -> list[Vector]:
    """The recorded ones."""
    return [
        Vector(name, version, content, bytes.fromhex(data), bytes.fromhex(tagged))
        for name, version, content, data, tagged in json.loads(VECTORS.read_text())
    ]


def _record() -> None:
    vectors = random_vectors(find(KAFKA_VERSION, os.environ), 2026, 8, 2)
    lines = [
        json.dumps([one.name, one.version, one.content, one.data.hex(), one.tagged.hex()], separators=(",", ":"))
        for one in vectors
    ]
    VECTORS.write_text("[\n" + ",\n".join(lines) + "\n]\n")
    print(f"{len(lines)} messages in {VECTORS}")


if __name__ == "__main__":
    _record()
