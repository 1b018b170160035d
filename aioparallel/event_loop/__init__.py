"""The event loop and the process that everything runs in: asyncio and the operating system, no Kafka.

::

    left_behind.py      tasks that ignore their cancellation
    loop.py             uvloop's loop; the garbage collector, set up for a consumer
    other_threads.py    calls from other threads into the event loop
    own_loop.py         an event loop that ends in bounded time
    process_signals.py  several listeners for a signal of the process
    steady_clock.py     a wall clock that is never set
    waiting.py          waits that an event or a time limit interrupts, and waits that nothing interrupts
"""

from aioparallel.event_loop.loop import loop_factory, quick_collections

__all__ = ["loop_factory", "quick_collections"]
