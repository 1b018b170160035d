"""Records that were handled before are not handled again, though they come as copies: what ``Deduplicate`` does.

::

    identities.py   by what two copies of a record are known, as one record or by the mark of its key   pure
    remembered.py       what was seen of one partition, in chunks, the oldest forgotten first               pure
    chunks.py       chunks as records of a compacted topic                                              pure
    seen.py         one session's records looked at, and remembered when they are complete              pure
    seen_topic.py   the compacted topic: written before offsets are committed, read before sessions open
    deduplication.py  the extension: all of it together
"""
