"""A group that copies a topic on three brokers, while these and its members die and hang.

::

    job.py       what each member is to do, and how its events are to be read
    member.py    the program of a member
    members.py   the members of a group, each a process of its own
    trial.py     one run: faults, and its end
    figures.py   what became of it
"""
