"""A denser format, for maps that the Java formats cannot hold.

::

    dense_map.py     encodes and decodes
    pattern.py       the offsets of a map as gaps, runs and bits
    rice.py          Golomb-Rice codes
    dense_reach.py   how far a map reaches within a number of digits
"""
