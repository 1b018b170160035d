"""The offset maps of Confluent's Parallel Consumer, read and written.

::

    java_formats.py   its encodings, byte for byte
    java_reader.py    reading them, whoever wrote them
    java_reach.py     how far one of them reaches within so many characters
"""
