"""Apache Kafka's official image in a Docker container, through testcontainers."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any, ClassVar, Final

from aioparallel.clients.aiokafka.admin import create_topic
from aioparallel.jvm.sets import KAFKA_VERSION
from aioparallel.records.errors import BrokerStartError
from aioparallel.testing.brokers.broker import TOPIC_TIMEOUT, Broker
from aioparallel.testing.brokers.cluster_view import answers
from aioparallel.testing.brokers.ports import free_ports
from aioparallel.testing.brokers.server_properties import broker_properties, checked

__all__ = ["IMAGE", "DockerKafka", "docker_available"]

IMAGE: Final = f"apache/kafka:{KAFKA_VERSION}"

_ENGINE_TIMEOUT: Final = 2
_INSIDE_PORT: Final = 9092
_CONTROLLER_PORT: Final = 9093


def docker_available() -> bool:
    """Whether testcontainers is installed and a Docker engine answers. Takes up to 2 s. Never raises."""
    try:
        from testcontainers.core.docker_client import DockerClient  # noqa: PLC0415 - optional

        client = DockerClient(timeout=_ENGINE_TIMEOUT).client
        try:
            return bool(client.ping())
        finally:
            client.close()
    except Exception:
        return False


class DockerKafka(Broker):
    """Apache Kafka in a container.

    ``server_properties``: broker properties that override those of
    :mod:`~aioparallel.testing.brokers.server_properties`, such as ``{"offset.metadata.max.bytes": "512"}``.
    ``start_timeout``: seconds for the broker to answer after the container runs. The container is removed by ``stop``,
    and when this process ends (by testcontainers' reaper). It uses a free port of this machine, so the Docker engine
    should run here as well.
    """

    kind: ClassVar[str] = "docker"

    def __init__(self, *, server_properties: Mapping[str, str] | None = None, start_timeout: float = 90.0) -> None:
        self._properties = checked(server_properties)
        self._start_timeout = start_timeout
        self._container: Any = None  # testcontainers' DockerContainer
        self._address = ("", 0)

    def __repr__(self) -> str:
        return f"<DockerKafka {IMAGE}>"

    @property
    def bootstrap_servers(self) -> str:
        """``host:port`` for this process."""
        if self._container is None:
            raise BrokerStartError("the Kafka container is not running; call start() first")
        return "{}:{}".format(*self._address)

    def start(self) -> None:
        """Pull the image if necessary, start the container, and wait until the broker answers."""
        if self._container is not None:
            return
        try:
            from testcontainers.core.container import DockerContainer  # noqa: PLC0415 - optional
        except ImportError as error:
            raise BrokerStartError("Kafka in Docker needs testcontainers; run: pip install testcontainers") from error
        try:
            container = DockerContainer(IMAGE)
            self._address = (container.get_container_host_ip(), free_ports(1)[0])
            container.with_bind_ports(_INSIDE_PORT, self._address[1])
            for name, value in self._server_properties().items():
                container.with_env("KAFKA_" + name.replace(".", "_").upper(), value)
            self._container = container
            container.start()
        except Exception as error:
            # The exceptions of docker, requests and testcontainers have no common base.
            self.stop()
            raise BrokerStartError(f"the image {IMAGE} could not be started: {error}") from error
        self._wait_until_ready()

    def stop(self) -> None:
        """Remove the container."""
        container, self._container = self._container, None
        if container is not None:
            container.stop()

    async def create_topic(self, name: str, partitions: int = 1, configs: Mapping[str, str] | None = None) -> None:
        """Create a topic; see :meth:`Broker.create_topic`."""
        await create_topic(self.bootstrap_servers, name, partitions, configs, TOPIC_TIMEOUT)

    def _server_properties(self) -> dict[str, str]:
        host, port = self._address
        listeners = {
            "listeners": f"PLAINTEXT://:{_INSIDE_PORT},CONTROLLER://:{_CONTROLLER_PORT}",
            "advertised.listeners": f"PLAINTEXT://{host}:{port}",
            "controller.quorum.voters": f"1@localhost:{_CONTROLLER_PORT}",
        }
        return {**broker_properties(), **listeners, **self._properties}

    def _wait_until_ready(self) -> None:
        deadline = time.monotonic() + self._start_timeout
        while not answers(*self._address, timeout=1.0):
            if time.monotonic() > deadline:
                output = b"\n".join(self._container.get_logs()).decode(errors="replace")
                self.stop()
                raise BrokerStartError(
                    f"{IMAGE} did not answer at {self._address[0]}:{self._address[1]} within "
                    f"{self._start_timeout:g} s. Its output:\n" + "\n".join(output.splitlines()[-20:])
                )
            time.sleep(0.1)
