"""``aioparallel produce``: a record for each line of files or of standard input.

``command``    the command and its options
``lines``      makes a record from a line
``reading``    reads lines without blocking the event loop
``producing``  sends the records and reports how many were written
"""
