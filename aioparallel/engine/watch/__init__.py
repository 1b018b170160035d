"""Who looks at handlers while they run: deadlines, cancellations, a loop that is blocked.

::

    blockage_log.py      handlers that block the loop: log lines, and the last minute for health
    blockages.py         which handler blocks the event loop, judged from samples       pure
    cancellation.py      cancels a handler but not its worker
    deadlines.py         cancels handlers at their deadline
    lingering.py         how long batches wait for more records
    loop_watch.py        the thread that samples, and ends turns early
    ping.py              a loop pings a thread, which notices when no ping comes
    stack_sampling.py    samples the stack of the loop's thread: record, handler, lines
"""
