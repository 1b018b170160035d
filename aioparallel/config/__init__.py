"""The options: their meaning, and their checks at construction.

::

    callables.py    checks functions that the user passes
    extension.py    ``Extension``: adds something to a consumer through hooks
    handling.py     the options that do not depend on Kafka: order, limits, timeouts
    option_docs.py  shows options in ``help()`` and on the reference page
    options.py      ``Options``: all of a consumer's
    policies.py     options in groups: retries, failures, producing, transactions
    state.py        ``State``: the option ``state``
    security/       TLS and logins
"""
