"""Apache Kafka as a JVM process: one KRaft node, broker and controller, on free ports with data of its own.

``python -m aioparallel.testing.local_kafka --prepare`` fetches the jars beforehand; without ``--prepare`` it runs a
broker until Ctrl-C.
"""

from __future__ import annotations

import argparse
import atexit
import contextlib
import logging
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import ClassVar, Final

from aioparallel.errors import BrokerStartError
from aioparallel.testing.brokers import TOPIC_TIMEOUT, Broker
from aioparallel.testing.guarded_process import GuardedProcess, check_platform
from aioparallel.testing.jars import KAFKA_VERSION, cached_jars, fetch_jars, maven
from aioparallel.testing.java_runtime import JavaRuntime, find_java
from aioparallel.testing.readiness import answers, free_port
from aioparallel.testing.server_properties import broker_properties, checked
from aioparallel.testing.topics import create_topic

__all__ = ["LocalKafka", "local_kafka_available"]

logger = logging.getLogger(__name__)

_HOST: Final = "127.0.0.1"
_CLUSTER_ID: Final = "YWlvcGFyYWxsZWwta2Fma2"
_FORMAT_TIMEOUT: Final = 60.0
_CLEAN_STOP_TIMEOUT: Final = 20.0
_KILL_TIMEOUT: Final = 10.0
_PAUSE_TIMEOUT: Final = 5.0
_POLL_INTERVAL: Final = 0.05
_PORT_ATTEMPTS: Final = 3
_PORT_TAKEN: Final = ("Address already in use", "BindException")


def local_kafka_available() -> tuple[bool, str]:
    """Whether LocalKafka can be started here, and a sentence on what was found or is missing."""
    try:
        check_platform()
        java = find_java()
    except BrokerStartError as error:
        return False, str(error)
    found = f"Java {java.version} was found ({java.source})"
    if cached_jars() is not None:
        return True, f"{found} and the jars are cached"
    if maven() is not None:
        return True, f"{found} and Maven can fetch the jars"
    return False, f"{found}, but the jars are not cached and there is no Maven"


class LocalKafka(Broker):
    """Apache Kafka in a JVM process that ends, with its data, when this process ends in whatever way.

    ``server_properties``: broker properties over those of :mod:`~aioparallel.testing.server_properties`, as in
    ``{"offset.metadata.max.bytes": "512"}``; listeners, roles and directories are not to be set.
    ``heap``: the JVM's largest heap, as in ``"512m"``; the process takes little more. Default 256m.
    ``start_timeout``: seconds within which the broker must answer. Default 60.
    ``report``: told in sentences what takes long: fetching the jars, the first time.

    Linux and macOS. The data directory lies in the system's temporary directory (``TMPDIR``). Methods block,
    ``start`` and ``restart`` for seconds; call one at a time, from any thread.
    """

    kind: ClassVar[str] = "local"

    def __init__(
        self,
        *,
        server_properties: Mapping[str, str] | None = None,
        heap: str = "256m",
        start_timeout: float = 60.0,
        report: Callable[[str], None] = logger.info,
    ) -> None:
        self._properties = checked(server_properties)
        self._heap = heap
        self._start_timeout = start_timeout
        self._report = report
        self._process: GuardedProcess | None = None
        self._java: JavaRuntime | None = None
        self._jars = Path()
        self._port = 0

    def __repr__(self) -> str:
        where = f"at {_HOST}:{self._port}" if self._process else "not running"
        return f"<LocalKafka {KAFKA_VERSION} {where}>"

    @property
    def bootstrap_servers(self) -> str:
        """``host:port``; stays the same through ``kill`` and ``restart``."""
        self._running()
        return f"{_HOST}:{self._port}"

    @property
    def pid(self) -> int | None:
        """The JVM's process id, for looking at it; None before the start."""
        return self._process.pid if self._process else None

    def start(self) -> None:
        """Start and wait until the broker answers: about 3 s, once the jars are there."""
        if self._process is not None:
            return
        check_platform()
        self._java = find_java()
        self._jars = fetch_jars(self._report)
        self._process = GuardedProcess("kafka")
        atexit.register(self.stop)
        try:
            self._format_and_run(self._process)
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """End the process at once and remove its data."""
        process, self._process = self._process, None
        if process is not None:
            process.close()
            atexit.unregister(self.stop)

    def kill(self) -> None:
        """Kill the broker as a power cut would (SIGKILL); its data stays. ``restart`` brings it back."""
        process = self._running()
        process.signal(signal.SIGKILL)
        if process.wait(_KILL_TIMEOUT) is None:
            raise BrokerStartError(f"Apache Kafka (pid {process.pid}) did not end within {_KILL_TIMEOUT:g} s")

    def restart(self) -> None:
        """Start again with the same port and data, after a clean stop if it runs: about 3 s.

        After ``kill`` about 5 s: the controller first waits for the killed one's session to end.
        """
        process = self._running()
        if process.exit_code() is None:
            self.resume()
            process.signal(signal.SIGTERM)
            if process.wait(_CLEAN_STOP_TIMEOUT) is None:
                self.kill()
        self._run(process)
        self._wait_until_ready(process)

    def pause(self) -> None:
        """Let the broker hang (SIGSTOP): connections stay open and nothing answers. Returns when it has stopped."""
        process = self._running()
        process.signal(signal.SIGSTOP)
        # The signal is sent, but a thread on another core may run on for a moment, and answer a request.
        deadline = time.monotonic() + _PAUSE_TIMEOUT
        while process.pid is not None and not _has_stopped(process.pid):
            if time.monotonic() > deadline:
                raise BrokerStartError(f"Apache Kafka (pid {process.pid}) did not stop within {_PAUSE_TIMEOUT:g} s")
            time.sleep(0.001)

    def resume(self) -> None:
        """Let a paused broker go on."""
        self._running().signal(signal.SIGCONT)

    def log_tail(self, lines: int = 20) -> str:
        """The last lines that the broker wrote (warnings and errors), for messages about it."""
        try:
            written = (self._running().directory / "kafka.log").read_text(errors="replace")
        except OSError:
            return ""
        return "\n".join(written.splitlines()[-lines:])

    async def create_topic(self, name: str, partitions: int = 1, configs: Mapping[str, str] | None = None) -> None:
        """Create a topic; see :meth:`Broker.create_topic`."""
        await create_topic(self.bootstrap_servers, name, partitions, configs, TOPIC_TIMEOUT)

    def _running(self) -> GuardedProcess:
        if self._process is None:
            raise BrokerStartError("Apache Kafka is not running; call start() first")
        return self._process

    def _format_and_run(self, process: GuardedProcess) -> None:
        for attempt in range(1, _PORT_ATTEMPTS + 1):
            self._write_properties(process.directory)
            if attempt == 1:
                self._format(process)
            self._run(process)
            try:
                self._wait_until_ready(process)
            except BrokerStartError:
                # A free port may be taken by somebody else before the JVM listens on it.
                taken = any(sign in self.log_tail(200) for sign in _PORT_TAKEN)
                if not taken or process.exit_code() is None or attempt == _PORT_ATTEMPTS:
                    raise
                logger.info("A port was taken, trying others", extra={"action": "restart_local_kafka"})
                continue
            return

    def _write_properties(self, directory: Path) -> None:
        self._port, controller_port = free_port(), free_port()
        properties = {
            **broker_properties(),
            "listeners": f"PLAINTEXT://{_HOST}:{self._port},CONTROLLER://{_HOST}:{controller_port}",
            "advertised.listeners": f"PLAINTEXT://{_HOST}:{self._port}",
            "controller.quorum.voters": f"1@{_HOST}:{controller_port}",
            "log.dirs": str(directory / "data"),
            **self._properties,
        }
        lines = [f"{name}={value}\n" for name, value in properties.items()]
        (directory / "server.properties").write_text("".join(lines))

    def _format(self, process: GuardedProcess) -> None:
        arguments = ("format", "--cluster-id", _CLUSTER_ID, "--config", "server.properties")
        process.run(self._java_command("kafka.tools.StorageTool", *arguments), process.directory / "kafka.log")
        code = process.wait(_FORMAT_TIMEOUT)
        if code != 0:
            raise BrokerStartError(
                f"Apache Kafka's storage could not be formatted (exit code {code}, {self._java}). It said:\n"
                f"{self.log_tail()}"
            )

    def _run(self, process: GuardedProcess) -> None:
        process.run(self._java_command("kafka.Kafka", "server.properties"), process.directory / "kafka.log")

    def _java_command(self, *arguments: str) -> list[str]:
        assert self._java is not None
        options = (
            f"-Xmx{self._heap}",
            "-XX:+UseSerialGC",
            "-XX:+ExitOnOutOfMemoryError",
            "-XX:-UsePerfData",  # its file in the temporary directory would stay after a SIGKILL
            "-Djava.awt.headless=true",
            "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
        )
        return [str(self._java.executable), *options, "-cp", str(self._jars / "*"), *arguments]

    def _wait_until_ready(self, process: GuardedProcess) -> None:
        deadline = time.monotonic() + self._start_timeout
        while not answers(_HOST, self._port, timeout=1.0):
            code = process.exit_code()
            if code is not None or time.monotonic() > deadline:
                what = f"ended with code {code}" if code is not None else "does not answer"
                raise BrokerStartError(
                    f"Apache Kafka {KAFKA_VERSION} at {_HOST}:{self._port} {what} (waited up to "
                    f"{self._start_timeout:g} s; {self._java}). It said:\n{self.log_tail()}"
                )
            time.sleep(_POLL_INTERVAL)


def _has_stopped(pid: int) -> bool:
    """Whether every thread of a process that got SIGSTOP stands still."""
    threads = Path(f"/proc/{pid}/task")
    if threads.is_dir():
        try:
            # The state stands behind the name, which is in parentheses and may hold anything.
            states = [(thread / "stat").read_text().rpartition(")")[2].split()[0] for thread in threads.iterdir()]
        except OSError:
            return False  # a thread has just ended, so not all of them stand still
        return all(state == "T" for state in states)
    state = subprocess.run(["ps", "-o", "state=", "-p", str(pid)], capture_output=True, text=True, check=False)
    return state.stdout.strip().startswith("T")


def main(arguments: Sequence[str] | None = None) -> None:
    """Prepare the jars, or run a broker until Ctrl-C."""
    parser = argparse.ArgumentParser(prog=f"python -m {__spec__.name}", description=__doc__)
    parser.add_argument("--prepare", action="store_true", help="fetch the jars into the cache, and end")
    prepare: bool = parser.parse_args(arguments).prepare
    try:
        if prepare:
            print(f"Apache Kafka {KAFKA_VERSION} is in {fetch_jars(print)}")
            return
        with LocalKafka(report=print) as kafka, contextlib.suppress(KeyboardInterrupt):
            print(f"Apache Kafka {KAFKA_VERSION} runs at {kafka.bootstrap_servers} (Ctrl-C ends it)", flush=True)
            threading.Event().wait()
    except BrokerStartError as error:
        parser.exit(1, f"{error}{os.linesep}")


if __name__ == "__main__":
    main()
