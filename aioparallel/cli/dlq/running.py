"""What each command does, from the options as typed to the last line printed."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, aclosing, contextmanager
from dataclasses import dataclass, replace
from typing import Final

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from aioparallel.cli.dlq.dropping import delete_settled, drop_letters
from aioparallel.cli.dlq.listing import list_letters, print_json
from aioparallel.cli.dlq.opening import REQUEST_TIMEOUT, Access, OpenTopic, open_topic, parse_client_options
from aioparallel.cli.dlq.options import Where, Which
from aioparallel.cli.dlq.planning import Plan, make_plan
from aioparallel.cli.dlq.reading import Read, read_topic
from aioparallel.cli.dlq.replaying import Destination, Replay, Replayed
from aioparallel.cli.dlq.selecting import Selection, parse_offsets, parse_origin, parse_time
from aioparallel.cli.dlq.session import confirm, make_console
from aioparallel.cli.dlq.showing import selected, show_letters, write_raw
from aioparallel.cli.dlq.wording import counted, plain_text
from aioparallel.delivery.producer import Producer
from aioparallel.errors import ConfigurationError
from aioparallel.group.client import Span

__all__ = ["How", "run_drop", "run_list", "run_replay", "run_show"]

DELIVERY_TIMEOUT: Final = 60.0
CONNECT_TIMEOUT: Final = 10.0
STOP_TIMEOUT: Final = 5.0
# Seconds.


@dataclass(frozen=True, slots=True)
class How:
    """The options of replay and drop, as typed."""

    ask: bool
    dry_run: bool
    to: str | None = None
    same_partition: bool = False
    mark: bool = True
    delete: bool = False


def selection_of(which: Which, now: float) -> Selection:
    """The options that choose letters, understood. Raises ConfigurationError."""
    return Selection(
        partitions=tuple(which.partition or ()),
        offsets=parse_offsets(which.offset, which.offsets),
        origin=parse_origin(which.origin),
        error=which.error,
        since=parse_time("--since", which.since, now),
        until=parse_time("--until", which.until, now),
        key=None if which.key is None else which.key.encode(),
        oldest=which.limit,
        newest=which.newest,
    )


def opened(where: Where, selection: Selection) -> AbstractAsyncContextManager[OpenTopic]:
    """The topic, connected to. Raises ConfigurationError for a wrong --client-option."""
    access = Access(where.bootstrap_servers, where.group, parse_client_options(where.client_option or ()))
    return open_topic(where.topic, selection.partitions, access)


def reading(topic: OpenTopic, spans: Mapping[int, Span]) -> aclosing[AsyncGenerator[Read, None]]:
    """The records of these spans; ``async with`` closes the connection."""
    return aclosing(read_topic(topic.topic, spans, topic.access.bootstrap_servers, topic.access.options))


async def run_list(where: Where, which: Which, *, everything: bool, as_json: bool) -> bool:
    """``aioparallel dlq list``."""
    selection = selection_of(which, time.time())
    async with opened(where, selection) as topic:
        warn_of_problems(topic)
        show = print_json if as_json else list_letters
        async with reading(topic, topic.spans(settled_too=everything, within=selection.offsets)) as reads:
            await show(reads, topic, selection, make_console(), everything=everything)
    return True


async def run_show(where: Where, which: Which, *, everything: bool, as_json: bool, raw: bool) -> bool:
    """``aioparallel dlq show``."""
    if raw and as_json:
        raise ConfigurationError("--raw", "--json", "one of the two")
    selection = selection_of(which, time.time())
    if not selection.has_criteria and not selection.has_number:
        selection = replace(selection, newest=1)
    async with opened(where, selection) as topic:
        warn_of_problems(topic)
        spans = topic.spans(settled_too=everything, within=selection.offsets)
        async with (
            reading(topic, spans) as reads,
            aclosing(selected(reads, topic, selection, everything=everything)) as letters,
        ):
            if raw:
                await write_raw(letters)
            elif not await show_letters(letters, make_console(), as_lines=as_json):
                hint = "" if everything else "; --all looks among the settled ones, too"
                say(f"{topic.topic}: no {'' if everything else 'open '}letter matches{hint}.")
    return True


async def run_drop(where: Where, which: Which, how: How) -> bool:
    """``aioparallel dlq drop``."""
    selection = selection_of(which, time.time())
    async with opened(where, selection) as topic:
        plan = await planned(topic, selection, mark=True)
        if how.dry_run:
            tell(plan, topic, lambda _chosen: "dropped")
        if plan.letters and not how.dry_run:
            question = f"Drop {counted(len(plan.letters), 'open letter')} of {topic.topic}" + (
                ", and delete what is settled for good?" if how.delete else "?"
            )
            if how.ask and not confirm(question):
                say("Nothing was done.")
                return True
            await topic.hold.take()
            await topic.marks.check_writable({chosen.partition for chosen in plan.letters})
            await drop_letters(plan, topic.marks)
        elif (
            how.delete
            and not how.dry_run
            and how.ask
            and not confirm(f"Delete what is settled in {topic.topic}, for good?")
        ):
            say("Nothing was done.")
            return True
        if how.dry_run:
            say(f"Would drop {counted(len(plan.letters), 'letter')}. Nothing was done.")
        else:
            say(f"Dropped {counted(len(plan.letters), 'letter')}, skipped {plan.already_settled:,} already settled.")
        if how.delete:
            await delete(topic, plan, dry_run=how.dry_run)
    return tell_refused(plan.refused)


async def delete(topic: OpenTopic, plan: Plan, *, dry_run: bool) -> None:
    """Delete in each partition what stands before the first open letter, and say how much that was."""
    planned_too = plan.by_partition() if dry_run else {}
    firsts: dict[int, int] = {}
    for one in topic.marks:
        number = one.partition.partition
        first = one.first_open(planned_too.get(number, ()))
        if first > topic.beginnings[number]:
            firsts[number] = first
    if not firsts:
        say("Nothing to delete: each partition begins with an open letter, or is empty.")
        return
    begins = firsts if dry_run else await delete_settled(topic.topic, topic.access, firsts)
    for number, begin in sorted(begins.items()):
        before = topic.beginnings[number]
        say(
            f"{topic.topic}-{number}: offsets {before:,} to {begin - 1:,} "
            f"{'would be' if dry_run else 'are'} deleted ({begin - before:,} offsets); "
            f"{'it would begin' if dry_run else 'it begins'} at {begin:,}."
        )


async def run_replay(where: Where, which: Which, how: How) -> bool:
    """``aioparallel dlq replay``."""
    selection = selection_of(which, time.time())
    async with opened(where, selection) as topic:
        plan = await planned(topic, selection, mark=how.mark)
        if how.dry_run:
            tell(plan, topic, lambda origin: f"sent to {how.to or origin}")
            say(f"Would replay {counted(len(plan.letters), 'letter')}. Nothing was done.")
            return tell_refused(plan.refused)
        if not plan.letters:
            say(f"Nothing to replay: no open letter, skipped {plan.already_settled:,} already settled.")
            return tell_refused(plan.refused)
        if how.ask and not confirm(f"Replay {replay_question(plan, topic.topic, how)}?"):
            say("Nothing was done.")
            return True
        if how.mark:
            await topic.hold.take()
            await topic.marks.check_writable({chosen.partition for chosen in plan.letters})
        result = await replay(topic, plan, how)
        passed = not result.failed and not result.full and not topic.marks.unsaved
        return tell_refused(plan.refused) and passed


async def replay(topic: OpenTopic, plan: Plan, how: How) -> Replayed:
    """The second pass, with a bar on a terminal; says how it went even when it is cut short."""
    chosen = plan.by_partition()
    spans = {number: Span(min(offsets), max(offsets) + 1) for number, offsets in chosen.items()}
    producer = make_producer(topic.access)
    try:
        await producer.start(CONNECT_TIMEOUT)
        targets = {how.to} if how.to else set(plan.origins())
        exists = await producer.partitions(targets, REQUEST_TIMEOUT)
        replaying = Replay(producer, topic.marks if how.mark else None, Destination(how.to, how.same_partition, exists))
        try:
            with progressing(len(plan.letters)) as replaying.progress:
                async with reading(topic, spans) as reads:
                    await replaying.run(reads, chosen)
        finally:
            tell_replayed(replaying.result, plan, topic)
    finally:
        await producer.stop(STOP_TIMEOUT)
    return replaying.result


def make_producer(access: Access) -> Producer:
    """A producer that reaches the cluster the same way."""
    from aioparallel.clients.aiokafka.producer import AiokafkaProducer  # noqa: PLC0415 - replay alone needs it

    return AiokafkaProducer(
        access.bootstrap_servers,
        delivery_timeout=DELIVERY_TIMEOUT,
        consumer_options=access.options,
        producer_options={},
    )


async def planned(topic: OpenTopic, selection: Selection, *, mark: bool) -> Plan:
    """The first pass. Raises MarksRefused when it is not known what is settled."""
    topic.marks.check_readable()
    async with reading(topic, topic.spans(settled_too=True)) as reads:
        plan = await make_plan(reads, topic.marks, selection)
    if mark:
        plan.refuse_what_does_not_fit(topic.marks)
    return plan


def replay_question(plan: Plan, topic: str, how: How) -> str:
    """What is about to be sent, and where to."""
    letters = f"{counted(len(plan.letters), 'open letter')} of {topic} to"
    if how.to:
        return f"{letters} {how.to}"
    origins = plan.origins()
    if len(origins) == 1:
        return f"{letters} {next(iter(origins))}"
    return letters + " " + ", ".join(f"{name} ({count:,})" for name, count in origins.most_common())


def tell(plan: Plan, topic: OpenTopic, what: Callable[[str], str]) -> None:
    """A line for each letter of a dry run."""
    console = make_console()
    for one in plan.letters:
        origin = f"{one.origin.topic}-{one.origin.partition}@{one.origin.offset}"
        line = (
            f"{topic.topic}-{one.partition}@{one.offset} ({one.error}, from {origin}) would be {what(one.origin.topic)}"
        )
        console.print(plain_text(line), markup=False, highlight=False, soft_wrap=True)


def tell_replayed(result: Replayed, plan: Plan, topic: OpenTopic) -> None:
    """The counts, the reasons of failures, and what is not marked although it was sent."""
    failed = sum(result.failed.values())
    say(f"Replayed {result.replayed:,}, failed {failed:,}, skipped {plan.already_settled:,} already settled.")
    left = len(plan.letters) - result.replayed - failed - sum(count for _, count in result.full.values())
    if left:
        say(f"Not sent, as it was cut short: {left:,}. They stay open; run it again.")
    for reason, count in result.failed.most_common():
        say(f"  {counted(count, 'letter')} failed: {reason}")
    tell_refused(result.full)
    for number, offsets in topic.marks.unsaved.items():
        listed = ", ".join(map(str, offsets[:20])) + (f" and {len(offsets) - 20:,} more" if len(offsets) > 20 else "")
        say(
            f"SENT BUT NOT MARKED in {topic.topic}-{number}: offsets {listed}. They are still open, and would be sent "
            "again; drop them, or replay around them."
        )


def tell_refused(refused: Mapping[int, tuple[str, int]]) -> bool:
    """Say which partitions were left alone and why; whether there were none."""
    for reason, count in refused.values():
        if count:
            say(f"{counted(count, 'letter')} left alone. {reason}.")
    return not refused


def warn_of_problems(topic: OpenTopic) -> None:
    """List and show go on without what they cannot read."""
    for one in topic.marks:
        if one.problem:
            say(f"WARNING {one.problem}; shown as open.")


def say(sentence: str) -> None:
    """To standard error, so that standard output holds letters only."""
    make_console(stderr=True).print(plain_text(sentence), markup=False, highlight=False, soft_wrap=True)


@contextmanager
def progressing(total: int) -> Iterator[Callable[[int], None]]:
    """A bar on a terminal, nothing anywhere else. What it gives is told how many more are done."""
    console: Console = make_console(stderr=True)
    columns = (TextColumn("replaying"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, disable=not console.is_terminal) as bar:
        task = bar.add_task("", total=total)
        yield lambda more: bar.advance(task, more)
