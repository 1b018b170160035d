"""Groups that the Java library and we share.

::

    java/              the library's programs (Maven)
    java_programs.py   building them
    java_consumer.py   its consumer, in a process of its own
    java_maps.py       its offset maps, written and read by it
    our_consumer.py    ours, some of whose records never succeed
    group.py           the topic and the group: filled, committed, asked
"""
