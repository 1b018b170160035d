"""``aioparallel dlq replay`` and ``drop``: plan, ask, act, and report."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from typing import Final

import aiokafka.errors as kafka
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from aioparallel.cli.console import confirm, counted, make_console, plain_text, require_consent, say
from aioparallel.cli.dlq.commands import Access, Dropping, Replaying
from aioparallel.cli.dlq.dead_letter_topic import OpenTopic, open_topic
from aioparallel.cli.dlq.planning import Chosen, Plan, make_plan
from aioparallel.cli.dlq.replaying import Destination, Replay, Replayed
from aioparallel.cli.dlq.selecting import Selection
from aioparallel.cli.dlq.whole_records import Sources
from aioparallel.cli.reading_client import CONNECT_TIMEOUT, REQUEST_TIMEOUT, STOP_TIMEOUT
from aioparallel.clients.aiokafka import AiokafkaProducer
from aioparallel.clients.aiokafka.admin import Admin
from aioparallel.group.client import Span
from aioparallel.records.errors import ClientError
from aioparallel.records.record import TopicPartition

__all__ = ["drop_letters", "replay_letters"]

DELIVERY_TIMEOUT: Final = 60.0  # seconds
_LARGEST_REQUEST: Final = {"max_request_size": 96 * 1024 * 1024}  # brokers accept at most 100 MiB


async def replay_letters(topic: str, which: Selection, how: Replaying, where: Access) -> bool:
    """``aioparallel dlq replay``."""
    require_consent("--yes skips the question, --dry-run only prints", how.yes or how.dry_run)
    async with planned(topic, which, where, mark=not how.no_mark) as (opened, plan):
        if how.dry_run:
            tell(plan, topic, lambda one: f"sent to {how.to or one.origin.topic}")
            say(f"Would replay {counted(len(plan.letters), 'letter')}. Nothing was done.")
            return tell_refused(plan.refused)
        if not plan.letters:
            say(f"Nothing to replay: no open letter, skipped {plan.already_settled:,} already settled.")
            return tell_refused(plan.refused)
        if not (how.yes or confirm(f"Replay {replay_question(plan, topic, how)}?")):
            say("Nothing was done.")
            return True
        if not how.no_mark:
            await take(opened, plan)
        result = await replay(opened, plan, how, where)
        passed = not result.failed and not result.full and not opened.marks.unsaved
        return tell_refused(plan.refused) and passed


async def drop_letters(topic: str, which: Selection, how: Dropping, where: Access) -> bool:
    """``aioparallel dlq drop``."""
    require_consent("--yes skips the question, --dry-run only prints", how.yes or how.dry_run)
    async with planned(topic, which, where, mark=True) as (opened, plan):
        if how.dry_run:
            tell(plan, topic, lambda _one: "dropped")
            say(f"Would drop {counted(len(plan.letters), 'letter')}. Nothing was done.")
        else:
            if (question := drop_question(plan, topic, how)) and not (how.yes or confirm(question)):
                say("Nothing was done.")
                return True
            if plan.letters:
                await take(opened, plan)
                for chosen in plan.letters:
                    opened.marks[chosen.partition].settle(chosen.offset)
                await opened.marks.save(plan.by_partition())
            say(f"Dropped {counted(len(plan.letters), 'letter')}, skipped {plan.already_settled:,} already settled.")
        if how.delete:
            await delete(opened, plan, where, dry_run=how.dry_run)
        return tell_refused(plan.refused)


@asynccontextmanager
async def planned(topic: str, which: Selection, where: Access, *, mark: bool) -> AsyncIterator[tuple[OpenTopic, Plan]]:
    """The topic and the plan. Raises MarksRefused if it is unknown which letters are settled."""
    async with open_topic(topic, which.partition, where) as opened:
        opened.marks.check_readable()
        async with opened.read(opened.spans(settled_too=True)) as reads:
            plan = await make_plan(reads, opened.marks, which)
        if mark:
            plan.refuse_what_does_not_fit(opened.marks)
        yield opened, plan


async def take(topic: OpenTopic, plan: Plan) -> None:
    """Become the member that settles letters of this topic. Raises MarksRefused."""
    await topic.hold.take(topic.client)
    await topic.marks.check_writable(plan.by_partition())


async def replay(topic: OpenTopic, plan: Plan, how: Replaying, where: Access) -> Replayed:
    """The second pass, with a progress bar on a terminal. Reports the result also if it is interrupted."""
    chosen = plan.by_partition()
    spans = {number: Span(min(offsets), max(offsets) + 1) for number, offsets in chosen.items()}
    producer = AiokafkaProducer(
        where.bootstrap_servers,
        delivery_timeout=DELIVERY_TIMEOUT,
        consumer_options=topic.options,
        producer_options=_LARGEST_REQUEST,
    )
    try:
        await producer.start(CONNECT_TIMEOUT)
        targets = {how.to} if how.to else set(plan.origins())
        exists = await producer.partitions(targets, REQUEST_TIMEOUT)
        marks = None if how.no_mark else topic.marks
        destination = Destination(how.to, how.same_partition, exists)
        replaying = Replay(producer, marks, destination, whole=Sources(topic.client).whole)
        try:
            with progressing(len(plan.letters)) as replaying.progress:
                async with topic.read(spans) as reads:
                    await replaying.run(reads, chosen)
        finally:
            tell_replayed(replaying.result, plan, topic)
    finally:
        await producer.stop(STOP_TIMEOUT)
    return replaying.result


async def delete(topic: OpenTopic, plan: Plan, where: Access, *, dry_run: bool) -> None:
    """Delete everything before the first open letter of each partition, and report how much."""
    planned_too = plan.by_partition() if dry_run else {}
    firsts = {
        one.partition: first
        for one in topic.marks
        if (first := one.first_open(planned_too.get(one.partition.partition, ())))
        > topic.beginnings[one.partition.partition]
    }
    if not firsts:
        say("Nothing to delete: each partition begins with an open letter, or is empty.")
        return
    begins = firsts if dry_run else await delete_records(topic, firsts, where)
    for partition, begin in sorted(begins.items()):
        before = topic.beginnings[partition.partition]
        say(
            f"{partition}: offsets {before:,} to {begin - 1:,} {'would be' if dry_run else 'are'} deleted "
            f"({begin - before:,} offsets); {'it would begin' if dry_run else 'it begins'} at {begin:,}."
        )


async def delete_records(
    topic: OpenTopic, before: Mapping[TopicPartition, int], where: Access
) -> dict[TopicPartition, int]:
    """Have Kafka delete the records below an offset in each partition. Returns where each log begins now."""
    try:
        async with Admin(where.bootstrap_servers, topic.options, timeout=REQUEST_TIMEOUT) as admin:
            return await admin.delete_records(before)
    except ClientError as error:
        if isinstance(error.__cause__, kafka.PolicyViolationError):
            raise ClientError(
                f"{topic.name}: the broker cannot delete records there, as cleanup.policy does not contain delete; "
                "what was dropped stays marked as settled"
            ) from error
        raise


def replay_question(plan: Plan, topic: str, how: Replaying) -> str:
    """What will be sent, and where to."""
    origins = plan.origins()
    if how.to or len(origins) == 1:
        targets = how.to or next(iter(origins))
    else:
        targets = ", ".join(f"{name} ({count:,})" for name, count in origins.most_common())
    return f"{counted(len(plan.letters), 'open letter')} of {topic} to {targets}"


def drop_question(plan: Plan, topic: str, how: Dropping) -> str | None:
    """What will be dropped and deleted; None for nothing."""
    if plan.letters:
        ends = ", and delete what is settled for good?" if how.delete else "?"
        return f"Drop {counted(len(plan.letters), 'open letter')} of {topic}{ends}"
    return f"Delete what is settled in {topic}, for good?" if how.delete else None


def tell(plan: Plan, topic: str, what: Callable[[Chosen], str]) -> None:
    """Print a line for each letter of a dry run."""
    console = make_console()
    for one in plan.letters:
        origin = f"{one.origin.topic}-{one.origin.partition}@{one.origin.offset}"
        line = f"{topic}-{one.partition}@{one.offset} ({one.error}, from {origin}) would be {what(one)}"
        console.print(plain_text(line), markup=False, highlight=False, soft_wrap=True)


def tell_replayed(result: Replayed, plan: Plan, topic: OpenTopic) -> None:
    """Report the counts, the reasons of failures, and what was sent without being marked."""
    failed = result.failed.total()
    say(f"Replayed {result.replayed:,}, failed {failed:,}, skipped {plan.already_settled:,} already settled.")
    left = len(plan.letters) - result.replayed - failed - sum(count for _, count in result.full.values())
    if left:
        say(f"Not sent, as it was interrupted: {left:,}. They stay open; run it again.")
    if result.without_origin:
        say(
            f"{counted(result.without_origin, 'letter')} sent without the header of the original place, as the record "
            "with it is too large for its topic. Its Idempotency-Key is a different one now."
        )
    for reason, count in result.failed.most_common():
        say(f"  {counted(count, 'letter')} failed: {reason}")
    tell_refused(result.full)
    for number, offsets in topic.marks.unsaved.items():
        listed = ", ".join(map(str, offsets[:20])) + (f" and {len(offsets) - 20:,} more" if len(offsets) > 20 else "")
        say(
            f"SENT BUT NOT MARKED in {topic.name}-{number}: offsets {listed}. They are still open, and would be sent "
            "again; drop them, or replay around them."
        )


def tell_refused(refused: Mapping[int, tuple[str, int]]) -> bool:
    """Report partitions that were left alone. Returns whether there were none."""
    for reason, count in refused.values():
        if count:
            say(f"{counted(count, 'letter')} left alone. {reason}.")
    return not refused


@contextmanager
def progressing(total: int) -> Iterator[Callable[[int], None]]:
    """A bar on a terminal, nothing elsewhere. Call the result with the number of letters done."""
    console = make_console(stderr=True)
    columns = (TextColumn("replaying"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, disable=not console.is_terminal) as bar:
        task = bar.add_task("", total=total)
        yield lambda more: bar.advance(task, more)
