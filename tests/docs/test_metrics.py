"""The reference of metrics, the alert rules and the dashboard are made from the list of instruments."""

from __future__ import annotations

import json
from typing import Any

import yaml

from aioparallel.cli.groups.serving import METRICS
from aioparallel.observe.metrics import INSTRUMENTS, Kind
from docs.instruments import ALERTS, DASHBOARD, PAGE, RULES, files, names_in


def _names() -> set[str]:
    plain = {one.prometheus_name for one in INSTRUMENTS if one.kind is not Kind.HISTOGRAM}
    histograms = {one.prometheus_name for one in INSTRUMENTS if one.kind is Kind.HISTOGRAM}
    return plain | {f"{name}{suffix}" for name in histograms for suffix in ("_bucket", "_count", "_sum")}


def test_the_files_are_up_to_date() -> None:
    """Page, dashboard and rules."""
    assert [path.name for path, text in files() if path.read_text() != text] == [], "stale: run `make docs`"


def test_the_rules_use_only_metrics_that_exist() -> None:
    """The file is valid YAML with the fields of Prometheus, and each name in it is an instrument, or of ``groups
    serve``."""
    rules = yaml.safe_load(RULES.read_text())["groups"][0]["rules"]
    assert [rule["alert"] for rule in rules] == [f"Aioparallel{one.name}" for one in ALERTS]
    for rule in rules:
        assert names_in(rule["expr"]) <= _names() | METRICS.keys(), rule["expr"]
        assert names_in(rule["expr"])
        assert rule["expr"].count("(") == rule["expr"].count(")")
        assert set(rule) == {"alert", "expr", "for", "labels", "annotations"}


def _targets(panels: list[dict[str, Any]]) -> list[str]:
    found = []
    for panel in panels:
        found += [target["expr"] for target in panel.get("targets", ())]
        found += _targets(panel.get("panels", []))
    return found


def test_the_dashboard_shows_each_instrument() -> None:
    """And nothing that does not exist. No two panels have one id."""
    dashboard = json.loads(DASHBOARD.read_text())
    shown = set().union(*map(names_in, _targets(dashboard["panels"])))
    assert shown <= _names()
    for one in INSTRUMENTS:
        assert one.prometheus_name in shown or f"{one.prometheus_name}_bucket" in shown, one.name
    ids = [panel["id"] for panel in dashboard["panels"]]
    ids += [inner["id"] for panel in dashboard["panels"] for inner in panel.get("panels", ())]
    assert len(set(ids)) == len(ids)


def test_names_in_the_page_exist() -> None:
    """Also those in its text."""
    assert names_in(PAGE.read_text()) <= _names() | METRICS.keys() | {one.prometheus_name for one in INSTRUMENTS}
