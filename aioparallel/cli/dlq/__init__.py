"""``aioparallel dlq``: look at dead letters, send them back, or put them aside.

A log cannot lose a record out of its middle, so what was done with letters is remembered as a consumer remembers it:
in a consumer group of its own, whose committed offset and offset map say which letters of a partition are settled.

``commands``    the four commands, with ``options`` that they share
``selecting``   which letters are meant
``looking``     list and show, with ``printing``: what a letter looks like
``settling``    replay and drop
``opening``     a connection to the topic: its partitions, its offsets, its group
``marks``       which letters are settled, and how that is committed
``holding``     who may settle them
``planning``    the first pass of replay and drop: what will be done, before anything is
``replaying``   the second pass of replay
"""
