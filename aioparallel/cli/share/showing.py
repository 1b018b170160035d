"""``aioparallel share list`` and ``describe``."""

from __future__ import annotations

import json

from aioparallel.cli.cluster import Cluster
from aioparallel.cli.console import make_console, say
from aioparallel.cli.share.printing import list_table, objects, shown
from aioparallel.cli.share.reading import connected, find_group, read_group

__all__ = ["describe", "list_groups"]


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


async def describe(group: str, where: Cluster, *, as_json: bool) -> None:
    """``aioparallel share describe``."""
    async with connected(where) as to:
        view = await read_group(to, group)
    console = make_console()
    if as_json:
        for fields in objects(view):
            console.file.write(json.dumps(fields, ensure_ascii=False) + "\n")
    else:
        console.print(shown(view), highlight=False, markup=False)
