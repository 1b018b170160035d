"""The dashboard for Grafana: an overview, and a panel for each instrument."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from aioparallel.observe.metrics import Instrument, Kind

__all__ = ["dashboard"]

_UNITS: Final = {"s": "s", "By": "bytes", "1": "short"}
_WHERE: Final = 'group=~"$group"'
_OF_TOPIC: Final = f'{_WHERE}, topic=~"$topic"'
_PLACE: Final = "by (group, topic, partition)"

_RARE: Final = frozenset({
    "records.cut_letters", "commits.failed", "maps.cut", "maps.unreadable", "offset.resets", "log.truncations",
    "batches.skipped", "transactions.fenced", "transactions.refused", "state.restored", "state.snapshots",
    "loop.blockages",
})  # fmt: skip
"""Counters of events that are counted, because a rate in each second says little."""
_LARGEST: Final = frozenset({
    "lanes.longest", "retrying.failures", "maps.limit", "partition.epoch", "partition.map", "partition.committed",
    "partition.position", "partition.highest_completed", "member.generation",
})  # fmt: skip
"""Gauges of which the sum over consumers or partitions says nothing, although it is no time and no flag."""
_OF_EACH_PARTITION: Final = frozenset({
    "partition.committed", "partition.position", "partition.highest_completed", "partition.oldest", "partition.map",
    "partition.map_used", "partition.map_cut", "partition.retries_only", "partition.epoch", "partition.lag_age",
})  # fmt: skip
"""Gauges with a line for each partition, as one partition is what to look for."""


class Panel(NamedTuple):
    """A panel: its title, and each expression with its legend. ``more``: fields of its ``fieldConfig.defaults``."""

    title: str
    targets: Sequence[tuple[str, str]]
    unit: str = "short"
    kind: str = "timeseries"
    meaning: str = ""
    more: Mapping[str, object] = MappingProxyType({})


def _quantiles(name: str, where: str) -> list[tuple[str, str]]:
    return [
        (f"histogram_quantile({q}, sum by (group, le) (rate({name}_bucket{{{where}}}[$__rate_interval])))", legend)
        for q, legend in (("0.5", "{{group}} median"), ("0.99", "{{group}} 99 %"))
    ]


def _colours(*steps: tuple[str, float | None]) -> dict[str, object]:
    return {"mode": "absolute", "steps": [{"color": colour, "value": value} for colour, value in steps]}


_YES_OR_NO: Final = {
    "mappings": [
        {"type": "value", "options": {"0": {"text": "no", "color": "red"}, "1": {"text": "yes", "color": "green"}}}
    ]
}
_WAITING: Final = f"topk(10, max {_PLACE} (aioparallel_partition_oldest_seconds{{{_OF_TOPIC}}}) > 0)"


def _of_waiting(name: str) -> str:
    return f"max {_PLACE} (aioparallel_partition_{name}{{{_OF_TOPIC}}}) and on (group, topic, partition) {_WAITING}"


_MAIN: Final = (
    Panel("Ready", [(f"min(aioparallel_health_ready{{{_WHERE}}})", "")], kind="stat", more=_YES_OR_NO,
          meaning="Whether all consumers are in their groups and can read, commit and produce."),
    Panel("Problems", [(f"sum by (kind) (aioparallel_health_problems{{{_WHERE}}}) > 0", "{{kind}}")], kind="stat",
          meaning="By kind: the number of consumers that have it.",
          more={"noValue": "none", "thresholds": _colours(("green", None), ("red", 1))}),
    Panel("Lag", [(f"sum(aioparallel_partition_lag{{{_OF_TOPIC}}})", "")], kind="stat",
          meaning="Records in the log that are not complete."),
    Panel("Oldest incomplete record", [(f"max(aioparallel_partition_oldest_seconds{{{_OF_TOPIC}}})", "")], "s", "stat",
          meaning="The largest age of a record that was read and is not complete.",
          more={"thresholds": _colours(("green", None), ("orange", 60), ("red", 600))}),
    Panel("Records ended", [
        (f"sum by (outcome) (rate(aioparallel_records_ended_total{{{_OF_TOPIC}}}[$__rate_interval]))", "{{outcome}}"),
        (f"sum(rate(aioparallel_attempts_failed_total{{{_OF_TOPIC}}}[$__rate_interval]))", "failed attempts"),
    ], "ops"),
    Panel("Lag by topic",
          [(f"sum by (group, topic) (aioparallel_partition_lag{{{_OF_TOPIC}}})", "{{group}} {{topic}}")]),
    Panel("Oldest incomplete record by partition", [(_WAITING, "{{group}} {{topic}}-{{partition}}")], "s",
          meaning="A line that rises by a second each second is a record that does not end, or a lag that grows."),
    Panel("Partitions that wait longest", [
        (_WAITING, "age"),
        (_of_waiting("committed"), "offset"),
        (_of_waiting("lag"), "lag"),
        (_of_waiting("parked"), "parked"),
    ], kind="table",
          meaning="The offset is the committed one, so that of the first incomplete record. `aioparallel groups show` "
          "has more; `aioparallel offsets skip` skips it."),
    Panel("Records that take longest", [
        (f"max by (group, consumer) (aioparallel_handlers_oldest_seconds{{{_WHERE}}}) > 1",
         "{{group}} {{consumer}} runs"),
        (f"max by (group, consumer) (aioparallel_retrying_longest_seconds{{{_WHERE}}}) > 1",
         "{{group}} {{consumer}} fails"),
        (f"max by (group, consumer) (aioparallel_waiting_longest_seconds{{{_WHERE}}}) > 1",
         "{{group}} {{consumer}} waits for a host"),
    ], "s", meaning="From one second on, by consumer: the handler that has run longest, the record that has been "
          "failing longest, and the one that has waited longest for a limited place such as an HTTP host."),
    Panel("Handler time", _quantiles("aioparallel_handler_duration_seconds", _OF_TOPIC), "s"),
    Panel("Wait before the handler", _quantiles("aioparallel_record_wait_seconds", _OF_TOPIC), "s"),
    Panel("Age at the end", _quantiles("aioparallel_record_age_seconds", _OF_TOPIC), "s"),
    Panel("Handlers running, of max_concurrency",
          [(f"sum by (group) (aioparallel_handlers_running{{{_WHERE}}}) / "
            f"sum by (group) (aioparallel_handlers_limit{{{_WHERE}}})", "{{group}}")], "percentunit"),
    Panel("Commit time", _quantiles("aioparallel_commit_duration_seconds", _WHERE), "s"),
    Panel("Lateness of the event loop", _quantiles("aioparallel_loop_lag_seconds", _WHERE), "s"),
)  # fmt: skip


def _of_instrument(one: Instrument) -> Panel:
    """A plain panel: rates or numbers of counters, quantiles of histograms, sums or maxima of gauges."""
    name, where = one.prometheus_name, _OF_TOPIC if "topic" in one.labels else _WHERE
    unit = _UNITS.get(one.unit, "short")
    if one.kind is Kind.HISTOGRAM:
        return Panel(one.name, _quantiles(one.prometheus_family, where), unit)
    by = ["group", *(label for label in one.labels if label != "partition" or one.name in _OF_EACH_PARTITION)]
    legend = " ".join(f"{{{{{label}}}}}" for label in by).replace("{{topic}} {{partition}}", "{{topic}}-{{partition}}")
    grouping = f"by ({', '.join(by)})"
    if one.kind is Kind.COUNTER:
        rate, shown = ("increase", "short") if one.name in _RARE else ("rate", "percentunit" if unit == "s" else "ops")
        return Panel(one.name, [(f"sum {grouping} ({rate}({name}{{{where}}}[$__rate_interval]))", legend)], shown)
    largest = (one.unit in ("s", "1") and one.name != "intake") or one.name in _LARGEST
    expression = f"{'max' if largest else 'sum'} {grouping} ({name}{{{where}}})"
    if one.name == "health.problems":
        expression += " > 0"  # most kinds are 0
    panel = Panel(one.name, [(expression, legend)], unit)
    return panel._replace(more={"min": None}) if one.unit == "{offset}" else panel


def dashboard(groups: Iterable[tuple[str, Sequence[Instrument]]]) -> dict[str, Any]:
    """The dashboard: an overview, and a row for each group of instruments with its title."""
    panels: list[dict[str, Any]] = []
    y = _place(panels, "Overview", _MAIN, {}, 0, collapsed=False)
    for title, group in groups:
        meanings = {one.name: one.description for one in group}
        y = _place(panels, title, [_of_instrument(one) for one in group], meanings, y, collapsed=True)
    source = "${datasource}"
    return {
        "title": "aioparallel",
        "uid": "aioparallel",
        "tags": ["aioparallel", "kafka"],
        "schemaVersion": 39,
        "editable": True,
        "refresh": "30s",
        "time": {"from": "now-3h", "to": "now"},
        "templating": {
            "list": [
                {"name": "datasource", "type": "datasource", "query": "prometheus", "label": "data source"},
                _variable("group", "label_values(aioparallel_health_running, group)", source),
                _variable("topic", 'label_values(aioparallel_partition_lag{group=~"$group"}, topic)', source),
            ]
        },
        "panels": panels,
    }


def _variable(name: str, query: str, source: str) -> dict[str, Any]:
    return {
        "name": name,
        "type": "query",
        "query": {"query": query, "refId": name},
        "datasource": {"type": "prometheus", "uid": source},
        "refresh": 2,
        "multi": True,
        "includeAll": True,
        "allValue": ".*",
        "current": {"text": ["All"], "value": ["$__all"]},
    }


def _place(
    panels: list[dict[str, Any]],
    title: str,
    found: Sequence[Panel],
    meanings: dict[str, str],
    y: int,
    *,
    collapsed: bool,
) -> int:
    """Add a row with panels, three beside each other (four if they are small). Returns where the next row is."""
    row: dict[str, Any] = {
        "type": "row",
        "title": title,
        "collapsed": collapsed,
        "gridPos": {"x": 0, "y": y, "w": 24, "h": 1},
        "panels": [],
    }
    panels.append(row)
    inside = row["panels"] if collapsed else panels
    x, y = 0, y + 1
    bottom = y
    for panel in found:
        width, height = (6, 4) if panel.kind == "stat" else (8, 7)
        if x + width > 24 or (x and height != bottom - y):
            x, y = 0, bottom
        inside.append(_panel(panel, meanings.get(panel.title, ""), {"x": x, "y": y, "w": width, "h": height}))
        x, bottom = x + width, y + height
    for number, one in enumerate(panels, 1):
        one["id"] = number * 100
        for inner, other in enumerate(one.get("panels", ()), 1):
            other["id"] = number * 100 + inner
    return bottom


def _panel(panel: Panel, meaning: str, place: dict[str, int]) -> dict[str, Any]:
    source = {"type": "prometheus", "uid": "${datasource}"}
    defaults = {"unit": panel.unit, "min": 0, **panel.more}
    found: dict[str, Any] = {
        "type": panel.kind,
        "title": panel.title,
        "description": panel.meaning or meaning,
        "datasource": source,
        "gridPos": place,
        "fieldConfig": {"defaults": {name: value for name, value in defaults.items() if value is not None},
                        "overrides": []},
        "targets": [
            {"refId": chr(ord("A") + at), "expr": expression, "legendFormat": legend or "__auto", "datasource": source}
            for at, (expression, legend) in enumerate(panel.targets)
        ],
    }  # fmt: skip
    if panel.kind == "table":
        _as_table(found)
    return found


def _as_table(panel: dict[str, Any]) -> None:
    """One row for each combination of labels, with the values of all targets in it."""
    names = {}
    for target in panel["targets"]:
        names[f"Value #{target['refId']}"] = target.pop("legendFormat")
        target |= {"format": "table", "instant": True, "range": False}
    panel["transformations"] = [
        {"id": "merge", "options": {}},
        {"id": "organize", "options": {"excludeByName": {"Time": True}, "renameByName": names}},
        {"id": "sortBy", "options": {"sort": [{"field": "age", "desc": True}]}},
    ]
    panel["fieldConfig"]["overrides"] = [
        {"matcher": {"id": "byName", "options": "age"}, "properties": [{"id": "unit", "value": "s"}]},
        {"matcher": {"id": "byName", "options": "offset"}, "properties": [{"id": "unit", "value": "none"}]},
    ]
