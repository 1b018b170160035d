"""Processes that end with this one.

::

    child.py    Child: a process to communicate with, on an event loop
    parent.py   for use in the child: sends lines to the parent, ends with the parent
    guarded.py  GuardedProcess: runs commands in a directory, synchronously: brokers, Spark
    guard.py    the process in between, which survives this one and kills the others
"""

from aioparallel.testing.processes.child import Child, ChildFailed
from aioparallel.testing.processes.parent import run_until_parent_ends, tell

__all__ = ["Child", "ChildFailed", "run_until_parent_ends", "tell"]
