"""One member of a consumer group: it reads partitions and feeds them to the engine, and commits what has ended.

::

    client.py           the interface that a Kafka client must have; this room owns it
    sessions.py         a session: a source with a ledger, a generation, and what was acknowledged
    assigned_partitions.py  the sessions of this member, by partition
    assignment.py       sessions from assigned to given away
    opening.py          sessions from assigned to open: positions read, starts found
    resets.py           positions that the log does not hold, moved into it
    starts.py           where a partition starts that has no commit
    first_order.py      in which order first positions are committed               pure
    turns.py            sessions that wait for their turn in it
    stalls.py           partitions that stand still                                pure
    ends.py             until="end" with a log that has lost its tail
    intake.py           how many records each partition may bring                  pure
    priorities.py       which partitions are more urgent than others
    fetcher.py          plan, fetch, admit
    arrivals.py         when records came, by one's own clock
    admission.py        how what was read comes to the engine, and whose business its end is
    stores.py           where positions are read from and written to
    extensions.py       all extensions of a consumer, called together
    committing.py       who writes positions, and what may be asked of it
    offset_commits.py   what is to be committed, in which requests                 pure
    committer.py        the one place that commits
    run_state.py        how far one consumer's life has come, and what is wanted of it   pure
    run.py              all of it together, from run to closed
    oldest.py           which records hold things up
    snapshot.py         statistics and health, from all of it
"""
