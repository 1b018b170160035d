"""Kafka's classes as Java has read, checked and laid them out once, in a file beside the jars: a broker that finds it
starts with half the CPU (measured with one broker and its storage formatted: 2.8 s in place of 5.1 s, on two cores).

It is Java's dynamic archive of class data (JEP 350), of one Java and of these very jars. Java itself looks whether it
fits, and does without one that does not. It is made where somebody asks for it (``python -m
aioparallel.testing.local_kafka --prepare``), for that takes as long as three starts.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import Final

from aioparallel.errors import BrokerStartError
from aioparallel.jvm.java_runtime import JavaRuntime, find_java
from aioparallel.jvm.sets import KAFKA
from aioparallel.testing.brokers.kafka_node import KafkaProgram
from aioparallel.testing.brokers.kafka_nodes import KafkaNodes
from aioparallel.testing.brokers.server_properties import broker_properties

__all__ = ["find_archive", "prepare"]

_HEAP: Final = "256m"
_START_TIMEOUT: Final = 60.0
_WRITE_TIMEOUT: Final = 120.0
"""Seconds for a broker to end and its archive to be written: a few, and many on a busy machine."""


def find_archive(java: JavaRuntime, jars: Path) -> Path | None:
    """That of this Java and these jars; None where none was made, or jars have been fetched since."""
    archive = _place(java, jars)
    try:
        newest = max(jar.stat().st_mtime_ns for jar in jars.glob("*.jar"))
        return archive if archive.stat().st_mtime_ns > newest else None
    except (OSError, ValueError):
        return None


def prepare(report: Callable[[str], None]) -> Path:
    """Fetch the jars where need be, and make the archive where there is none; the directory of the jars.

    A Java that writes no archive is told of, and brokers start without. Raises what the fetch of the jars, and the
    start of a broker, raise.
    """
    java, jars = find_java(), KAFKA.fetch(report)
    if find_archive(java, jars) is None:
        archive = _place(java, jars)
        if not _write(KafkaProgram(java, jars, compile_once=True), archive):
            report(f"{java} wrote no archive of Kafka's classes to {archive}: brokers start without")
    return jars


def _write(program: KafkaProgram, archive: Path) -> bool:
    """Run a broker that writes it when it ends; whether it has."""
    fresh = archive.with_name(f"{archive.name}.{os.getpid()}")
    nodes = KafkaNodes(1, program._replace(archive_to=fresh), _HEAP, broker_properties(1))
    try:
        nodes.start(_START_TIMEOUT)
        nodes.brokers[1].stop_cleanly(_WRITE_TIMEOUT)
        fresh.replace(archive)  # at once: who starts meanwhile finds all of it, or nothing
    except (OSError, BrokerStartError):
        return False
    finally:
        nodes.close()
        fresh.unlink(missing_ok=True)
    return True


def _place(java: JavaRuntime, jars: Path) -> Path:
    """Another Java, or another version of it in the same place, has another archive."""
    executable = java.executable.resolve()
    about = f"{executable} {executable.stat().st_mtime_ns}"
    return jars.with_name(f"{jars.name}-java-{hashlib.sha256(about.encode()).hexdigest()[:12]}.jsa")
