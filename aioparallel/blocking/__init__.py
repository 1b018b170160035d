"""Blocking functions as handlers: in threads, and in processes of their own.

========== =============================================================================================
file       what it holds
========== =============================================================================================
clock      by what a handler tells the engine that it only waits, and hears that it was left behind
calls      one call of a blocking function, and the coroutine that waits for it
thread_pool  the threads that run calls, first come first served
plain      what may be such a function, checked
threads    ``in_threads``
processes  ``in_processes``
children   one process that runs calls: the parent's side
crossing   what goes to a process and comes back, and the child's side
guard      a program that would start itself anew in each of its processes
========== =============================================================================================

Both are the same machine: a line of calls, and threads that take them. For ``in_processes`` each of the threads has a
process, sends it the call and waits. The room knows no engine; the engine knows ``clock``.
"""
