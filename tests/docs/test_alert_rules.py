"""The alert rules, evaluated by Prometheus's own ``promtool`` on series of typical trouble: which alerts fire, and
which do not; and the queries of the dashboard.

Skipped without promtool. ``test_metrics.py`` checks the names and the form of the rules without it.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest
import yaml

from aioparallel import ProblemKind
from docs.instruments import ALERTS, DASHBOARD, RULES

PROMTOOL = shutil.which("promtool")
pytestmark = pytest.mark.skipif(PROMTOOL is None, reason="promtool (of Prometheus) is not installed")

MEMBER = {"group": "billing", "consumer": "1", "instance": "10.0.0.7:8000"}
PARTITION = {**MEMBER, "topic": "orders", "partition": "0"}
OF_GROUP = {"group": "workers", "topic": "jobs", "partition": "0"}
MINUTES = 60
Series = Mapping[str, tuple[Mapping[str, str], str]]


def one(value: str, **labels: str) -> tuple[Mapping[str, str], str]:
    return {**MEMBER, **labels}, value


def in_partition(value: str, **labels: str) -> tuple[Mapping[str, str], str]:
    return {**PARTITION, **labels}, value


HEALTHY: Series = {
    "health_live": one("1x60"),
    "health_ready": one("1x60"),
    **{f"health_problems{kind}": one("0x60", kind=kind) for kind in ProblemKind},
    "partition_lag": in_partition("120x60"),
    "partition_lag_age_seconds": in_partition("0.3x60"),
    "partition_oldest_seconds": in_partition("2x60"),
    "partition_paused_ratio": in_partition("0x60"),
    "partition_map_used_ratio": in_partition("0.01x60"),
    "partition_map_cut": in_partition("0x60"),
    "records_ended_total": in_partition("0+6000x60", outcome="succeeded"),
    "records_ended_total dead": in_partition("0x60", outcome="dead_lettered"),
    "attempts_failed_total": in_partition("0x60"),
    "handler_duration_seconds_count": one("0+6000x60", topic="orders", outcome="succeeded"),
    "retrying_longest_seconds": one("0x60"),
    "commits_total": one("0+60x60"),
    "commits_failed_total": one("0x60"),
    "loop_blocked_seconds_total": one("0x60"),
    "share_given_up_total": one("0x60"),
    "share_late_total": one("0x60"),
    "log_truncations_total": one("0x60"),
    "offset_resets_total": one("0x60"),
    "waiting_longest_seconds": one("0x60"),
    "share_group_lag": (OF_GROUP, "0+1x60"),
    "share_group_start_offset": (OF_GROUP, "0+6000x60"),
}
RECORD_OF_ALL = {"group": "billing", "topic": "orders"}
ANOTHER_PAUSED: Series = {
    f"{name} of another": in_partition(values, partition="1")
    for name, values in {
        "partition_paused_ratio": "1x60",
        "partition_lag": "0+600x60",
        "partition_oldest_seconds": "0+60x60",
    }.items()
}
CASES: Mapping[str, tuple[Series, Mapping[str, Mapping[str, str]]]] = {
    "all is well": ({}, {}),
    # The other keys go on.
    "a record fails again and again": (
        {
            "retrying_longest_seconds": one("0+60x60"),
            "partition_oldest_seconds": in_partition("0+60x60"),
            "attempts_failed_total": in_partition("0+1x60"),
            "health_problemsretrying": one("0 1x59", kind="retrying"),
        },
        {"RecordFails": MEMBER, "RecordsWait": RECORD_OF_ALL, "ConsumerProblem": {**MEMBER, "kind": "retrying"}},
    ),
    "a record is stuck and the offset map grows": (
        {
            "partition_oldest_seconds": in_partition("0+60x60"),
            "partition_map_used_ratio": in_partition("0+0.02x60"),
            "partition_map_cut": in_partition("0x50 1x10"),
            "health_problemslong_handler": one("0 1x59", kind="long_handler"),
        },
        {
            "RecordsWait": RECORD_OF_ALL,
            "OffsetMapNearlyFull": PARTITION,
            "OffsetMapCut": PARTITION,
            "HandlerHangs": {**MEMBER, "kind": "long_handler"},
        },
    ),
    "a host throttles": (
        {
            "partition_oldest_seconds": in_partition("0+30x60"),
            "partition_lag": in_partition("120+600x60"),
            "records_ended_total": in_partition("0+60x60", outcome="succeeded"),
            "handler_duration_seconds_count": one("0+60x60", topic="orders", outcome="succeeded"),
            "health_problemsthrottled": one("0 1x59", kind="throttled"),
        },
        {"RecordsWait": RECORD_OF_ALL, "ConsumerProblem": {**MEMBER, "kind": "throttled"}},
    ),
    "a group lags behind, and works": (
        {"partition_lag": in_partition("0+3000x60"), "partition_oldest_seconds": in_partition("0+40x60")},
        {"RecordsWait": RECORD_OF_ALL},
    ),
    "nothing ends": (
        {
            "records_ended_total": in_partition("6000x60", outcome="succeeded"),
            "partition_oldest_seconds": in_partition("0+60x60"),
            "health_problemslong_handler": one("0 1x59", kind="long_handler"),
        },
        {
            "NoProgress": RECORD_OF_ALL,
            "RecordsWait": RECORD_OF_ALL,
            "HandlerHangs": {**MEMBER, "kind": "long_handler"},
        },
    ),
    "a broker is away": (
        {
            "health_ready": one("1x10 0x50"),
            "health_problemsbroker_unreachable": one("0x10 1x50", kind="broker_unreachable"),
            "partition_lag_age_seconds": in_partition("0+60x60"),
            "records_ended_total": in_partition("0+6000x10 60000x50", outcome="succeeded"),
            "partition_oldest_seconds": in_partition("0+60x60"),
            "commits_total": one("0+60x10 600x50"),
            "commits_failed_total": one("0x10 0+60x50"),
        },
        {
            "ConsumerNotReady": MEMBER,
            "ConsumerProblem": {**MEMBER, "kind": "broker_unreachable"},
            "LagUnknown": PARTITION,
            "NoProgress": RECORD_OF_ALL,
            "RecordsWait": RECORD_OF_ALL,
            "CommitsFail": MEMBER,
        },
    ),
    "the run has failed": (
        {
            "health_live": one("1x50 0x10"),
            "health_ready": one("1x50 0x10"),
            "health_problemsfailed": one("0x40 1x20", kind="failed"),
        },
        {
            "ConsumerFailed": MEMBER,
            "ConsumerNotReady": MEMBER,
            "ConsumerProblem": {**MEMBER, "kind": "failed"},
        },
    ),
    "attempts fail and records are dead-lettered": (
        {
            "attempts_failed_total": in_partition("0+600x60"),
            "records_ended_total dead": in_partition("0+10x60", outcome="dead_lettered"),
        },
        {"HandlersFail": RECORD_OF_ALL, "DeadLetters": RECORD_OF_ALL},
    ),
    # By itself, with its topic or with the whole consumer; a record of it waits for its next attempt.
    "everything is paused": (
        {
            "partition_paused_ratio": in_partition("0x10 1x50"),
            "partition_lag": in_partition("120x10 120+600x50"),
            "partition_oldest_seconds": in_partition("2x10 2+60x50"),
            "records_ended_total": in_partition("0+6000x10 60000x50", outcome="succeeded"),
            "retrying_longest_seconds": one("0x10 0+60x50"),
        },
        {},
    ),
    "the pause is over": (
        {
            "partition_paused_ratio": in_partition("0x10 1x45 0x5"),
            "partition_lag": in_partition("120x10 120+600x45 20000-3000x5"),
            "partition_oldest_seconds": in_partition("2x10 2+60x45 2702-500x5"),
            "records_ended_total": in_partition("0+6000x10 60000x45 60000+6000x5", outcome="succeeded"),
        },
        {},
    ),
    "the only partition that is not paused has nothing left": (
        {
            **ANOTHER_PAUSED,
            "partition_lag": in_partition("0x60"),
            "records_ended_total": in_partition("6000x60", outcome="succeeded"),
        },
        {},
    ),
    "the only partition that is not paused is stuck": (
        {
            **ANOTHER_PAUSED,
            "partition_oldest_seconds": in_partition("0+60x60"),
            "records_ended_total": in_partition("6000x60", outcome="succeeded"),
        },
        {"NoProgress": RECORD_OF_ALL, "RecordsWait": RECORD_OF_ALL},
    ),
    "a share group gives up a record": ({"share_given_up_total": one("0x50 1x10")}, {"ShareGroupGaveUp": MEMBER}),
    "records of a share group are acknowledged late": (
        {"share_late_total": one("0x50 3x10")},
        {"AcknowledgedLate": MEMBER},
    ),
    "a share group does not keep up": (
        {"share_group_lag": (OF_GROUP, "0+3000x60")},
        {"ShareGroupLag": {"group": "workers", "topic": "jobs"}},
    ),
    "a record of a share group holds its partition up": (
        {"share_group_lag": (OF_GROUP, "0x30 50+50x30"), "share_group_start_offset": (OF_GROUP, "0+6000x30 180000x30")},
        {"ShareGroupStuck": OF_GROUP},
    ),
    "a record of a share group takes long, and the others go on": (
        {"share_group_lag": (OF_GROUP, "9000-100x60"), "share_group_start_offset": (OF_GROUP, "7x60")},
        {},
    ),
    "a share group has nothing left": (
        {"share_group_lag": (OF_GROUP, "0x60"), "share_group_start_offset": (OF_GROUP, "7x60")},
        {},
    ),
    "the event loop is blocked": ({"loop_blocked_seconds_total": one("0+6x60")}, {"EventLoopBlocked": MEMBER}),
    "a log has lost records": ({"log_truncations_total": one("0x50 1x10")}, {"RecordsLost": MEMBER}),
    "a position was outside the log when the consumer started": (
        {"offset_resets_total": one("_x50 1x10")},
        {"RecordsLost": MEMBER},
    ),
    "the first record is dead-lettered": (
        {"records_ended_total dead": in_partition("_x50 1x10", outcome="dead_lettered")},
        {"DeadLetters": RECORD_OF_ALL},
    ),
    "records were lost, and dead-lettered, long ago": (
        {
            "offset_resets_total": one("1x60"),
            "records_ended_total dead": in_partition("1x60", outcome="dead_lettered"),
        },
        {},
    ),
    "a transaction is in doubt": (
        {"transactions_in_doubt": one("0x50 1x10"), "health_problemsin_doubt": one("0x50 1x10", kind="in_doubt")},
        {"TransactionInDoubt": MEMBER},
    ),
}  # fmt: skip


def series_of(found: Series) -> list[dict[str, str]]:
    """As promtool has them. What follows the name of a metric only tells its series apart."""
    rows = []
    for name, (labels, values) in found.items():
        name = re.sub(r"(health_problems).*| dead| of another", r"\1", name)
        where = ", ".join(f'{key}="{value}"' for key, value in labels.items())
        rows.append({"series": f"aioparallel_{name}{{{where}}}", "values": values})
    return rows


def expected(labels: Mapping[str, str], severity: str, summary: str, remedy: str) -> dict[str, object]:
    def filled(text: str) -> str:
        return re.sub(r"{{ \$labels\.(\w+) }}", lambda found: labels[found[1]], text)

    return {
        "exp_labels": {"severity": severity, **labels},
        "exp_annotations": {"summary": filled(summary), "description": filled(remedy)},
    }


def check(*arguments: str) -> None:
    assert PROMTOOL is not None
    ran = subprocess.run([PROMTOOL, *arguments], capture_output=True, text=True, timeout=60, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr


def test_the_rules_are_valid() -> None:
    """For Prometheus itself."""
    check("check", "rules", str(RULES))


def test_the_dashboard_has_valid_queries(tmp_path: Path) -> None:
    """Each of its expressions, as Grafana sends it, is PromQL."""
    found = re.findall(r'"expr": ("[^\n]*"),?\n', DASHBOARD.read_text())
    assert len(found) > 80
    rules = [
        {"record": f"panel:{number}", "expr": json.loads(one).replace("$__rate_interval", "1m")}
        for number, one in enumerate(found)
    ]
    file = tmp_path / "rules.yml"
    file.write_text(yaml.safe_dump({"groups": [{"name": "dashboard", "rules": rules}]}))
    check("check", "rules", str(file))


@pytest.mark.parametrize("case", CASES)
def test_trouble_fires_its_alerts(tmp_path: Path, case: str) -> None:
    """After an hour these alerts fire, and no others."""
    changed, firing = CASES[case]
    alerts = [
        {
            "eval_time": f"{MINUTES}m",
            "alertname": f"Aioparallel{alert.name}",
            "exp_alerts": [expected(firing[alert.name], alert.severity, alert.summary, alert.remedy)]
            if alert.name in firing
            else [],
        }
        for alert in ALERTS
    ]
    assert firing.keys() <= {alert.name for alert in ALERTS}
    test = {"interval": "1m", "input_series": series_of({**HEALTHY, **changed}), "alert_rule_test": alerts}
    file = tmp_path / "test.yml"
    file.write_text(yaml.safe_dump({"rule_files": [str(RULES)], "evaluation_interval": "1m", "tests": [test]}))
    check("test", "rules", str(file))
