"""Makes what is generated from the list of instruments: the tables of ``metrics.md``, the dashboard for Grafana and the
alert rules for Prometheus. ``make docs`` writes them; ``tests/docs/test_metrics.py`` fails when they are stale.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from aioparallel.observe.metrics import INSTRUMENTS, Instrument, Kind

__all__ = ["ALERTS", "files", "names_in"]

_HERE: Final = Path(__file__).parent
PAGE: Final = _HERE / "metrics.md"
DASHBOARD: Final = _HERE / "metrics-dashboard.json"
RULES: Final = _HERE / "metrics-alerts.yml"
_UNITS: Final = {"s": "s", "By": "bytes", "1": "short"}


def files() -> Iterator[tuple[Path, str]]:
    """Each file, and its text."""
    page = PAGE.read_text()
    for name, part in (("instruments", _instruments()), ("alerts", _alerts()), ("java", _java())):
        begin, end = f"<!-- {name}: written by `make docs` -->\n", f"<!-- end of {name} -->"
        before, _, rest = page.partition(begin)
        page = f"{before}{begin}\n{part}\n{end}{rest.partition(end)[2]}"
    yield PAGE, page
    yield DASHBOARD, json.dumps(_dashboard(), indent=1) + "\n"
    yield RULES, _rules()


def names_in(expression: str) -> set[str]:
    """The names of metrics in an expression of PromQL."""
    return set(re.findall(r"\baioparallel_\w+", expression))


# -- tables ---------------------------------------------------------------------------------------------

_GROUPS: Final = {
    "Records": ("records.", "attempts."),
    "Times": ("handler.", "record.", "batch."),
    "The consumer": ("handlers.", "retrying.", "buffered", "lanes", "waiting.", "intake"),
    "Partitions": ("partition.", "partitions"),
    "Commits": ("commit", "maps.", "offset.", "log.", "batches."),
    "Brokers": ("contact", "broker.", "topics.", "outputs"),
    "Transactions and state": ("transactions", "state."),
    "Event loop and health": ("loop.", "health."),
}


def _instruments() -> str:
    parts = []
    for title, group in _grouped():
        rows = [
            (
                f"`{one.prometheus_name}`",
                one.kind.value,
                f"`{one.otel_name}`",
                ", ".join(one.labels),
                one.description,
                _source(one.source),
            )
            for one in group
        ]
        head = ("Prometheus", "kind", "OpenTelemetry", "labels", "meaning", "from")
        parts.append(f"### {title}\n\n{_table(head, rows)}")
    return "\n".join(parts)


def _grouped() -> Iterator[tuple[str, list[Instrument]]]:
    left = list(INSTRUMENTS)
    for title, prefixes in _GROUPS.items():
        group = [one for one in left if one.name.startswith(prefixes)]
        left = [one for one in left if one not in group]
        yield title, group
    if left:
        raise ValueError(f"in no group: {[one.name for one in left]}")


def _source(source: str) -> str:
    return ", ".join(f"`{part}`" if re.fullmatch(r"[\w.]+", part) else part for part in source.split(", "))


_NOT_OURS: Final = {
    "dynamic.load.factor": "The buffer has fixed limits: `max_buffered`, `max_buffered_bytes`.",
    "slow.records": "`aioparallel_handler_duration_seconds_bucket`",
    "offsets.encoding.usage": "The format of a map is chosen for each commit, by its size.",
    "payload.ratio.used": "`aioparallel_partition_map` divided by `aioparallel_partition_highest_completed - "
    "aioparallel_partition_committed`",
    "user.function.*": "There is no thread pool. `aioparallel_handlers_running`",
}


def _java() -> str:
    rows = [
        (f"`pc.{meter}`", f"`{one.prometheus_name}`")
        for one in INSTRUMENTS
        for meter in one.java.split(", ")
        if one.java
    ]
    rows += [(f"`pc.{meter}`", ours) for meter, ours in _NOT_OURS.items()]
    return _table(("the Java library", "here"), sorted(rows))


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |\n" for line in lines)


# -- alert rules ----------------------------------------------------------------------------------------


class Alert(NamedTuple):
    """A rule for Prometheus."""

    name: str
    expression: str
    minutes: int
    severity: str
    summary: str
    remedy: str


ALERTS: Final = (
    Alert("ConsumerFailed", "aioparallel_health_live == 0", 1, "critical",
          "The consumer {{ $labels.consumer }} of group {{ $labels.group }} has failed.",
          "Its log has the error (run_failed). Fix the cause and start it again."),
    Alert("ConsumerNotReady", "aioparallel_health_ready == 0", 5, "critical",
          "The consumer {{ $labels.consumer }} of group {{ $labels.group }} cannot read, commit or produce.",
          "Look at aioparallel_health_problems: the kind says what to do."),
    Alert("NoProgress",
          "sum by (group, topic) (aioparallel_partition_lag) > 0 and "
          "sum by (group, topic) (rate(aioparallel_records_ended_total[10m])) == 0", 10, "critical",
          "Group {{ $labels.group }} has records of {{ $labels.topic }} left, and none has ended for ten minutes.",
          "Look at stats().oldest_in_flight, longest_retrying and longest_lane."),
    Alert("RecordsWait", "max by (group, topic) (aioparallel_partition_oldest_seconds) > 600", 10, "warning",
          "The first incomplete record of {{ $labels.topic }} is older than ten minutes in group {{ $labels.group }}.",
          "If the handlers are at their limit, add members or raise max_concurrency; else a key is stuck."),
    Alert("LagUnknown", "aioparallel_partition_lag_age_seconds > 30", 5, "warning",
          "The lag of {{ $labels.topic }}-{{ $labels.partition }} is not known: no broker reports its end.",
          "Check the broker that leads the partition."),
    Alert("RecordFails", "aioparallel_retrying_longest_seconds > 600", 5, "warning",
          "A record in group {{ $labels.group }} has been failing for ten minutes; its key waits.",
          "Look at stats().longest_retrying. FailurePolicy says when a record is given up."),
    Alert("HandlersFail",
          "sum by (group, topic) (rate(aioparallel_attempts_failed_total[10m])) > "
          "0.05 * sum by (group, topic) (rate(aioparallel_handler_duration_seconds_count[10m]))", 10, "warning",
          "More than 5 % of the attempts on {{ $labels.topic }} fail in group {{ $labels.group }}.",
          "Look at the errors in the log."),
    Alert("DeadLetters",
          'sum by (group, topic) (increase(aioparallel_records_ended_total{outcome="dead_lettered"}[15m])) > 0', 0,
          "warning", "Records of {{ $labels.topic }} were dead-lettered in group {{ $labels.group }}.",
          "Look at them: aioparallel dlq list."),
    Alert("CommitsFail",
          "increase(aioparallel_commits_failed_total[10m]) > 0 and increase(aioparallel_commits_total[10m]) == 0", 5,
          "critical", "No commit of the consumer {{ $labels.consumer }} of group {{ $labels.group }} succeeds.",
          "The log has the reason (commit_failed). Records completed since the last commit run again after a restart."),
    Alert("OffsetMapNearlyFull", "aioparallel_partition_map_used_ratio > 0.75", 10, "warning",
          "The offset map of {{ $labels.topic }}-{{ $labels.partition }} uses more than three quarters of its limit.",
          "Find the record that does not progress: stats().longest_lane, longest_retrying."),
    Alert("OffsetMapCut", "aioparallel_partition_map_cut == 1", 5, "warning",
          "The offset map of {{ $labels.topic }}-{{ $labels.partition }} does not fit: a crash would repeat records.",
          "Find the record that does not progress: stats().longest_lane, longest_retrying."),
    Alert("EventLoopBlocked", "rate(aioparallel_loop_blocked_seconds_total[5m]) > 0.05", 5, "warning",
          "The event loop of group {{ $labels.group }} is blocked for more than 5 % of the time.",
          "The log has the line that blocks it (loop_held). Use in_threads() or in_processes()."),
    Alert("RecordsLost",
          "increase(aioparallel_log_truncations_total[1h]) > 0 or increase(aioparallel_offset_resets_total[1h]) > 0", 0,
          "critical", "Group {{ $labels.group }}: a log has lost records, or positions were outside of the log.",
          "Look at the log of the consumer. Check retention, replicas and unclean leader elections."),
    Alert("TransactionInDoubt", "aioparallel_transactions_in_doubt == 1", 2, "critical",
          "It is not known whether a transaction of group {{ $labels.group }} was committed; nothing is committed.",
          "Check the brokers in the message of the health problem in_doubt."),
    Alert("ConsumerProblem", "aioparallel_health_problems > 0", 15, "warning",
          "The consumer {{ $labels.consumer }} of group {{ $labels.group }} has a problem: {{ $labels.kind }}.",
          "The reference says what to do for each kind; health() has the message."),
)  # fmt: skip


def _alerts() -> str:
    rows = [
        (f"`Aioparallel{one.name}`", one.severity, f"`{one.expression}`", f"{one.minutes} min", one.remedy)
        for one in ALERTS
    ]
    return _table(("alert", "severity", "when", "for", "what to do"), rows)


def _rules() -> str:
    lines = ["# Written by `make docs`: docs/instruments.py.", "groups:", "  - name: aioparallel", "    rules:"]
    for one in ALERTS:
        lines += [
            f"      - alert: Aioparallel{one.name}",
            f"        expr: {json.dumps(one.expression)}",
            f"        for: {one.minutes}m",
            "        labels:",
            f"          severity: {one.severity}",
            "        annotations:",
            f"          summary: {json.dumps(one.summary)}",
            f"          description: {json.dumps(one.remedy)}",
        ]
    return "\n".join(lines) + "\n"


# -- the dashboard --------------------------------------------------------------------------------------

_WHERE: Final = 'group=~"$group"'
_OF_TOPIC: Final = f'{_WHERE}, topic=~"$topic"'


class Panel(NamedTuple):
    """A panel: its title, and each expression with its legend."""

    title: str
    targets: Sequence[tuple[str, str]]
    unit: str = "short"
    kind: str = "timeseries"


def _quantiles(name: str, where: str) -> list[tuple[str, str]]:
    return [
        (f"histogram_quantile({q}, sum by (le) (rate({name}_bucket{{{where}}}[$__rate_interval])))", title)
        for q, title in (("0.5", "median"), ("0.99", "99 %"))
    ]


_MAIN: Final = (
    Panel("Ready", [(f"min(aioparallel_health_ready{{{_WHERE}}})", "")], kind="stat"),
    Panel("Problems", [(f"sum by (kind) (aioparallel_health_problems{{{_WHERE}}}) > 0", "{{kind}}")], kind="stat"),
    Panel("Lag", [(f"sum(aioparallel_partition_lag{{{_OF_TOPIC}}})", "")], kind="stat"),
    Panel("Oldest incomplete record", [(f"max(aioparallel_partition_oldest_seconds{{{_OF_TOPIC}}})", "")], "s", "stat"),
    Panel(
        "Records ended",
        [(f"sum by (outcome) (rate(aioparallel_records_ended_total{{{_OF_TOPIC}}}[$__rate_interval]))", "{{outcome}}")],
        "ops",
    ),
    Panel("Lag by topic", [(f"sum by (topic) (aioparallel_partition_lag{{{_OF_TOPIC}}})", "{{topic}}")]),
    Panel("Handler time", _quantiles("aioparallel_handler_duration_seconds", _OF_TOPIC), "s"),
    Panel("Wait before the handler", _quantiles("aioparallel_record_wait_seconds", _OF_TOPIC), "s"),
    Panel("Age at the end", _quantiles("aioparallel_record_age_seconds", _OF_TOPIC), "s"),
    Panel(
        "Handlers running, of the most",
        [(f"sum(aioparallel_handlers_running{{{_WHERE}}}) / sum(aioparallel_handlers_limit{{{_WHERE}}})", "used")],
        "percentunit",
    ),
    Panel("Commit time", _quantiles("aioparallel_commit_duration_seconds", _WHERE), "s"),
    Panel("Lateness of the event loop", _quantiles("aioparallel_loop_lag_seconds", _WHERE), "s"),
)


def _of_instrument(one: Instrument) -> Panel:
    """A plain panel: rates of counters, medians of histograms, sums or maxima of gauges."""
    name, where = one.prometheus_name, _OF_TOPIC if "topic" in one.labels else _WHERE
    by = [label for label in one.labels if label != "partition"]
    legend = " ".join(f"{{{{{label}}}}}" for label in by)
    grouping = f" by ({', '.join(by)})" if by else ""
    unit = _UNITS.get(one.unit, "short")
    if one.kind is Kind.HISTOGRAM:
        return Panel(one.name, _quantiles(one.prometheus_family, where), unit)
    if one.kind is Kind.COUNTER:
        expression = f"sum{grouping} (rate({name}{{{where}}}[$__rate_interval]))"
        return Panel(one.name, [(expression, legend)], "percentunit" if one.unit == "s" else "ops")
    add = "max" if one.unit in ("s", "1", "{offset}") else "sum"
    return Panel(one.name, [(f"{add}{grouping} ({name}{{{where}}})", legend)], unit)


def _dashboard() -> dict[str, Any]:
    panels: list[dict[str, Any]] = []
    y = _place(panels, "Overview", _MAIN, {}, 0, collapsed=False)
    for title, group in _grouped():
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
    return {
        "type": panel.kind,
        "title": panel.title,
        "description": meaning,
        "datasource": source,
        "gridPos": place,
        "fieldConfig": {"defaults": {"unit": panel.unit, "min": 0}, "overrides": []},
        "targets": [
            {"refId": chr(ord("A") + at), "expr": expression, "legendFormat": legend or "__auto", "datasource": source}
            for at, (expression, legend) in enumerate(panel.targets)
        ],
    }


def write() -> None:
    """Write all files."""
    for path, text in list(files()):
        path.write_text(text)
