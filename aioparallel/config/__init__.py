"""The options: what they mean, and what is refused, before anything begins.

::

    callables.py    checks what a user gives to be called
    extension.py    ``Extension``: what is added to a consumer, and its hooks
    handling.py     the options that know no Kafka: order, bounds, times
    option_docs.py  shows options in ``help()`` and on the reference page
    options.py      ``Options``: all of a consumer's
    policies.py     options in groups: retries, failures, producing, transactions
    state.py        ``State``: the option ``state``
    security/       TLS and logins
"""
