"""The two commands: their help and their options. What they do is imported when one runs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Final

from cyclopts import App, Group, Parameter

from aioparallel.cli.cluster import WHERE, Cluster
from aioparallel.cli.meanings import in_class, means
from aioparallel.policies import TooLargeLetters

__all__ = ["QueueAccess", "Reporting", "Trackers", "kmq"]

HOW: Final = Group("How", sort_key=2)
TRACKER: Final = in_class("queues/kmq/tracker.py", "RedeliveryTracker")

Queue = Annotated[str, Parameter(help="The topic of the queue, such as `jobs`.")]


@Parameter(name="*", group=WHERE)
@means(TRACKER)
@dataclass(frozen=True, kw_only=True, slots=True)
class QueueAccess(Cluster):
    """How the cluster is reached, and where the queue's markers are."""

    marker_topic: str | None = None
    group: Annotated[str | None, Parameter(metavar="GROUP")] = None
    """The group of the trackers; not given: the name of the queue with `-trackers`, as **tracker** has it. Those that
    run inside of `KmqConsumer` have its group with `-redelivery`."""


@Parameter(name="*", group=HOW)
@means(TRACKER)
@dataclass(frozen=True, kw_only=True, slots=True)
class Trackers:
    """How a tracker delivers again."""

    dead_letter: str | None = None
    dead_letter_too_large: TooLargeLetters = "drop_value"
    max_redeliveries: int = 3
    use_now_after: float = 1.0
    max_request_size: int | None = None
    """Bytes of the largest record that is sent again; not given: 1 MiB."""


@Parameter(name="*", group=HOW)
@dataclass(frozen=True, kw_only=True, slots=True)
class Reporting:
    """How status tells."""

    watch: Annotated[bool, Parameter(alias="-w")] = False
    """Go on, until Ctrl-C."""
    every: float = 2.0
    """With --watch: seconds between two looks."""
    as_json: Annotated[bool, Parameter(name="--json")] = False
    """One JSON object a line instead, for scripts: one for each partition."""


kmq = App(
    name="kmq",
    help="""Queues with redelivery markers: run a tracker, see what is open.

    A record of such a queue is somebody's for the time of a lease. Whoever begins it writes a start marker into the
    marker topic, and an end marker when it is handled; a *tracker* delivers again what was begun and not ended in time.
    Each `KmqConsumer` runs one, unless it is told not to: then run some with **tracker**.

    **Examples**

    - `aioparallel kmq status jobs --group workers-redelivery`
    - `aioparallel kmq tracker jobs`
    """,
)


@kmq.command(name="tracker")
def tracker_command(queue: Queue, /, *, how: Trackers = Trackers(), where: QueueAccess = QueueAccess()) -> None:
    """Deliver again what was begun and not ended in time, until Ctrl-C or SIGTERM.

    Any number of them share the partitions, in one group: beside consumers that run trackers of their own (any
    `KmqConsumer` without `tracker=False`), give it the `--group` of these, or everything is delivered again twice. A
    line is written when something was delivered again, or put away.

    **Examples**

    - `aioparallel kmq tracker jobs`
    - `aioparallel kmq tracker jobs --max-redeliveries 10 --dead-letter jobs.dlq`
    """
    from aioparallel.cli.kmq.tracking import track  # noqa: PLC0415 - brings the Kafka client

    track(queue, how, where)


@kmq.command(name="status")
async def status_command(queue: Queue, /, *, how: Reporting = Reporting(), where: QueueAccess = QueueAccess()) -> None:
    """Show which records of a queue somebody has, by partition: how many, since when, and until when.

    It reads the markers from where the trackers have committed, so give it their `--group`; where that has committed
    nothing, from the beginning of the marker topic. Records that nobody has read yet are not among them: they are the
    lag of the consumers' group.

    **Examples**

    - `aioparallel kmq status jobs --group workers-redelivery`
    - `aioparallel kmq status jobs --watch`
    - `aioparallel kmq status jobs --json | jq .open`
    """
    from aioparallel.cli.kmq.status import show_status  # noqa: PLC0415 - brings the Kafka client

    await show_status(queue, how, where)
