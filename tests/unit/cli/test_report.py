from __future__ import annotations

from collections import Counter
from dataclasses import replace
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from aioparallel.cli.demo.checks import Observed
from aioparallel.cli.demo.cluster import PartitionOffsets
from aioparallel.cli.demo.events import Place
from aioparallel.cli.demo.report import DemoResult, enriched_places, show

KEYS: dict[Place, bytes | None] = {Place(0, 0): b"a", Place(0, 1): None}
FINE = Observed(calls=2, records=2, duplicates=0, lost=0, key_order_violations=0, seconds=0.5)
GOOD = DemoResult(
    keys=KEYS,
    plain=replace(FINE, seconds=20.0),
    handler=FINE,
    service=FINE,
    lines=Counter(KEYS.keys()),
    offsets=[PartitionOffsets(0, 2, 2)],
    kills=0,
    kills_asked=0,
)


def printed(outcome: DemoResult) -> str:
    """What is shown, without colours."""
    output = StringIO()
    show(outcome, Console(file=output, width=120, color_system=None))
    return output.getvalue()


def test_everything_held() -> None:
    """All checks pass, the speed-up is the quotient of the rates, and it says so without colours."""
    assert GOOD.passed
    assert GOOD.speed_up == pytest.approx(40.0)
    text = printed(GOOD)
    assert "40.0" in text
    assert text.count("PASS") == len(GOOD.checks) == 4
    assert "FAIL" not in text


@pytest.mark.parametrize(
    ("broken", "promise"),
    [
        (replace(GOOD, handler=replace(FINE, lost=1)), "no record lost"),
        (replace(GOOD, service=replace(FINE, lost=1)), "no record lost"),
        (replace(GOOD, lines=Counter([Place(0, 0)])), "no record lost"),
        (replace(GOOD, handler=replace(FINE, key_order_violations=1)), "order of every key, as the handler saw it"),
        (replace(GOOD, service=replace(FINE, key_order_violations=1)), "order of every key, as the service saw it"),
        (replace(GOOD, offsets=[PartitionOffsets(0, 1, 2)]), "committed offsets = end offsets"),
        (replace(GOOD, offsets=[PartitionOffsets(0, None, 2)]), "committed offsets = end offsets"),
        (replace(GOOD, kills=2, kills_asked=3), "consumer killed on the way"),
    ],
)
def test_each_broken_promise_fails_its_check(broken: DemoResult, promise: str) -> None:
    """One broken promise fails exactly its own check, and with it the demo."""
    assert [check.promise for check in broken.checks if not check.passed] == [promise]
    assert not broken.passed
    assert printed(broken).count("FAIL") == 1


def test_partition_behind_its_end_is_named() -> None:
    """The figures say which partition was not committed to its end, and how far it is."""
    (check,) = [check for check in replace(GOOD, offsets=[PartitionOffsets(0, 1, 2)]).checks if not check.passed]
    assert check.figures == "0 of 1 partitions at their end: 0 at 1 of 2"


def test_duplicates_are_counted_and_no_failure() -> None:
    """Delivery is at least once: what ran again is counted and passes."""
    outcome = replace(GOOD, handler=replace(FINE, duplicates=7), lines=Counter({Place(0, 0): 4, Place(0, 1): 1}))
    assert outcome.passed
    assert outcome.repeated_lines == 3
    assert "7" in printed(outcome)


def test_seconds_of_a_killed_consumer_are_explained() -> None:
    """With kills the table says that the seconds include the waiting."""
    assert "waiting, after each kill" in printed(replace(GOOD, kills=3, kills_asked=3))


def test_lines_are_counted_by_record(tmp_path: Path) -> None:
    """The file is read by the place of the record in each line."""
    path = tmp_path / "enriched.jsonl"
    path.write_text('{"partition":1,"offset":2,"run":0}\n{"partition":1,"offset":2,"run":1}\n')
    assert enriched_places(path) == {Place(1, 2): 2}
