"""Sets of jars: fetched once with Maven, kept in the user's cache directory, checked at each use.

The cache is ``<cache>/<name>-<version>/`` with the jars and ``manifest.json``, which contains their SHA-256. The
manifest is written after a complete download, and the directory is then moved into place with one rename. So a
directory that agrees with its manifest is complete, and any other is fetched again. A lock file next to it keeps two
processes from fetching at the same time.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Final

from aioparallel.jvm import maven
from aioparallel.jvm.maven import FETCH_TIMEOUT, Artifact
from aioparallel.records.errors import JarsMissing

__all__ = ["JarSet", "cache_directory"]

logger = logging.getLogger(__name__)

_MANIFEST: Final = "manifest.json"
_LOCK_INTERVAL: Final = 0.2


def cache_directory() -> Path:
    """The platform's cache directory for this user and this package. ``XDG_CACHE_HOME`` takes precedence."""
    if named := os.environ.get("XDG_CACHE_HOME"):
        base = Path(named)
    elif sys.platform == "darwin":
        base = Path.home() / "Library" / "Caches"
    else:
        base = Path.home() / ".cache"
    return base / "aioparallel"


@dataclass(frozen=True, slots=True)
class JarSet:
    """Jars that belong together. Each version is a set of its own, in its own directory.

    ``name``, ``version``: make the name of the directory. ``title``: the name in messages. ``artifacts``: what Maven
    fetches; the jar of each must arrive. ``size``: approximate, for messages. ``otherwise``: an alternative without
    Maven, for the error message.
    """

    name: str
    version: str
    title: str
    artifacts: tuple[Artifact, ...]
    size: str
    otherwise: str = "or run this on a machine with Maven, and copy that directory here"

    def __str__(self) -> str:
        return f"{self.title} {self.version}"

    @property
    def directory(self) -> Path:
        """Where the jars are kept, whether they exist or not."""
        return cache_directory() / f"{self.name}-{self.version}"

    def cached(self) -> Path | None:
        """The directory, if it is complete and undamaged. Reads all jars: about 0.1 s for 44 MB."""
        directory = self.directory
        try:
            manifest: dict[str, str] = json.loads((directory / _MANIFEST).read_bytes())
            intact = manifest and all(_sha256(directory / name) == digest for name, digest in manifest.items())
        except (OSError, ValueError, AttributeError):
            return None
        return directory if intact else None

    def fetch(self, report: Callable[[str], None] = logger.info) -> Path:
        """The directory; fetches the jars first if necessary.

        ``report`` gets a sentence for each step that takes long. Raises JarsMissing if Maven is missing or fails, or if
        the cache is not writable, and JavaNotFound if there is no Java for Maven.
        """
        if (directory := self.cached()) is not None:
            return directory
        target = self.directory
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            with self._locked(report):
                if (directory := self.cached()) is not None:
                    return directory  # another process fetched them while this one waited
                if target.exists():
                    report(f"The jars in {target} are incomplete or damaged; fetching them again")
                return self._fetch(target, report)
        except OSError as error:
            raise JarsMissing(
                f"cannot keep the jars of {self} in {target}: {error}; make it writable, or set XDG_CACHE_HOME"
            ) from error

    def paths(self, report: Callable[[str], None] = logger.info) -> list[Path]:
        """The jars by name; fetches them first if necessary. Raises as :meth:`fetch` does."""
        return sorted(self.fetch(report).glob("*.jar"))

    def _fetch(self, target: Path, report: Callable[[str], None]) -> Path:
        command = maven.maven()
        if command is None:
            raise JarsMissing(
                f"{self} is not in the cache ({target}) and Maven, which fetches it, was not found; install Maven (the "
                f"command mvn), {self.otherwise}"
            )
        began = time.monotonic()
        prefix = f"{target.name}-work-"
        for leftover in target.parent.glob(f"{prefix}*"):  # of killed processes, because this one has the lock
            shutil.rmtree(leftover, ignore_errors=True)
        with tempfile.TemporaryDirectory(prefix=prefix, dir=target.parent) as work:
            fresh = Path(work, "jars")
            report(f"Fetching {self} ({self.size}) with Maven into {target}")
            maven.copy_jars(command, str(self), self.artifacts, Path(work), fresh)
            jars = sorted(fresh.glob("*.jar"))
            manifest = {jar.name: _sha256(jar) for jar in jars}
            (fresh / _MANIFEST).write_text(json.dumps(manifest, indent=1))
            if target.exists():
                shutil.rmtree(target)
            fresh.rename(target)
        size = sum(jar.stat().st_size for jar in target.glob("*.jar"))
        report(f"Fetched {len(jars)} jars, {size / 1e6:.0f} MB, in {time.monotonic() - began:.1f} s")
        return target

    @contextlib.contextmanager
    def _locked(self, report: Callable[[str], None]) -> Iterator[None]:
        path = self.directory.with_name(f"{self.directory.name}.lock")
        deadline = time.monotonic() + FETCH_TIMEOUT
        with path.open("w") as lock:
            waiting = False
            while not _try_lock(lock):
                if not waiting:
                    report(f"Another process fetches {self}; waiting for it")
                    waiting = True
                if time.monotonic() > deadline:
                    raise JarsMissing(
                        f"another process has held {path} for {FETCH_TIMEOUT:g} s; end it, or remove the file"
                    )
                time.sleep(_LOCK_INTERVAL)
            yield  # closing the file, or the end of the process, releases the lock


def _try_lock(lock: IO[str]) -> bool:
    try:
        if sys.platform == "win32":
            import msvcrt  # noqa: PLC0415 - only on Windows

            msvcrt.locking(lock.fileno(), msvcrt.LK_NBLCK, 1)
        else:
            import fcntl  # noqa: PLC0415 - not on Windows

            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError):
        return False
    return True


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
