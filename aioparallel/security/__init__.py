"""How a secured cluster is reached: TLS, a login by SASL, or both. Knows no Kafka client.

::

    options.py  Security: the options in one place, checked when constructed
    tls.py      certificates read and checked, a context that takes renewed ones
    secret.py   passwords and tokens that show themselves to nobody
"""

from aioparallel.security.options import Security
from aioparallel.security.secret import Token

__all__ = ["Security", "Token"]
