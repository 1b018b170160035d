"""Our consumer in a process of its own, for killing it: ``python -m tests.support.interop.our_process``.


The record at offset 0 of each partition is stuck. It says "committed" when COUNT others (the fourth argument) have run
and the commit is acknowledged, and then works on until it is killed; it also ends with its input.
"""

from __future__ import annotations

import asyncio
import sys

from tests.support.interop.group import Place, open_group
from tests.support.interop.our_consumer import OurConsumer

_POLL_INTERVAL = 0.02


async def main(servers: str, topic: str, name: str, count: int) -> None:
    """Run until killed, or until the end of the input."""
    async with open_group(servers, topic, name) as group:
        stuck = [Place(partition, 0) for partition in range(3)]
        async with OurConsumer(group, stuck, session_timeout=2.0) as ours:
            while ours.ran.total() < count:
                ours.check()
                await asyncio.sleep(_POLL_INTERVAL)
            await ours.consumer.commit_now()
            print("committed", flush=True)
            await asyncio.to_thread(sys.stdin.read)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4])))
