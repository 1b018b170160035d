"""``aioparallel share list`` and ``describe``."""

from __future__ import annotations

import json
from typing import Final

from aioparallel.cli.cluster import Cluster
from aioparallel.cli.console import make_console, say
from aioparallel.cli.share.commands import Limits
from aioparallel.cli.share.printing import list_table, objects, shown
from aioparallel.cli.share.reading import GroupView, connected, find_group, read_group

__all__ = ["describe", "exit_code", "list_groups"]

EXCEEDED: Final = 4
"""The exit code if a limit is exceeded."""
UNKNOWN: Final = 1
"""The exit code if that is unknown."""


async def list_groups(where: Cluster, *, as_json: bool) -> None:
    """``aioparallel share list``."""
    async with connected(where) as to:
        names = await to.admin.share_groups()
        # A group may be deleted meanwhile.
        views = [view for name in names if (view := await find_group(to, name)) is not None]
    console = make_console()
    if as_json:
        for one in views:
            for fields in objects(one, with_partitions=False):
                console.file.write(json.dumps(fields, ensure_ascii=False) + "\n")
    elif views:
        console.print(list_table(views))
    else:
        say("There are no share groups that this user may see.")


async def describe(group: str, limits: Limits, where: Cluster, *, as_json: bool) -> int:
    """``aioparallel share describe``. Returns the exit code."""
    async with connected(where) as to:
        view = await read_group(to, group)
    console = make_console()
    if as_json:
        for fields in objects(view):
            console.file.write(json.dumps(fields, ensure_ascii=False) + "\n")
    else:
        console.print(shown(view), highlight=False, markup=False)
    return exit_code(view, limits)


def exit_code(view: GroupView, limits: Limits) -> int:
    """4 if a limit is exceeded, else 1 if that is unknown; a line says which."""
    most = limits.max_lag
    if most is None:
        return 0
    if view.known_lag > most:
        say(f"The lag is {'at least ' * bool(view.unknown)}{view.known_lag:,}, more than --max-lag={most:,}.")
        return EXCEEDED
    if view.unknown:
        partitions = ", ".join(str(one.partition) for one in view.partitions if one.lag is None)
        say(f"The lag of {partitions} is unknown, so it is unknown whether it is more than --max-lag={most:,}.")
        return UNKNOWN
    return 0
