"""Runs records in order, whoever brings them; knows no Kafka, no offset map, no group.

What is called *pure* has plain methods only: no ``await``, no clock, no I/O; time is passed in.

::

    sources.py      where records come from, in lanes, and what hears that they are complete
    lanes.py        a lane: records linked one behind the other; those that outlive their source   pure
    scheduler.py    which record runs next, and what an outcome changes            pure
    batch_assembler.py  which records go together into one call                  pure
    turn.py         records of one source started one after the other: the hot path  pure
    counters.py     how many records are in each state, and their moves          pure
    fairness.py     whose turn it is: sources with something ready                 pure
    parking.py      the bound of parked records, shared out by source              pure
    signals.py      what the engine tells those who feed it
    retries.py      when parked records come due, and their timer
    failures.py     what becomes of a record whose attempt failed                  pure
    failure_log.py  lines about failures, and how many of them
    isolation.py    one handler after the other, each in its own context, inside a worker's task
    workers.py      up to max_concurrency coroutines that run handlers
    lingering.py    how long batches wait for more records
    endings.py      from a handler's end to its record's outcome
    batch_endings.py  the same for the records of a batch
    cancellation.py cancels one handler without its worker
    deadlines.py    when handlers must have ended, and who cancels them
    blockages.py    which handler blocks the event loop, judged from samples       pure
    stack_sampling.py  samples the stack of the loop's thread: record, handler, lines
    blockage_log.py  logs handlers that block the loop
    ping.py         a loop pings a thread, which notices when no ping comes
    loop_watch.py   the thread that samples, and ends turns early
    gates.py        bounds of what is under way at one place, and who waits there
    other_threads.py  questions from other threads
    waiting.py      waiting that something else cuts short, and waiting that nothing does
    drains.py       who waits until nothing of some sources runs any more
    sinks.py        what sends outputs and dead letters: implemented by delivery/
    processor.py    all of it together
    loop_thread.py  flows in a thread of their own, for programs that are not asynchronous
    work.py         what is done with each item, and how
    flow.py         items of any kind through it, fed and read in lists
    feeding.py      from iterables of all kinds to a flow
"""
