"""``aioparallel share``: share groups (KIP-932).

::

    commands.py   the commands with options and help
    reading.py    reads groups, their offsets and configs, and where the logs end
    printing.py   tables and JSON
    showing.py    list and describe
    resetting.py  sets configs and start offsets, and deletes offsets
"""
