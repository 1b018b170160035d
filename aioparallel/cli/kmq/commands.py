"""The two commands: their options and help. The code is imported when one runs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Final

from cyclopts import App, Group, Parameter

from aioparallel.cli.cluster import WHERE, Cluster
from aioparallel.cli.meanings import in_class, means
from aioparallel.config.policies import TooLargeLetters

__all__ = ["QueueAccess", "Reporting", "Trackers", "kmq"]

HOW: Final = Group("How", sort_key=2)
TRACKER: Final = in_class("queues/kmq/tracker.py", "RedeliveryTracker")

Queue = Annotated[str, Parameter(help="The topic of the queue, such as `jobs`.")]


@Parameter(name="*", group=WHERE)
@means(TRACKER)
@dataclass(frozen=True, kw_only=True, slots=True)
class QueueAccess(Cluster):
    """Options to reach the cluster, and the queue's marker topic."""

    marker_topic: str | None = None
    group: Annotated[str | None, Parameter(metavar="GROUP")] = None
    """The group of the trackers; not given: the name of the queue with `-trackers`, or for status the group that has
    committed. Trackers inside `KmqConsumer` have its group with `-redelivery`."""


@Parameter(name="*", group=HOW)
@means(TRACKER)
@dataclass(frozen=True, kw_only=True, slots=True)
class Trackers:
    """Options of redelivery."""

    dead_letter: str | None = None
    dead_letter_too_large: TooLargeLetters = "drop_value"
    max_redeliveries: int = 3
    use_now_after: float = 1.0
    max_request_size: int | None = None
    """Bytes of the largest record that is sent again; not given: 1 MiB."""


@Parameter(name="*", group=HOW)
@dataclass(frozen=True, kw_only=True, slots=True)
class Reporting:
    """Options of status."""

    watch: Annotated[bool, Parameter(alias="-w")] = False
    """Repeat until Ctrl-C."""
    every: float = 2.0
    """With --watch: seconds between two updates."""
    as_json: Annotated[bool, Parameter(name="--json")] = False
    """One JSON object a line instead, for scripts: one for each partition."""


kmq = App(
    name="kmq",
    help="""Queues with redelivery markers: run a tracker, see open records.

    A consumer leases each record of such a queue for some time. When it starts a record, it writes a start marker into
    the marker topic, and an end marker when the record was handled; a *tracker* delivers again what was started and not
    ended in time. Each `KmqConsumer` runs a tracker unless `tracker=False`: then run some with **tracker**.

    **Examples**

    - `aioparallel kmq status jobs`
    - `aioparallel kmq tracker jobs`
    """,
)


@kmq.command(name="tracker")
def tracker_command(queue: Queue, /, *, how: Trackers = Trackers(), where: QueueAccess = QueueAccess()) -> None:
    """Deliver again what was started and not ended in time, until Ctrl-C or SIGTERM.

    Trackers of one group share the partitions. If consumers run trackers of their own (any `KmqConsumer` without
    `tracker=False`), use the same `--group`, or everything is delivered again twice. Prints a line when records were
    delivered again or dead-lettered.

    **Examples**

    - `aioparallel kmq tracker jobs`
    - `aioparallel kmq tracker jobs --max-redeliveries 10 --dead-letter jobs.dlq`
    """
    from aioparallel.cli.kmq.tracking import track  # noqa: PLC0415 - brings the Kafka client

    track(queue, how, where)


@kmq.command(name="status")
async def status_command(queue: Queue, /, *, how: Reporting = Reporting(), where: QueueAccess = QueueAccess()) -> None:
    """Show the open records of a queue, which were started and have not ended, by partition: how many and since when.

    Reads the markers from where the trackers have committed. If no group of trackers has committed, it reads from the
    beginning of the marker topic. Records that were not read yet are not included: they are the lag of the
    consumers' group.

    **Examples**

    - `aioparallel kmq status jobs`
    - `aioparallel kmq status jobs --watch`
    - `aioparallel kmq status jobs --json | jq .open`
    """
    from aioparallel.cli.kmq.status import show_status  # noqa: PLC0415 - brings the Kafka client

    await show_status(queue, how, where)
