"""The options to connect to a secured cluster: TLS, SASL, or both. Independent of Kafka clients.

::

    security.py  Security: the options, checked at construction
    tls.py      reads and checks certificates; a context that loads renewed ones
    secret.py   passwords and tokens that are never shown
"""

from aioparallel.config.security.secret import Token
from aioparallel.config.security.security import Security

__all__ = ["Security", "Token"]
