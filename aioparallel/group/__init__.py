"""One member of a consumer group: it reads partitions and feeds them to the engine, and commits what has ended.

::

    client.py           the interface that a Kafka client must have; this room owns it
    sessions.py         a session: a source with a ledger, a generation, and what was acknowledged
    assignment.py       sessions from assigned to given away: opening, settling, losing, resetting
    starts.py           where a partition starts that has no commit
    intake.py           how many records each partition may bring                  pure
    fetcher.py          plan, fetch, admit
    offset_commits.py   what is to be committed, in which requests                 pure
    committer.py        the one place that commits
    run_state.py        how far one consumer's life has come, and what is wanted of it   pure
    run.py              all of it together, from run to closed
    snapshot.py         statistics and health, from all of it
"""
