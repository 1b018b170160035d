"""The options that the commands share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Final, NamedTuple

import typer

__all__ = [
    "AllOption",
    "BootstrapOption",
    "ClientOption",
    "DryRunOption",
    "ErrorOption",
    "GroupOption",
    "JsonOption",
    "KeyOption",
    "LimitOption",
    "NewestOption",
    "OffsetOption",
    "OffsetsOption",
    "OriginOption",
    "PartitionOption",
    "SinceOption",
    "TopicArgument",
    "UntilOption",
    "Where",
    "Which",
    "YesOption",
]

WHICH: Final = "Which letters"
WHERE: Final = "Where"
HOW: Final = "How"

TopicArgument = Annotated[str, typer.Argument(help="The topic with the dead letters, such as `orders.dlq`.")]
BootstrapOption = Annotated[
    str,
    typer.Option(
        envvar="AIOPARALLEL_BOOTSTRAP_SERVERS",
        help="The brokers: host:port, several with commas.",
        rich_help_panel=WHERE,
    ),
]
ClientOption = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAME=VALUE",
        envvar="AIOPARALLEL_CLIENT_OPTIONS",
        help="An option of aiokafka's consumer by its name there, as in `security_protocol=SASL_SSL`, "
        "`sasl_mechanism=SCRAM-SHA-512`, `sasl_plain_username=me`. Repeatable; several in the variable are separated "
        "by spaces, and a password is better there than here.",
        rich_help_panel=WHERE,
    ),
]
GroupOption = Annotated[
    str,
    typer.Option(help="The consumer group that remembers which letters are settled.", rich_help_panel=WHERE),
]
PartitionOption = Annotated[
    list[int] | None,
    typer.Option(min=0, help="Only this partition of the topic. Repeatable.", rich_help_panel=WHICH),
]
OffsetOption = Annotated[
    int | None,
    typer.Option(min=0, help="Only the letter at this offset; with one --partition.", rich_help_panel=WHICH),
]
OffsetsOption = Annotated[
    str | None,
    typer.Option(
        metavar="A-B", help="Only those at these offsets, both included; with one --partition.", rich_help_panel=WHICH
    ),
]
OriginOption = Annotated[
    str | None,
    typer.Option(metavar="TOPIC[:PARTITION[:OFFSET]]", help="Only those that came from there.", rich_help_panel=WHICH),
]
ErrorOption = Annotated[
    str | None,
    typer.Option(
        metavar="TYPE", help="Only those with this exception: its class, with or without module.", rich_help_panel=WHICH
    ),
]
SinceOption = Annotated[
    str | None,
    typer.Option(
        metavar="TIME",
        help="Only those that failed last at or after this: how long ago (`30m`, `2h`, `3d`) or an ISO time.",
        rich_help_panel=WHICH,
    ),
]
UntilOption = Annotated[
    str | None,
    typer.Option(metavar="TIME", help="Only those that failed last at or before this.", rich_help_panel=WHICH),
]
KeyOption = Annotated[str | None, typer.Option(metavar="TEXT", help="Only those with this key.", rich_help_panel=WHICH)]
LimitOption = Annotated[
    int | None,
    typer.Option(min=1, help="Of all these, at most so many, the **oldest** by last failure.", rich_help_panel=WHICH),
]
NewestOption = Annotated[
    int | None,
    typer.Option(min=1, help="Of all these, at most so many, the **newest** by last failure.", rich_help_panel=WHICH),
]
AllOption = Annotated[
    bool,
    typer.Option(
        "--all",
        help="Also settled letters (replayed or dropped) and records that are no letters.",
        rich_help_panel=WHICH,
    ),
]
JsonOption = Annotated[
    bool, typer.Option("--json", help="One JSON object a line instead, for scripts.", rich_help_panel=HOW)
]
DryRunOption = Annotated[bool, typer.Option("--dry-run", help="Only say what would be done.", rich_help_panel=HOW)]
YesOption = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.", rich_help_panel=HOW)]


class Which(NamedTuple):
    """The options that choose letters, as they were typed."""

    partition: Sequence[int] | None
    offset: int | None
    offsets: str | None
    origin: str | None
    error: str | None
    since: str | None
    until: str | None
    key: str | None
    limit: int | None
    newest: int | None


class Where(NamedTuple):
    """The topic and how to get at it, as it was typed."""

    topic: str
    bootstrap_servers: str
    group: str
    client_option: Sequence[str] | None
