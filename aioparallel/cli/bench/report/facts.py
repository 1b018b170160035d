"""The machine and the versions that a case was measured with."""

from __future__ import annotations

import os
import platform
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from aioparallel.errors import JavaNotFound
from aioparallel.jvm.java_runtime import find_java

__all__ = ["Facts", "gather"]


@dataclass(frozen=True, slots=True)
class Facts:
    """What somebody needs to know who compares figures.

    ``date``: when its run began, ISO 8601 in UTC. ``memory``: bytes; 0 where the system does not say. ``rounds``: warm
    ones. ``scale``: by what the record counts were divided, 1 for the full size. ``java``, ``uvloop``: None for none.
    """

    date: str
    cpu: str
    cores: int
    memory: int
    system: str
    python: str
    aioparallel: str
    aiokafka: str
    uvloop: str | None
    java: str | None
    broker: str
    seed: int
    rounds: int
    scale: int

    def now(self) -> Facts:
        """The same with the present date."""
        return replace(self, date=present())

    @property
    def undated(self) -> tuple[object, ...]:
        """The same for runs that differ in nothing but their date."""
        return tuple(value for name, value in asdict(self).items() if name != "date")


def gather(*, broker: str, seed: int, rounds: int, scale: int) -> Facts:
    """Of this machine, now."""
    return Facts(
        date=present(),
        cpu=cpu_model(),
        cores=os.cpu_count() or 1,
        memory=physical_memory(),
        system=f"{platform.system()} {platform.release().partition('-')[0]} {platform.machine()}",
        python=f"{platform.python_implementation()} {platform.python_version()}",
        aioparallel=version("aioparallel"),
        aiokafka=version("aiokafka"),
        uvloop=installed("uvloop"),
        java=java_version(),
        broker=broker,
        seed=seed,
        rounds=rounds,
        scale=scale,
    )


def present() -> str:
    """Now, to the second."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def cpu_model(cpuinfo: Path = Path("/proc/cpuinfo")) -> str:
    """As the system names it."""
    if cpuinfo.exists():
        for line in cpuinfo.read_text().splitlines():
            name, _, value = line.partition(":")
            if name.strip() == "model name":
                return value.strip()
    return platform.processor() or platform.machine()


def physical_memory() -> int:
    """Bytes; 0 where the system does not say."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return 0


def installed(package: str) -> str | None:
    """Its version, or None."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def java_version() -> str | None:
    """The runtime that a local Kafka and the Java peer get, or None."""
    try:
        java = find_java()
    except JavaNotFound:
        return None
    return f"{java.version} ({java.source})"
