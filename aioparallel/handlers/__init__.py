"""From what a user gives to one handler that a worker awaits.

::

    batches.py      ``batches``: handlers of several records
    binding.py      handlers that depend on what runs them
    resources.py    what handlers share, opened and closed with the consumer
    running_out.py  errors that say the process is short of something
    stack.py        builds one handler from the user's, its middleware and deserialisers
    blocking/       blocking functions: in threads, in processes
"""
