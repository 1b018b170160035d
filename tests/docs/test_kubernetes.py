"""The manifests of ``docs/kubernetes.md`` fit the program beside them, and the library."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import re
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Final

import aiohttp
import pytest
import yaml

from aioparallel.config.options import Options
from aioparallel.testing import EmbeddedBroker
from aioparallel.testing.processes.child import Child
from aioparallel.web import answers

from .blocks import ROOT, blocks

PAGE: Final = (ROOT / "docs/kubernetes.md").read_text()
MANIFESTS: Final = [
    yaml.safe_load(text) for text in re.findall(r"^```yaml\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
]
WORKLOADS: Final = [one for one in MANIFESTS if one["kind"] in ("Deployment", "StatefulSet")]


def of_kind(kind: str) -> Any:
    """The only manifest of this kind."""
    [found] = [one for one in MANIFESTS if one["kind"] == kind]
    return found


def container(manifest: Any) -> Any:
    """The only one."""
    [found] = manifest["spec"]["template"]["spec"]["containers"]
    return found


def test_probes_ask_routes_that_are_there() -> None:
    """At the port where the worker listens."""
    probes = container(of_kind("Deployment"))
    assert probes["startupProbe"]["httpGet"] == {"path": answers.LIVE, "port": "health"}
    assert probes["livenessProbe"]["httpGet"] == {"path": answers.LIVE, "port": "health"}
    assert probes["readinessProbe"]["httpGet"] == {"path": answers.READY, "port": "health"}
    assert f'"PORT", "{probes["ports"][0]["containerPort"]}"' in PAGE
    assert "minute" in PAGE
    assert probes["startupProbe"]["periodSeconds"] * probes["startupProbe"]["failureThreshold"] == 60
    assert probes["livenessProbe"]["periodSeconds"] * probes["livenessProbe"]["failureThreshold"] == 60


def test_prometheus_finds_the_metrics() -> None:
    """By annotations or by a PodMonitor, at the port and path of the worker."""
    template = of_kind("Deployment")["spec"]["template"]
    [port] = container(of_kind("Deployment"))["ports"]
    annotations = template["metadata"]["annotations"]
    assert annotations["prometheus.io/port"] == str(port["containerPort"])
    assert annotations["prometheus.io/path"] == answers.METRICS
    monitor = of_kind("PodMonitor")["spec"]
    assert monitor["selector"]["matchLabels"] == template["metadata"]["labels"]
    [endpoint] = monitor["podMetricsEndpoints"]
    assert (endpoint["port"], endpoint["path"]) == (port["name"], answers.METRICS)


def test_a_pod_has_time_to_stop() -> None:
    """More than the sum in the table, which has the library's own values."""
    rows = re.findall(r"^\| [^|]+ \| (\d+) s( each)? \|", PAGE, re.MULTILINE)
    steps = [int(seconds) for seconds, each in rows if not each]
    assert f"The sum here is {sum(steps)} s" in PAGE
    options = Options()
    assert options.drain_timeout in steps
    assert steps.count(int(options.commit_timeout)) >= 1
    for manifest in WORKLOADS:
        assert manifest["spec"]["template"]["spec"]["terminationGracePeriodSeconds"] > sum(steps)


def test_the_choice_comes_before_the_manifest() -> None:
    """A reader who copies the Deployment has read what a killed pod does, for how long, and what a StatefulSet does.
    The worker has the protocol in which the other pods go on."""
    assert PAGE.index("## Deployment or StatefulSet") < PAGE.index("## The worker") < PAGE.index("kind: Deployment")
    assert "session_timeout" not in program("docs/kubernetes.md", "The worker")
    [(seconds, default)] = re.findall(r"`session_timeout=(\d+)`, instead of (\d+) s", PAGE)
    assert int(seconds) < Options().session == int(default)


def test_environment() -> None:
    """Variables of the manifests are those that the programs read."""
    for manifest in WORKLOADS:
        for variable in container(manifest)["env"]:
            assert f'os.environ.get("{variable["name"]}"' in PAGE
        assert container(manifest)["command"] == ["python", "worker.py"]


def test_the_password_is_where_the_worker_reads_it() -> None:
    """The Secret is mounted there, and its key is the name of the file."""
    secret, deployment = of_kind("Secret"), of_kind("Deployment")
    [volume] = deployment["spec"]["template"]["spec"]["volumes"]
    [mount] = container(deployment)["volumeMounts"]
    assert volume["secret"]["secretName"] == secret["metadata"]["name"]
    assert volume["name"] == mount["name"]
    [key] = secret["stringData"]
    assert f'"{mount["mountPath"]}/{key}"' in PAGE


def test_a_disruption_budget_is_for_these_pods() -> None:
    """It selects what the Deployment starts; the user of the image is that of the pods."""
    template = of_kind("Deployment")["spec"]["template"]
    assert of_kind("PodDisruptionBudget")["spec"]["selector"]["matchLabels"] == template["metadata"]["labels"]
    assert f"USER {template['spec']['securityContext']['runAsUser']}\n" in PAGE


def test_a_network_policy_lets_the_worker_work() -> None:
    """It selects the pods, and opens the port of the probes and metrics, DNS, and the brokers."""
    policy, template = of_kind("NetworkPolicy")["spec"], of_kind("Deployment")["spec"]["template"]
    assert policy["podSelector"]["matchLabels"] == template["metadata"]["labels"]
    [port] = container(of_kind("Deployment"))["ports"]
    assert [one["ports"] for one in policy["ingress"]] == [[{"port": port["containerPort"]}]]
    [servers] = [one["value"] for one in container(of_kind("Deployment"))["env"] if one["name"] == "KAFKA"]
    brokers = {int(server.rpartition(":")[2]) for server in servers.split(",")}
    assert {53, *brokers} <= {one["port"] for rule in policy["egress"] for one in rule["ports"]}


def program(page: str, heading: str) -> str:
    """The only Python block below a heading."""
    [code] = [one.code for one in blocks() if one.name == f"{page}: {heading}"]
    return code


@contextlib.asynccontextmanager
async def running_worker(folder: Path, port: int, code: str) -> AsyncIterator[Child]:
    """The worker as a process, with its topics."""
    (folder / "worker.py").write_text(code)
    async with EmbeddedBroker() as broker:
        for topic in ("orders", "orders.dlq"):
            await broker.create_topic(topic)
        environment = {"KAFKA": broker.bootstrap_servers, "PORT": str(port), "PYTHONPATH": str(ROOT)}
        command = [sys.executable, "worker.py"]
        async with Child("worker", command, log=folder / "log", environment=environment, directory=folder) as child:
            yield child


async def test_a_worker_with_the_route_of_the_other_page(tmp_path: Path, unused_tcp_port: int) -> None:
    """The route of ``docs/autoscaling.md``, put into the worker where that page says."""
    code, place = program("docs/kubernetes.md", "The worker"), 'if __name__ == "__main__":'
    assert code.count(place) == 1
    assert f"before the line `{place}`" in " ".join((ROOT / "docs/autoscaling.md").read_text().split())
    for line in ("        extensions=[PrometheusMetrics()],\n", "app.add_routes(metrics_routes())\n"):
        assert code.count(line) == 1
        code = code.replace(line, "")  # as that page says
    code = code.replace(place, program("docs/autoscaling.md", "What to use") + "\n\n" + place)
    async with (
        asyncio.timeout(60),
        running_worker(tmp_path, unused_tcp_port, code) as child,
        aiohttp.ClientSession(f"http://127.0.0.1:{unused_tcp_port}") as session,
    ):
        text = ""
        while "aioparallel_work" not in text:
            await asyncio.sleep(0.1)
            with contextlib.suppress(aiohttp.ClientConnectionError):
                text = await (await session.get("/metrics")).text()
        assert text == "aioparallel_parked 0\naioparallel_work 0\n"
        stats = await (await session.get("/stats")).json()
        assert "billing" in json.dumps(stats)
        child.terminate()
        await child.ended()
    log = (tmp_path / "log").read_text()
    assert re.search(r"^\d{4}-\d\d-\d\d \S+ INFO \w+", log, re.MULTILINE), log
    assert "GET /metrics" not in log


async def test_the_worker_serves_its_metrics(tmp_path: Path, unused_tcp_port: int) -> None:
    """Beside its probes."""
    async with (
        asyncio.timeout(60),
        running_worker(tmp_path, unused_tcp_port, program("docs/kubernetes.md", "The worker")) as child,
        aiohttp.ClientSession(f"http://127.0.0.1:{unused_tcp_port}") as session,
    ):
        text = ""
        while "aioparallel_health_ready{" not in text:
            await asyncio.sleep(0.1)
            with contextlib.suppress(aiohttp.ClientConnectionError):
                text = await (await session.get(answers.METRICS)).text()
        assert 'aioparallel_health_live{consumer="1",group="billing"} 1.0' in text
        child.terminate()
        await child.ended()


def test_json_lines(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Each line is an object with the fields of its record, and a traceback where there is one."""
    monkeypatch.setattr(logging, "basicConfig", lambda **_: None)
    names: dict[str, Any] = {}
    exec(program("docs/kubernetes.md", "Logs as JSON lines"), names)
    logger = logging.Logger("shop")
    logger.addHandler(names["to_stderr"])
    logger.warning("Failed %d times", 3, extra={"action": "record_failed", "offset": 7, "other": 1})
    try:
        raise ValueError("no such order")
    except ValueError:
        logger.exception("Failed")
    first, second = map(json.loads, capsys.readouterr().err.splitlines())
    assert first.pop("time").endswith("+00:00")
    assert first == {
        "level": "WARNING",
        "logger": "shop",
        "message": "Failed 3 times",
        "action": "record_failed",
        "offset": 7,
    }
    assert second["traceback"].endswith("ValueError: no such order")
