"""Processes that cannot outlive us: one way to start, hear, pause and kill them.

::

    child.py    Child: a process that we speak with, on an event loop
    parent.py   inside the child: saying something, ending with the parent
    guarded.py  GuardedProcess: commands one after the other in a directory, with plain calls: brokers, Spark
    guard.py    the process between, which outlives us and kills
"""

from aioparallel.testing.processes.child import Child, ChildFailed
from aioparallel.testing.processes.parent import run_until_parent_ends, tell

__all__ = ["Child", "ChildFailed", "run_until_parent_ends", "tell"]
