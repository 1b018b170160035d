"""The processes of one Kafka cluster: configures, formats and starts them, and waits until they are ready."""

from __future__ import annotations

import logging
import time
from collections.abc import Collection, Iterator, Mapping
from typing import Final

from aioparallel.records.errors import BrokerStartError
from aioparallel.testing.brokers.cluster_view import View, answers, ask
from aioparallel.testing.brokers.kafka_node import HOST, KafkaNode, KafkaProgram
from aioparallel.testing.brokers.ports import free_ports
from aioparallel.testing.brokers.secured import Secured

__all__ = ["KafkaNodes"]

logger = logging.getLogger(__name__)

_CONTROLLER_ID: Final = 100
"""Node id of a separate controller; brokers are numbered from 1."""
_CONTROLLER_HEAP: Final = "128m"
_POLL_INTERVAL: Final = 0.05
_ASK_TIMEOUT: Final = 1.0
"""Seconds for one broker's metadata answer; a live broker takes a few milliseconds."""
_PORT_ATTEMPTS: Final = 3


class KafkaNodes:
    """The nodes of a cluster. A single broker is its own controller; several brokers have a separate controller
    process.

    ``brokers``: the broker nodes by number, from 1.
    ``properties``: Kafka properties for all nodes; roles, listeners and directories are added. ``port``: the first
    broker's port, followed by those of the others; None: free ports. ``secured``: more listeners, on free ports.
    """

    def __init__(
        self,
        count: int,
        program: KafkaProgram,
        heap: str,
        properties: Mapping[str, str],
        port: int | None = None,
        secured: Secured | None = None,
    ) -> None:
        self.brokers: dict[int, KafkaNode] = {}
        self._secured = secured
        self._properties = properties
        self._port = port
        self._controller: KafkaNode | None = None
        try:
            for number in range(1, count + 1):
                self.brokers[number] = KafkaNode(f"broker {number}", number, program, heap)
            if count > 1:
                self._controller = KafkaNode("controller", _CONTROLLER_ID, program, _CONTROLLER_HEAP)
            if secured is not None:
                secured.prepare(self.brokers[1].directory / "certificates")
                self._properties = {**secured.properties(), **properties}
        except BaseException:
            self.close()
            raise

    def __iter__(self) -> Iterator[KafkaNode]:
        if self._controller is not None:
            yield self._controller
        yield from self.brokers.values()

    def start(self, timeout: float) -> None:
        """Format and start all nodes, and wait up to ``timeout`` seconds until every broker is ready."""
        for attempt in range(1, _PORT_ATTEMPTS + 1):
            self._write_properties()
            if attempt == 1:
                self._format()
            for node in self:
                node.start()
            try:
                self.wait_until_ready(self.brokers.values(), timeout)
            except BrokerStartError:
                # Another process may take a free port before the JVM listens on it.
                if attempt == _PORT_ATTEMPTS or self._port or not any(node.lost_its_port() for node in self):
                    raise
                logger.info("A port was taken, trying others", extra={"action": "restart_local_kafka"})
                for node in self:
                    node.kill()
                continue
            return

    def close(self) -> None:
        """End all nodes at once and delete their data."""
        for node in self:
            node.close()

    def wait_until_ready(self, nodes: Collection[KafkaNode], timeout: float) -> None:
        """Wait until each of these brokers answers and, if there are several, knows that all of them are up."""
        deadline = time.monotonic() + timeout
        needed = [node for node in self if node in nodes or node is self._controller]
        for node in nodes:
            while not self._is_ready(node, {one.node_id for one in nodes}):
                ended = next((one for one in needed if one.exit_code() is not None), None)
                if ended is not None or time.monotonic() > deadline:
                    what = f"ended with code {ended.exit_code()}" if ended is not None else "does not answer"
                    culprit = ended or node
                    raise BrokerStartError(
                        f"Apache Kafka ({culprit.program.jars.name}, {culprit.name}) at {culprit.address} {what} "
                        f"(waited up to {timeout:g} s; {culprit.program.java}). Its output:\n{culprit.log_tail()}"
                    )
                time.sleep(_POLL_INTERVAL)

    def _is_ready(self, node: KafkaNode, expected: set[int]) -> bool:
        if len(self.brokers) == 1:  # its only listener may require a login
            return answers(HOST, node.port, timeout=_ASK_TIMEOUT)
        view = self.view(node)
        return view is not None and expected <= view.brokers

    def view(self, node: KafkaNode, topic: str | None = None) -> View | None:
        """This broker's view of the cluster and a topic; None if it does not answer within a second."""
        try:
            return ask(HOST, node.port, topic, timeout=_ASK_TIMEOUT)
        except OSError:
            return None

    def _write_properties(self) -> None:
        more = () if self._secured is None else self._secured.listeners
        controller_port, *ports = free_ports(1 + len(self.brokers) * (1 + len(more)))
        ports, secured_ports = ports[: len(self.brokers)], ports[len(self.brokers) :]
        if self._port is not None:
            ports = [self._port + index for index in range(len(self.brokers))]
        voter = self._controller or self.brokers[1]
        common = {**self._properties, "controller.quorum.voters": f"{voter.node_id}@{HOST}:{controller_port}"}
        at_controller = f"CONTROLLER://{HOST}:{controller_port}"
        if self._secured is not None:
            by_listener = {name: [secured_ports.pop() for _ in ports] for name in more}
            self._secured.placed(",".join(f"{HOST}:{port}" for port in ports), by_listener)
            protocols = ",".join(f"{name}:{name.removeprefix('MUTUAL_')}" for name in more)
            common["listener.security.protocol.map"] += f",{protocols}"
        for index, (node, port) in enumerate(zip(self.brokers.values(), ports, strict=True)):
            node.port = port
            mine = ",".join(
                [f"PLAINTEXT://{HOST}:{port}", *(f"{name}://{HOST}:{by_listener[name][index]}" for name in more)]
            )
            node.write_properties(
                {
                    **common,
                    "process.roles": "broker,controller" if node is voter else "broker",
                    "node.id": str(node.node_id),
                    "broker.rack": f"rack-{node.node_id}",
                    "listeners": f"{mine},{at_controller}" if node is voter else mine,
                    "advertised.listeners": mine,
                }
            )
        if self._controller is not None:
            self._controller.port = controller_port
            own = {"process.roles": "controller", "node.id": str(_CONTROLLER_ID), "listeners": at_controller}
            self._controller.write_properties({**common, **own})

    def _format(self) -> None:
        if self._controller is None:
            self.brokers[1].format()
            return
        self._controller.format()
        for node in self.brokers.values():
            node.format_as_broker()
