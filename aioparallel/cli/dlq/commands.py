"""The four commands: their help and their options. What they do is imported when one runs."""

from __future__ import annotations

from cyclopts import App

from aioparallel.cli.dlq.options import Access, Dropping, Looking, Replaying, Showing, Topic
from aioparallel.cli.dlq.selecting import Selection

__all__ = ["dlq"]

dlq = App(
    name="dlq",
    help="""Dead letters: look at them, send them back, or put them aside.

    A record that its handler could not handle stands in a topic such as `orders.dlq`, unchanged, with what went wrong
    in its headers. **list** and **show** tell what is there; **replay** sends letters to where they came from, and
    **drop** sends nothing. Both settle a letter: it is listed no more, and a second replay does not send it again.

    Which letters are settled is remembered by a consumer group of these commands (`--group`), since Kafka cannot take
    a record out of the middle of a log. All four take the same options for *which* letters.

    **Examples**

    - `aioparallel dlq list orders.dlq`
    - `aioparallel dlq show orders.dlq --partition 0 --offset 17`
    - `aioparallel dlq replay orders.dlq --error TimeoutError --since 2h`
    - `aioparallel dlq drop orders.dlq --until 30d --delete`
    """,
)


@dlq.command(name="list")
async def list_command(
    topic: Topic, /, *, which: Selection = Selection(), how: Looking = Looking(), where: Access = Access()
) -> None:
    """Show a line for each open letter: where it is, when and why it failed, where it came from.

    The newest 100 unless a number is asked for, the newest at the bottom; below them how many there are, by error.
    With `--json` all of them, in the order of the log.

    **Examples**

    - `aioparallel dlq list orders.dlq`
    - `aioparallel dlq list orders.dlq --error ValueError --since 3h`
    - `aioparallel dlq list orders.dlq --origin orders:3 --all`
    - `aioparallel dlq list orders.dlq --json | jq -r .error.type | sort | uniq -c`
    """
    from aioparallel.cli.dlq.looking import list_letters  # noqa: PLC0415 - brings the Kafka client

    await list_letters(topic, which, how, where)


@dlq.command(name="show")
async def show_command(
    topic: Topic, /, *, which: Selection = Selection(), how: Showing = Showing(), where: Access = Access()
) -> None:
    """Show everything about letters: error and traceback, headers, key and value.

    The newest open letter, unless others are selected. JSON is laid out, other text shown as it is, and of anything
    else the first 512 bytes are dumped. Of a record that its topic of letters did not take for its size, what is not in
    the letter is read from where the record stands, while it does.

    **Examples**

    - `aioparallel dlq show orders.dlq`: the newest
    - `aioparallel dlq show orders.dlq --error ValueError --limit 1`: the oldest with that error
    - `aioparallel dlq show orders.dlq --partition 0 --offset 17 --raw > value.bin`
    """
    from aioparallel.cli.dlq.looking import show_letters  # noqa: PLC0415 - brings the Kafka client

    await show_letters(topic, which, how, where)


@dlq.command(name="replay")
async def replay_command(
    topic: Topic, /, *, which: Selection = Selection(), how: Replaying = Replaying(), where: Access = Access()
) -> bool:
    """Send open letters back to the topic they came from, and settle them. All of them unless some are selected.

    Key, value and the record's own headers are as they were, with one more that says where it stood first; the
    timestamp is the time of sending. The letters of a partition are sent in its order, and each is settled once the
    broker has acknowledged it: never before. If it is interrupted, run it again; what was settled is not sent twice.
    A letter that is without a part of its record is completed from where that stands; where it is gone, it is not sent.

    The exit code is 1 when a letter could not be sent or settled.

    **Examples**

    - `aioparallel dlq replay orders.dlq --dry-run`: what would be sent where
    - `aioparallel dlq replay orders.dlq --limit 10`: the ten oldest first
    - `aioparallel dlq replay orders.dlq --error TimeoutError --yes`
    - `aioparallel dlq replay orders.dlq --to orders.repair --no-mark`
    """
    from aioparallel.cli.dlq.settling import replay_letters  # noqa: PLC0415 - brings the Kafka client

    return await replay_letters(topic, which, how, where)


@dlq.command(name="drop")
async def drop_command(
    topic: Topic, /, *, which: Selection = Selection(), how: Dropping = Dropping(), where: Access = Access()
) -> bool:
    """Settle open letters without sending them. All of them unless some are selected.

    They are listed no more and never replayed, and stand in the topic until Kafka's retention takes them, or
    `--delete` does; `list --all` and `show --all` still find them.

    **Examples**

    - `aioparallel dlq drop orders.dlq --partition 0 --offset 17`
    - `aioparallel dlq drop orders.dlq --until 30d --dry-run`
    - `aioparallel dlq drop orders.dlq --error ValueError --delete`
    """
    from aioparallel.cli.dlq.settling import drop_letters  # noqa: PLC0415 - brings the Kafka client

    return await drop_letters(topic, which, how, where)
