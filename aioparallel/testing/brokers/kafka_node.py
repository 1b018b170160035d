"""One Kafka process: a broker, a controller, or both, with its own directory and log."""

from __future__ import annotations

import base64
import os
import signal
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Final, NamedTuple

from aioparallel.jvm.java_runtime import JavaRuntime
from aioparallel.records.errors import BrokerStartError
from aioparallel.testing.processes.guarded import GuardedProcess

__all__ = ["HOST", "KafkaNode", "KafkaProgram"]

HOST: Final = "127.0.0.1"
_CLUSTER_ID: Final = "YWlvcGFyYWxsZWwta2Fma2"
_FORMAT_TIMEOUT: Final = 60.0
_CLEAN_STOP_TIMEOUT: Final = 20.0
_KILL_TIMEOUT: Final = 10.0
_PAUSE_TIMEOUT: Final = 5.0
_PORT_TAKEN: Final = ("Address already in use", "BindException")


class KafkaProgram(NamedTuple):
    """Apache Kafka's jars and the Java that runs them."""

    java: JavaRuntime
    jars: Path
    compile_once: bool
    """Compile code only once, quickly, and not again with more optimisation: see ``LocalKafka``."""
    archive: Path | None = None
    """The archive of Kafka's classes: see :mod:`~aioparallel.testing.brokers.class_archive`."""
    archive_to: Path | None = None
    """Where to write an archive when the broker ends."""

    def command(self, heap: str, *arguments: str) -> list[str]:
        """A command line from the main class and its arguments. ``heap``: in the format of Java's ``-Xmx``."""
        options = (
            f"-Xmx{heap}",
            "-XX:+UseSerialGC",
            *(["-XX:TieredStopAtLevel=1"] if self.compile_once else []),
            *([f"-XX:SharedArchiveFile={self.archive}"] if self.archive else []),
            *([f"-XX:ArchiveClassesAtExit={self.archive_to}"] if self.archive_to else []),
            "-Xlog:cds*=off",  # no message about an archive that does not fit
            "-XX:+ExitOnOutOfMemoryError",
            "-XX:-UsePerfData",  # after a SIGKILL its file would stay in the temporary directory
            "-Djava.awt.headless=true",
            "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
        )
        return [str(self.java.executable), *options, "-cp", str(self.jars / "*"), *arguments]


class KafkaNode(GuardedProcess):
    """A Kafka process that ends, with its data, when this process ends in any way.

    ``name``: its name in messages. ``node_id``: Kafka's ``node.id``. ``program``: what it runs. ``heap``: its largest
    heap, such as ``"256m"``. ``port``: where it listens; for a broker, where its clients connect.
    ``paused``: whether :meth:`pause` was called, and the process was not resumed or restarted since.
    """

    def __init__(self, name: str, node_id: int, program: KafkaProgram, heap: str) -> None:
        super().__init__("kafka")
        self.name = name
        self.node_id = node_id
        self.port = 0
        self.paused = False
        self.program = program
        self._heap = heap
        self._log = self.directory / "kafka.log"

    @property
    def address(self) -> str:
        """Its ``host:port``."""
        return f"{HOST}:{self.port}"

    def write_properties(self, properties: Mapping[str, str]) -> None:
        """Write its configuration, with the data directory added."""
        lines = [f"{name}={value}\n" for name, value in properties.items()]
        lines.append(f"log.dirs={self._data}\n")
        (self.directory / "server.properties").write_text("".join(lines))

    def format(self) -> None:
        """Format its data directory for a controller, with the cluster's first metadata. Takes about a second."""
        arguments = ("format", "--cluster-id", _CLUSTER_ID, "--config", "server.properties")
        once = self.program._replace(compile_once=True, archive_to=None)  # too short to benefit from optimised code
        self.run(once.command(self._heap, "kafka.tools.StorageTool", *arguments), self._log)
        code = self.wait(_FORMAT_TIMEOUT)
        if code != 0:
            raise BrokerStartError(
                f"Apache Kafka's storage could not be formatted (exit code {code}, {self.program.java}). Its output:\n"
                f"{self.log_tail()}"
            )

    def format_as_broker(self) -> None:
        """Format its data directory for a broker that is not a controller: at once, without a JVM.

        Writes the same file as ``kafka.tools.StorageTool`` (KIP-631, KIP-858).
        """
        directory_id = base64.urlsafe_b64encode(os.urandom(16)).decode().rstrip("=")
        if directory_id.startswith("-"):  # excluded by Kafka, because it looks like an option on a command line
            directory_id = "A" + directory_id[1:]
        self._data.mkdir()
        (self._data / "meta.properties").write_text(
            f"version=1\ncluster.id={_CLUSTER_ID}\nnode.id={self.node_id}\ndirectory.id={directory_id}\n"
        )

    def start(self) -> None:
        """Start the process. It is not ready yet."""
        self.paused = False
        self.run(self.program.command(self._heap, "kafka.Kafka", "server.properties"), self._log)

    def outage(self) -> str | None:
        """Why the node does not answer, such as "was killed"; None if it should answer."""
        code = self.exit_code()
        if code is not None:
            return "was killed" if code == -signal.SIGKILL else f"has ended with code {code}"
        return "is paused" if self.paused else None

    def kill(self) -> None:
        """Kill the process as a power cut would (SIGKILL), and wait for its end."""
        self.signal(signal.SIGKILL)
        if self.wait(_KILL_TIMEOUT) is None:
            raise BrokerStartError(f"{self} did not end within {_KILL_TIMEOUT:g} s")
        self.paused = False

    def stop_cleanly(self, timeout: float = _CLEAN_STOP_TIMEOUT) -> None:
        """End the process with SIGTERM, even if it is paused. Kill it after ``timeout`` seconds."""
        if self.exit_code() is not None:
            return
        self.resume()
        self.signal(signal.SIGTERM)
        if self.wait(timeout) is None:
            self.kill()

    def pause(self) -> None:
        """Make the process hang (SIGSTOP), and wait until all its threads have stopped. Raises BrokerStartError if it
        does not run."""
        if (outage := self.outage()) is not None and not self.paused:
            raise BrokerStartError(f"{self} {outage}, so it cannot be paused; restart it")
        self.signal(signal.SIGSTOP)
        self.paused = True
        # A thread on another core may continue for a moment after the signal, and answer a request.
        deadline = time.monotonic() + _PAUSE_TIMEOUT
        while self.pid is not None and not _has_stopped(self.pid):
            if time.monotonic() > deadline:
                raise BrokerStartError(f"{self} did not stop within {_PAUSE_TIMEOUT:g} s")
            time.sleep(0.001)

    def resume(self) -> None:
        """Let a paused process continue."""
        self.signal(signal.SIGCONT)
        self.paused = False

    def log_tail(self, lines: int = 20) -> str:
        """The last lines of its output (warnings and errors)."""
        try:
            written = self._log.read_text(errors="replace")
        except OSError:
            return ""
        return "\n".join(written.splitlines()[-lines:])

    def lost_its_port(self) -> bool:
        """Whether it ended because another process has taken one of its ports."""
        return self.exit_code() is not None and any(sign in self.log_tail(200) for sign in _PORT_TAKEN)

    def __str__(self) -> str:
        return f"Apache Kafka ({self.name}, pid {self.pid})"

    @property
    def _data(self) -> Path:
        return self.directory / "data"


def _has_stopped(pid: int) -> bool:
    """Whether all threads of a process that got SIGSTOP have stopped."""
    threads = Path(f"/proc/{pid}/task")
    if threads.is_dir():
        try:
            # The state follows the name, which is in parentheses and may contain any character.
            states = [(thread / "stat").read_text().rpartition(")")[2].split()[0] for thread in threads.iterdir()]
        except OSError:
            return False  # a thread has just ended, so not all are stopped
        return all(state == "T" for state in states)
    state = subprocess.run(["ps", "-o", "state=", "-p", str(pid)], capture_output=True, text=True, check=False)
    return state.stdout.strip().startswith("T")
