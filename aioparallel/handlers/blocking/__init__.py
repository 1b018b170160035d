"""Blocking functions as handlers: in threads, and in separate processes.

::

    clock.py            stops a handler's deadline while it waits, and tells it that the engine was closed
    calls.py            one call of a blocking function
    thread_pool.py      the threads that run calls in order
    plain_functions.py  checks which functions can be blocking handlers
    threads.py          ``in_threads``
    processes.py        ``in_processes``
    children.py         a process that runs calls: the parent's side
    crossing.py         the messages to and from a process, and the child's side
    main_guard.py       detects a program that would start again in each of its processes

Both use the same pool: a queue of calls, and threads that take them. For ``in_processes`` each thread has a process,
sends it the call and waits. This package does not import the engine; the engine imports ``clock``.
"""
