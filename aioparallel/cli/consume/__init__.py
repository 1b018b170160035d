"""``aioparallel consume``: shows records of a topic.

``command``    the command and its options
``reading``    reads the selected records
``showing``    formats them
"""
