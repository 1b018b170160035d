"""One member of a consumer group: reads partitions, feeds their records to the engine, and commits what has ended.

Modules marked *pure* have plain methods only: no ``await``, no clock, no I/O; time is passed in.

::

    client.py           the interface that a Kafka client must implement
    share_client.py     the same for members of share groups
    assignment.py       an assignment: a source with a ledger, a generation and its acknowledged position
    assigned_partitions.py  the current assignment of each assigned partition
    rebalancer.py       assignments from assigned to given away
    opening.py          assignments from assigned to open: reads positions, finds starts
    resets.py           moves positions that are outside the log
    truncations.py      what still holds after a log has lost records
    leader_epochs.py    which leader wrote the records that were read              pure
    starts.py           where a partition without a committed position starts
    turns.py            the order in which first positions are committed, and assignments that wait for their turn
    stalls.py           partitions that make no progress                           pure
    unreadable.py       partitions whose data cannot be read
    ends.py             until="end" with a log that has lost its tail
    intake.py           how many records each partition may bring                  pure
    priorities.py       which partitions are more urgent than others
    fetcher.py          plans, fetches, admits
    arrivals.py         when records arrived, by this process's clock
    admission.py        how fetched records reach the engine, and when they are complete
    offset_stores.py           the interface to where positions are stored
    extensions.py       all extensions of a consumer, called together
    committing.py       the interface to what writes positions
    offset_commits.py   what is to be committed, in which requests                 pure
    sampling.py         writes offset maps without blocking the event loop
    committer.py        commits, at intervals and on demand
    run_state.py        the phase of one consumer, and what its user wants         pure
    membership.py       what a consumer needs of its member of a group, and of a run
    run_tasks.py        the tasks of a run, and the error that ends it
    run.py              puts all of these together, from run to closed
    snapshot.py         statistics and health
"""
