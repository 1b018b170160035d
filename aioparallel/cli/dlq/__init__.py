"""``aioparallel dlq``: look at dead letters, send them back, or put them aside.

A log cannot lose a record out of its middle, so what was done with letters is remembered as a consumer remembers it:
in a consumer group of its own, whose committed offset and offset map say which letters of a partition are settled.

``commands``    the four commands, with ``options`` that they share
``session``     around each command: how it prints errors, asks and ends
``running``     what each command does, from its options to its last line
``opening``     a connection to the topic: its partitions, its offsets, its group
``reading``     one pass over the records that are there now
``selecting``   which letters are meant
``marks``       which letters are settled, and how that is committed
``planning``    the first pass of replay and drop: what will be done, before anything is
``replaying``   the second pass of replay
``dropping``    drop, and the deletion of what is settled
``listing``     what list prints
``showing``     what show prints
``wording``     times, bytes and strangers' texts, made fit for a terminal and for JSON
"""
