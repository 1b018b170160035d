"""A denser offset map, for what the Java library's do not hold.

::

    dense_map.py     the encoding, written and read
    pattern.py       offsets that recur in a pattern
    rice.py          gaps between incomplete offsets in Rice codes
    dense_reach.py   how far it reaches within so many characters
"""
