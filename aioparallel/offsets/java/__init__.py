"""The offset maps of Confluent's Parallel Consumer.

::

    java_formats.py   encodes them, byte for byte
    java_reader.py    decodes them, from any writer
    java_reach.py     how far a format reaches within a number of bytes
"""
