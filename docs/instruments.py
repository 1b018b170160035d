"""Makes what is generated from the list of instruments: the tables of ``metrics.md``, the dashboard for Grafana and the
alert rules for Prometheus. ``make docs`` writes them; ``tests/docs/test_metrics.py`` fails when they are stale.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from aioparallel.observe.metrics import INSTRUMENTS, Instrument
from docs.dashboard import dashboard

__all__ = ["ALERTS", "files", "names_in"]

_HERE: Final = Path(__file__).parent
PAGE: Final = _HERE / "metrics.md"
DASHBOARD: Final = _HERE / "metrics-dashboard.json"
RULES: Final = _HERE / "metrics-alerts.yml"


def files() -> Iterator[tuple[Path, str]]:
    """Each file, and its text."""
    page = PAGE.read_text()
    for name, part in (("instruments", _instruments()), ("alerts", _alerts()), ("java", _java())):
        begin, end = f"<!-- {name}: written by `make docs` -->\n", f"<!-- end of {name} -->"
        before, _, rest = page.partition(begin)
        page = f"{before}{begin}\n{part}\n{end}{rest.partition(end)[2]}"
    yield PAGE, page
    yield DASHBOARD, json.dumps(dashboard(list(_grouped())), indent=1) + "\n"
    yield RULES, _rules()


def names_in(expression: str) -> set[str]:
    """The names of metrics in an expression of PromQL."""
    return set(re.findall(r"\baioparallel_\w+", expression))


# -- tables ---------------------------------------------------------------------------------------------

_GROUPS: Final = {
    "Records": ("records.", "attempts."),
    "Times": ("handler.", "record.", "batch."),
    "The consumer": ("handlers.", "retrying.", "buffered", "lanes", "waiting.", "intake"),
    "Partitions": ("partition.", "partitions", "member."),
    "Commits": ("commit", "maps.", "offset.", "log.", "batches."),
    "Brokers": ("contact", "broker.", "topics.", "outputs"),
    "Transactions and state": ("transactions", "state."),
    "Share groups": ("share.",),
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


def _grown(counter: str, time: str) -> str:
    """Whether a counter has grown in this time. Of a series that is younger, ``increase`` does not see what was counted
    before its first scrape, such as a position that was outside the log at the start."""
    return f"increase({counter}[{time}]) > 0 or ({counter} > 0 unless {counter} offset {time})"


def _running(gauge: str) -> str:
    """A gauge of partitions, without those that are paused: nothing of them ends, as somebody wants it."""
    return f"{gauge} unless aioparallel_partition_paused_ratio == 1"


_LAG: Final = _running("aioparallel_partition_lag")
_OLDEST: Final = _running("aioparallel_partition_oldest_seconds")
_DEAD_LETTERED: Final = 'aioparallel_records_ended_total{outcome="dead_lettered"}'

_STUCK: Final = (
    "aioparallel groups show {{ $labels.group }} --stuck names the first incomplete record of each partition that is "
    "stuck, and its member. Go on with: From an alert to the record, in the page Groups and offsets."
)
_OF_SHARE_GROUP: Final = (
    " Of a share group: aioparallel share describe {{ $labels.group }}, and the health of its members."
)
_READY: Final = "http://{{ $labels.instance }}/health/ready has the message (/ready with PrometheusMetrics(port=...))"

ALERTS: Final = (
    Alert("ConsumerFailed", "aioparallel_health_live == 0", 1, "critical",
          "The consumer {{ $labels.consumer }} of group {{ $labels.group }} at {{ $labels.instance }} has failed.",
          f"{_READY}, and the log of that process the error (run_failed). Fix the cause and start it again."),
    Alert("ConsumerNotReady", "aioparallel_health_ready == 0", 5, "critical",
          "The consumer {{ $labels.consumer }} of group {{ $labels.group }} at {{ $labels.instance }} cannot read, "
          "commit or produce.",
          f"{_READY}, aioparallel_health_problems the kind: the reference says what to do for each."),
    Alert("NoProgress",
          f"sum by (group, topic) ({_LAG}) > 0 and "
          "sum by (group, topic) (rate(aioparallel_records_ended_total[10m])) == 0", 10, "critical",
          "Group {{ $labels.group }} has records of {{ $labels.topic }} left, and none has ended for ten minutes.",
          _STUCK),
    Alert("RecordsWait", f"max by (group, topic) ({_OLDEST}) > 600", 10, "warning",
          "The first incomplete record of {{ $labels.topic }} is older than ten minutes in group {{ $labels.group }}.",
          "If aioparallel_handlers_running is at aioparallel_handlers_limit, add members or raise max_concurrency; "
          f"else a key is stuck: {_STUCK}{_OF_SHARE_GROUP}"),
    Alert("LagUnknown", "aioparallel_partition_lag_age_seconds > 30", 5, "warning",
          "The lag of {{ $labels.topic }}-{{ $labels.partition }} in group {{ $labels.group }} is not known: no broker "
          "reports its end.",
          "Check the broker that leads the partition: aioparallel topics describe {{ $labels.topic }}."),
    Alert("RecordFails",
          # The problem is only about records that are not paused.
          "aioparallel_retrying_longest_seconds > 600 and ignoring (kind) "
          'aioparallel_health_problems{kind="retrying"} == 1', 5, "warning",
          "A record in group {{ $labels.group }} at {{ $labels.instance }} has been failing for ten minutes; its key "
          "waits.",
          f"{_READY}: the record and its error. FailurePolicy says when a record is given up; aioparallel offsets skip "
          "gives up one. Go on with: From an alert to the record, in the page Groups and offsets. In a share group "
          "dead_letter and max_deliveries say when it is given up."),
    Alert("HandlerHangs", 'aioparallel_health_problems{kind="long_handler"} == 1', 2, "warning",
          "A handler in group {{ $labels.group }} at {{ $labels.instance }} has been running for minutes; its key "
          "waits.",
          f"{_READY}: the record. Set time limits for what handlers await, or handler_timeout. aioparallel offsets "
          "skip --via gives up the record. Go on with: From an alert to the record, in the page Groups and offsets. In "
          "a share group stop that member: another one gets the record."),
    Alert("HandlersFail",
          "sum by (group, topic) (rate(aioparallel_attempts_failed_total[10m])) > "
          "0.05 * sum by (group, topic) (rate(aioparallel_handler_duration_seconds_count[10m]))", 10, "warning",
          "More than 5 % of the attempts on {{ $labels.topic }} fail in group {{ $labels.group }}.",
          "The logs of the members have the errors (handler_failed)."),
    Alert("DeadLetters", f"sum by (group, topic) ({_grown(_DEAD_LETTERED, '15m')}) > 0", 0, "warning",
          "Records of {{ $labels.topic }} were dead-lettered in group {{ $labels.group }}.",
          "aioparallel dlq list TOPIC, with the dead-letter topic, has each of them with its error. What a member of a "
          "share group dead-letters at its stop is in that topic only: no scrape sees it."),
    Alert("CommitsFail",
          "increase(aioparallel_commits_failed_total[10m]) > 0 and increase(aioparallel_commits_total[10m]) == 0", 5,
          "critical",
          "No commit of the consumer {{ $labels.consumer }} of group {{ $labels.group }} at {{ $labels.instance }} "
          "succeeds.",
          "The log has the reason (commit_failed). Records completed since the last commit run again after a restart."),
    Alert("OffsetMapNearlyFull", "aioparallel_partition_map_used_ratio > 0.75", 10, "warning",
          "The offset map of {{ $labels.topic }}-{{ $labels.partition }} in group {{ $labels.group }} uses more than "
          "three quarters of its limit.", _STUCK),
    Alert("OffsetMapCut", "aioparallel_partition_map_cut == 1", 5, "warning",
          "The offset map of {{ $labels.topic }}-{{ $labels.partition }} in group {{ $labels.group }} does not fit: a "
          "crash would repeat records.", _STUCK),
    Alert("EventLoopBlocked", "rate(aioparallel_loop_blocked_seconds_total[5m]) > 0.05", 5, "warning",
          "The event loop of group {{ $labels.group }} at {{ $labels.instance }} is blocked for more than 5 % of the "
          "time.",
          "The log has the line that blocks it (loop_held). Use in_threads() or in_processes()."),
    Alert("RecordsLost",
          f"{_grown('aioparallel_log_truncations_total', '1h')} or "
          f"{_grown('aioparallel_offset_resets_total', '1h')}", 0,
          "critical",
          "Group {{ $labels.group }} at {{ $labels.instance }}: a log has lost records, or positions were outside of "
          "the log.",
          "The log of that process names the partition. Check retention, replicas and unclean leader elections."),
    Alert("ShareGroupGaveUp", _grown("aioparallel_share_given_up_total", "1h"), 0, "critical",
          "Records of share group {{ $labels.group }} have not ended in their last delivery: the group has given them "
          "up. Without dead letters of the brokers they are lost.",
          "The log of {{ $labels.instance }} has each of them with its error (share_given_up, handler_failed). Set "
          "dead_letter=. If stops have used up the deliveries, set drain_timeout above the longest handler. What a "
          "stop gives up is in the log only, so alert on the action share_given_up there, too."),
    Alert("ShareGroupLag", "sum by (group, topic) (aioparallel_share_group_lag) > 10000", 15, "warning",
          "More than 10,000 records of {{ $labels.topic }} have not ended in share group {{ $labels.group }}.",
          "If aioparallel_handlers_running is at aioparallel_handlers_limit in all members, add members; else "
          "aioparallel share describe {{ $labels.group }} shows whether a few partitions have all of it. Set the "
          "number to what you accept. From aioparallel groups serve."),
    Alert("ShareGroupStuck",
          "min_over_time(aioparallel_share_group_lag[15m]) > 0 and "
          "changes(aioparallel_share_group_start_offset[15m]) == 0 and "
          "delta(aioparallel_share_group_lag[15m]) >= 0", 5, "critical",
          "The lag of {{ $labels.topic }}-{{ $labels.partition }} in share group {{ $labels.group }} does not fall, "
          "and its first unfinished record has not ended for 15 minutes.",
          "aioparallel share describe {{ $labels.group }} shows the members of the partition. If it has some, one of "
          "them has that record: look for the oldest one in aioparallel_partition_oldest_seconds. It may be a job that "
          "takes that long. From aioparallel groups serve."),
    Alert("AcknowledgedLate", _grown("aioparallel_share_late_total", "15m"), 0, "warning",
          "Records of share group {{ $labels.group }} were handled at {{ $labels.instance }}, but acknowledged after "
          "their locks had ended: they are handled twice.",
          "The log has acknowledged_late with the reason: an unreachable broker, a blocked event loop, or a process "
          "that was frozen."),
    Alert("TransactionInDoubt", "aioparallel_transactions_in_doubt == 1", 2, "critical",
          "It is not known whether a transaction of group {{ $labels.group }} at {{ $labels.instance }} was committed; "
          "nothing is committed.",
          f"{_READY}: check the brokers that it names."),
    Alert("ConsumerProblem", 'aioparallel_health_problems{kind!="long_handler"} > 0', 15, "warning",
          "The consumer {{ $labels.consumer }} of group {{ $labels.group }} at {{ $labels.instance }} has a problem: "
          "{{ $labels.kind }}.",
          f"{_READY}, and the reference says what to do for {{{{ $labels.kind }}}}."),
)  # fmt: skip


def _alerts() -> str:
    rows = [
        (f"`Aioparallel{one.name}`", one.severity, f"`{one.expression}`", f"{one.minutes} min", _named(one.remedy))
        for one in ALERTS
    ]
    return _table(("alert", "severity", "when", "for", "what to do"), rows)


def _named(text: str) -> str:
    """A text of a rule for a reader: labels as ``GROUP``."""
    return re.sub(r"{{ \$labels\.(\w+) }}", lambda found: found[1].upper(), text)


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


def write() -> None:
    """Write all files."""
    for path, text in list(files()):
        path.write_text(text)
