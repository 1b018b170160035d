"""Blocking functions as handlers: in threads, and in separate processes.

============= ======================================================================
file          content
============= ======================================================================
clock         stops a handler's deadline while it waits, and tells it that the engine was closed
calls         one call of a blocking function, and the coroutine that waits for it
thread_pool   the threads that run calls in order
plain_functions         checks which functions can be blocking handlers
threads       ``in_threads``
processes     ``in_processes``
children      a process that runs calls: the parent's side
crossing      the messages to and from a process, and the child's side
main_guard         detects a program that would start again in each of its processes
============= ======================================================================

Both use the same pool: a queue of calls, and threads that take them. For ``in_processes`` each thread has a process,
sends it the call and waits. This package does not import the engine; the engine imports ``clock``.
"""
