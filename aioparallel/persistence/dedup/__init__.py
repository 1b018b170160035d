"""Deduplication: copies of records that were handled before are not handled again. Implements ``Deduplicate``.

::

    identities.py   identities of copies, by record or by the mark of a key                      pure
    remembered.py   what was seen of one partition, in chunks; the oldest is forgotten first     pure
    chunks.py       chunks as records of a compacted topic                                       pure
    seen.py         looks up the records of one assignment, remembers them when they complete    pure
    seen_topic.py   the compacted topic: written before each commit, read before partitions open
    deduplication.py  the extension
"""
