"""Runs records in order, from any source; knows no Kafka, no offset map, no group.

Modules marked *pure* have plain methods only: no ``await``, no clock, no I/O; time is passed in.

::

    sources.py      the interface to a source: its lanes, and its callbacks for completed records
    lanes.py        a lane as a linked list of records; lanes that outlive their source   pure
    scheduler.py    which record runs next, and what an outcome changes            pure
    batch_assembler.py  which records go together into one call                  pure
    turn.py         starts several records of one source in a row: the hot path    pure
    counters.py     how many records are in each state, and their moves          pure
    fairness.py     sources with ready records take turns                          pure
    parking.py      the bound of parked records, shared among the sources          pure
    signals.py      what the engine reports to its owner
    retries.py      when parked records become due, and their timer
    failures.py     what happens to a record whose attempt failed                  pure
    failure_log.py  log lines about failures, rate-limited
    isolation.py    runs handlers in one task, each in its own context
    workers.py      up to max_concurrency coroutines that run handlers
    lingering.py    how long batches wait for more records
    endings.py      from a handler's end to its record's outcome
    batch_endings.py  the same for the records of a batch
    cancellation.py cancels a handler but not its worker
    deadlines.py    cancels handlers at their deadline
    blockages.py    which handler blocks the event loop, judged from samples       pure
    stack_sampling.py  samples the stack of the loop's thread: record, handler, lines
    blockage_log.py  logs handlers that block the loop
    ping.py         a loop pings a thread, which notices when no ping comes
    loop_watch.py   the thread that samples, and ends turns early
    gates.py        limits concurrency per place, such as an HTTP host; records wait there
    shortages.py    logs and reports exhausted resources, such as file descriptors
    other_threads.py  calls from other threads into the event loop
    waiting.py      waits that an event interrupts, and waits that nothing interrupts
    drains.py       waits until nothing of some sources is in flight or producing
    sinks.py        the interface to what sends outputs and dead letters: implemented by delivery/
    processor.py    puts all of these together
    work.py         describes how items are processed without Kafka
    flow.py         runs items of any kind; fed and read in lists
    feeding.py      feeds iterables of all kinds to a flow
    sizes.py        measures the memory of items
    own_loop.py     an event loop that ends in bounded time
    loop_thread.py  flows in their own thread, for programs that are not asynchronous
"""
