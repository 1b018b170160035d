"""Ends the contestants' processes when the benchmark is gone, whatever ended it.

A small process of its own, started by ``program.py`` with the read end of a pipe as standard input. The benchmark
writes lines to it, ``+<pid>`` for a process group that was started and ``-<pid>`` for one that has ended. When the pipe
closes, the groups still there are killed. A contestant in the middle of a run does not look at its own input, and one
that hangs never does. Standard library only.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys


def main() -> None:
    """Follow the lines to their end."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    alive: set[int] = set()
    for line in sys.stdin:
        group = int(line[1:])
        if line.startswith("+"):
            alive.add(group)
        else:
            alive.discard(group)
    for group in alive:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(group, signal.SIGKILL)


if __name__ == "__main__":
    main()
