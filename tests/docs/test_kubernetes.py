"""The manifests of ``docs/kubernetes.md`` fit the program beside them, and the library."""

from __future__ import annotations

import re
from typing import Any, Final

import yaml

from aioparallel.config.options import Options
from aioparallel.web import answers

from .blocks import ROOT

PAGE: Final = (ROOT / "docs/kubernetes.md").read_text()
MANIFESTS: Final = [
    yaml.safe_load(text) for text in re.findall(r"^```yaml\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
]


def container(manifest: Any) -> Any:
    """The only one."""
    [found] = manifest["spec"]["template"]["spec"]["containers"]
    return found


def test_probes_ask_routes_that_are_there() -> None:
    """At the port where the worker listens."""
    [deployment] = [one for one in MANIFESTS if one["kind"] == "Deployment"]
    probes = container(deployment)
    assert probes["livenessProbe"]["httpGet"] == {"path": answers.LIVE, "port": "health"}
    assert probes["readinessProbe"]["httpGet"] == {"path": answers.READY, "port": "health"}
    assert f'"PORT", "{probes["ports"][0]["containerPort"]}"' in PAGE
    assert "minute" in PAGE
    assert probes["livenessProbe"]["periodSeconds"] * probes["livenessProbe"]["failureThreshold"] == 60


def test_a_pod_has_time_to_stop() -> None:
    """More than the sum in the table, which has the library's own values."""
    rows = re.findall(r"^\| [^|]+ \| (\d+) s( each)? \|", PAGE, re.MULTILINE)
    steps = [int(seconds) for seconds, each in rows if not each]
    assert f"The sum here is {sum(steps)} s" in PAGE
    options = Options()
    assert options.drain_timeout in steps
    assert steps.count(int(options.commit_timeout)) >= 1
    for manifest in MANIFESTS:
        assert manifest["spec"]["template"]["spec"]["terminationGracePeriodSeconds"] > sum(steps)


def test_environment() -> None:
    """Variables of the manifests are those that the programs read."""
    for manifest in MANIFESTS:
        for variable in container(manifest)["env"]:
            assert f'os.environ.get("{variable["name"]}"' in PAGE
        assert container(manifest)["command"] == ["python", "worker.py"]
