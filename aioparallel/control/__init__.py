"""Changes a running consumer from outside its process.

::

    offsets_endpoint.py   OffsetsEndpoint: an extension that skips single offsets over HTTP
    calling.py            its caller, for the command line

How to: ``docs/groups.md``.
"""

from aioparallel.control.offsets_endpoint import OffsetsEndpoint

__all__ = ["OffsetsEndpoint"]
