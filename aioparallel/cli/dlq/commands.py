"""The four commands. What they do stands beside this file; it is imported when a command runs."""

from __future__ import annotations

from typing import Annotated, Final

import typer

from aioparallel.cli.dlq import options as o
from aioparallel.cli.dlq.session import require_consent, run_command

__all__ = ["dlq"]

GROUP: Final = "aioparallel-dlq"
SERVERS: Final = "localhost:9092"

dlq = typer.Typer(
    name="dlq",
    no_args_is_help=True,
    rich_markup_mode="markdown",
    context_settings={"help_option_names": ["-h", "--help"]},
)


@dlq.callback()
def about() -> None:
    """Dead letters: look at them, send them back, or put them aside.

    A record that its handler could not handle stands in a topic such as `orders.dlq`, unchanged, with what went wrong
    in its headers. **list** and **show** tell what is there; **replay** sends letters to where they came from, and
    **drop** sends nothing. Both settle a letter: it is listed no more, and a second replay does not send it again.

    Which letters are settled is remembered by a consumer group of these commands (`--group`), since Kafka
    cannot take a record out of the middle of a log. All four take the same options for *which* letters.

    **Examples**

    - `aioparallel dlq list orders.dlq`

    - `aioparallel dlq show orders.dlq --partition 0 --offset 17`

    - `aioparallel dlq replay orders.dlq --error TimeoutError --since 2h`

    - `aioparallel dlq drop orders.dlq --until 30d --delete`
    """


@dlq.command("list")
def list_command(
    topic: o.TopicArgument,
    partition: o.PartitionOption = None,
    offset: o.OffsetOption = None,
    offsets: o.OffsetsOption = None,
    origin: o.OriginOption = None,
    error: o.ErrorOption = None,
    since: o.SinceOption = None,
    until: o.UntilOption = None,
    key: o.KeyOption = None,
    limit: o.LimitOption = None,
    newest: o.NewestOption = None,
    everything: o.AllOption = False,
    as_json: o.JsonOption = False,
    bootstrap_servers: o.BootstrapOption = SERVERS,
    client_option: o.ClientOption = None,
    group: o.GroupOption = GROUP,
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
    which = o.Which(partition, offset, offsets, origin, error, since, until, key, limit, newest)
    where = o.Where(topic, bootstrap_servers, group, client_option)
    from aioparallel.cli.dlq.running import run_list  # noqa: PLC0415 - brings the Kafka client

    run_command(run_list(where, which, everything=everything, as_json=as_json))


@dlq.command("show")
def show_command(
    topic: o.TopicArgument,
    partition: o.PartitionOption = None,
    offset: o.OffsetOption = None,
    offsets: o.OffsetsOption = None,
    origin: o.OriginOption = None,
    error: o.ErrorOption = None,
    since: o.SinceOption = None,
    until: o.UntilOption = None,
    key: o.KeyOption = None,
    limit: o.LimitOption = None,
    newest: o.NewestOption = None,
    everything: o.AllOption = False,
    raw: Annotated[
        bool,
        typer.Option(
            "--raw",
            help="Write only the value, byte by byte, to standard output; for exactly one letter.",
            rich_help_panel=o.HOW,
        ),
    ] = False,
    as_json: o.JsonOption = False,
    bootstrap_servers: o.BootstrapOption = SERVERS,
    client_option: o.ClientOption = None,
    group: o.GroupOption = GROUP,
) -> None:
    """Show everything about letters: error and traceback, headers, key and value.

    The newest open letter, unless others are selected. JSON is laid out, other text shown as it is, and of anything
    else the first 512 bytes are dumped.

    **Examples**

    - `aioparallel dlq show orders.dlq`: the newest

    - `aioparallel dlq show orders.dlq --error ValueError --limit 1`: the oldest with that error

    - `aioparallel dlq show orders.dlq --partition 0 --offset 17 --raw > value.bin`
    """
    which = o.Which(partition, offset, offsets, origin, error, since, until, key, limit, newest)
    where = o.Where(topic, bootstrap_servers, group, client_option)
    from aioparallel.cli.dlq.running import run_show  # noqa: PLC0415 - brings the Kafka client

    run_command(run_show(where, which, everything=everything, as_json=as_json, raw=raw))


@dlq.command("replay")
def replay_command(
    topic: o.TopicArgument,
    partition: o.PartitionOption = None,
    offset: o.OffsetOption = None,
    offsets: o.OffsetsOption = None,
    origin: o.OriginOption = None,
    error: o.ErrorOption = None,
    since: o.SinceOption = None,
    until: o.UntilOption = None,
    key: o.KeyOption = None,
    limit: o.LimitOption = None,
    newest: o.NewestOption = None,
    to: Annotated[
        str | None,
        typer.Option(metavar="TOPIC", help="Send to this topic, not to where each came from.", rich_help_panel=o.HOW),
    ] = None,
    same_partition: Annotated[
        bool,
        typer.Option(
            "--same-partition",
            help="Send to the partition each came from; else its key decides.",
            rich_help_panel=o.HOW,
        ),
    ] = False,
    no_mark: Annotated[
        bool,
        typer.Option(
            "--no-mark",
            help="Settle nothing: the letters stay open, and are sent again the next time.",
            rich_help_panel=o.HOW,
        ),
    ] = False,
    dry_run: o.DryRunOption = False,
    yes: o.YesOption = False,
    bootstrap_servers: o.BootstrapOption = SERVERS,
    client_option: o.ClientOption = None,
    group: o.GroupOption = GROUP,
) -> None:
    """Send open letters back to the topic they came from, and settle them. All of them unless some are selected.

    Key, value and the record's own headers are as they were; the timestamp is the time of sending. The letters of a
    partition are sent in its order, and each is settled once the broker has acknowledged it: never before. If it is
    interrupted, run it again; what was settled is not sent twice.

    The exit code is 1 when a letter could not be sent or settled.

    **Examples**

    - `aioparallel dlq replay orders.dlq --dry-run`: what would be sent where

    - `aioparallel dlq replay orders.dlq --limit 10`: the ten oldest first

    - `aioparallel dlq replay orders.dlq --error TimeoutError --yes`

    - `aioparallel dlq replay orders.dlq --to orders.repair --no-mark`
    """
    which = o.Which(partition, offset, offsets, origin, error, since, until, key, limit, newest)
    require_consent(yes=yes, dry_run=dry_run)
    where = o.Where(topic, bootstrap_servers, group, client_option)
    from aioparallel.cli.dlq.running import How, run_replay  # noqa: PLC0415 - brings the Kafka client

    how = How(ask=not yes, dry_run=dry_run, to=to, same_partition=same_partition, mark=not no_mark)
    run_command(run_replay(where, which, how))


@dlq.command("drop")
def drop_command(
    topic: o.TopicArgument,
    partition: o.PartitionOption = None,
    offset: o.OffsetOption = None,
    offsets: o.OffsetsOption = None,
    origin: o.OriginOption = None,
    error: o.ErrorOption = None,
    since: o.SinceOption = None,
    until: o.UntilOption = None,
    key: o.KeyOption = None,
    limit: o.LimitOption = None,
    newest: o.NewestOption = None,
    delete: Annotated[
        bool,
        typer.Option(
            "--delete",
            help="Then have Kafka delete what is settled: in each partition everything before the first open letter. "
            "That is for good.",
            rich_help_panel=o.HOW,
        ),
    ] = False,
    dry_run: o.DryRunOption = False,
    yes: o.YesOption = False,
    bootstrap_servers: o.BootstrapOption = SERVERS,
    client_option: o.ClientOption = None,
    group: o.GroupOption = GROUP,
) -> None:
    """Settle open letters without sending them. All of them unless some are selected.

    They are listed no more and never replayed, and stand in the topic until Kafka's retention takes them, or
    `--delete` does; `list --all` and `show --all` still find them.

    **Examples**

    - `aioparallel dlq drop orders.dlq --partition 0 --offset 17`

    - `aioparallel dlq drop orders.dlq --until 30d --dry-run`

    - `aioparallel dlq drop orders.dlq --error ValueError --delete`
    """
    which = o.Which(partition, offset, offsets, origin, error, since, until, key, limit, newest)
    require_consent(yes=yes, dry_run=dry_run)
    where = o.Where(topic, bootstrap_servers, group, client_option)
    from aioparallel.cli.dlq.running import How, run_drop  # noqa: PLC0415 - brings the Kafka client

    run_command(run_drop(where, which, How(ask=not yes, dry_run=dry_run, delete=delete)))
