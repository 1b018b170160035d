"""The options to connect to a secured cluster: TLS, SASL, or both. Independent of Kafka clients.

::

    options.py  Security: the options, checked at construction
    tls.py      reads and checks certificates; a context that loads renewed ones
    secret.py   passwords and tokens that are never shown
"""

from aioparallel.security.options import Security
from aioparallel.security.secret import Token

__all__ = ["Security", "Token"]
