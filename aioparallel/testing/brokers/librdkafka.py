"""librdkafka's mock cluster, called through ctypes in the library of the ``confluent-kafka`` wheel.

The functions are those of librdkafka's ``rdkafka_mock.h``, a test interface outside of its ABI promise. A missing
function is detected when the library is loaded, not in the middle of a test.
"""

from __future__ import annotations

import ctypes
import functools
import importlib.util
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from aioparallel.records.errors import BrokerStartError

__all__ = ["MockCluster"]

_INSTALL: Final = "run: pip install --upgrade 'aioparallel[testing]'"
_PRODUCER: Final = 0
"""``RD_KAFKA_PRODUCER``: the type of the handle that owns the mock cluster, which must be a producer or consumer."""

_INT: Final = ctypes.c_int
_POINTER: Final = ctypes.c_void_p
_TEXT: Final = ctypes.c_char_p

_SIGNATURES: Final[dict[str, tuple[type | None, list[type]]]] = {
    "rd_kafka_conf_new": (_POINTER, []),
    "rd_kafka_conf_set_log_cb": (None, [_POINTER, _POINTER]),
    "rd_kafka_new": (_POINTER, [_INT, _POINTER, _TEXT, ctypes.c_size_t]),
    "rd_kafka_destroy": (None, [_POINTER]),
    "rd_kafka_err2str": (_TEXT, [_INT]),
    "rd_kafka_mock_cluster_new": (_POINTER, [_POINTER, _INT]),
    "rd_kafka_mock_cluster_destroy": (None, [_POINTER]),
    "rd_kafka_mock_cluster_bootstraps": (_TEXT, [_POINTER]),
    "rd_kafka_mock_group_initial_rebalance_delay_ms": (None, [_POINTER, ctypes.c_int32]),
    "rd_kafka_mock_topic_create": (_INT, [_POINTER, _TEXT, _INT, _INT]),
    "rd_kafka_mock_broker_set_rtt": (_INT, [_POINTER, ctypes.c_int32, _INT]),
    "rd_kafka_mock_broker_set_down": (_INT, [_POINTER, ctypes.c_int32]),
    "rd_kafka_mock_broker_set_up": (_INT, [_POINTER, ctypes.c_int32]),
}


class MockCluster:
    """A mock cluster of one broker, on its own port. Its threads are native and need no event loop.

    Raises BrokerStartError if the library is missing or too old. ``close`` must be called exactly once, at the end.
    """

    def __init__(self) -> None:
        self._library = _library()
        conf = self._library.rd_kafka_conf_new()
        # Otherwise librdkafka logs to stderr what is done to the mock brokers intentionally.
        self._library.rd_kafka_conf_set_log_cb(conf, None)
        reason = ctypes.create_string_buffer(512)
        self._handle: int | None = self._library.rd_kafka_new(_PRODUCER, conf, reason, len(reason))
        if not self._handle:
            raise BrokerStartError(f"librdkafka could not be started: {reason.value.decode(errors='replace')}")
        self._cluster: int | None = self._library.rd_kafka_mock_cluster_new(self._handle, 1)
        if not self._cluster:
            self._library.rd_kafka_destroy(self._handle)
            raise BrokerStartError("librdkafka could not start its mock cluster; is a port on 127.0.0.1 free?")
        self._library.rd_kafka_mock_group_initial_rebalance_delay_ms(self._cluster, 0)
        address: bytes = self._library.rd_kafka_mock_cluster_bootstraps(self._cluster)
        self.bootstrap_servers = address.decode()

    def call(self, function: str, *arguments: object) -> str | None:
        """Call ``rd_kafka_mock_<function>(cluster, *arguments)``. Returns the reason if it refuses, else None."""
        code: int = getattr(self._library, f"rd_kafka_mock_{function}")(self._cluster, *arguments)
        if code == 0:
            return None
        reason: bytes = self._library.rd_kafka_err2str(code)
        return reason.decode()

    def close(self) -> None:
        """End the threads and free the memory."""
        self._library.rd_kafka_mock_cluster_destroy(self._cluster)
        self._library.rd_kafka_destroy(self._handle)
        self._cluster = self._handle = None


@functools.cache
def _library() -> ctypes.CDLL:
    spec = importlib.util.find_spec("confluent_kafka")
    if spec is None or spec.origin is None:
        raise BrokerStartError(
            f"the embedded broker is part of the confluent-kafka wheel, which is not installed; {_INSTALL}"
        )
    tried = []
    for path in _candidates(Path(spec.origin).parent):
        try:
            library = ctypes.CDLL(str(path))
            for name, (result, arguments) in _SIGNATURES.items():
                function = getattr(library, name)
                function.restype, function.argtypes = result, arguments
        except (OSError, AttributeError) as error:
            tried.append(f"{path}: {error}")
            continue
        return library
    raise BrokerStartError(
        f"no librdkafka with a mock cluster was found in the installed confluent-kafka ({'; '.join(tried)}); {_INSTALL}"
    )


def _candidates(package: Path) -> Iterator[Path]:
    # Linux and Windows wheels, macOS wheels, then the extension module itself: through it the symbols of a library that
    # it is linked with, such as a distribution's librdkafka, are accessible.
    yield from sorted((package.parent / "confluent_kafka.libs").glob("librdkafka[-.]*"))
    yield from sorted((package / ".dylibs").glob("librdkafka[-.]*"))
    yield from sorted(package.glob("cimpl.*"))
