"""Random messages and random damage: what is written is read again, and nothing else than MalformedMessage comes of
bytes that are no message."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aioparallel.clients.messages import APIS, MalformedMessage, decode, encode
from tests.support.examples import examples
from tests.support.interop.java_messages import read_vectors
from tests.support.messages.random import messages

EACH = [
    pytest.param(cls, version, id=f"{cls.__name__}-{version}")
    for api in APIS
    for cls in (api.request, api.response)
    for version in range(api.least, api.most + 1)
]
WRITTEN = [(one.name, one.version, one.tagged) for one in read_vectors()]
CLASSES = {cls.__name__: cls for api in APIS for cls in (api.request, api.response)}


@pytest.mark.parametrize(("cls", "version"), EACH)
@given(data=st.data())
@settings(max_examples=examples(12))
def test_what_is_written_is_read_again(cls: type[Any], version: int, data: st.DataObject) -> None:
    """The same message, from all of its bytes."""
    message = data.draw(messages(cls, version))
    written = encode(message, version)
    assert decode(cls, version, written) == message
    cut = data.draw(st.integers(0, len(written) - 1))
    with pytest.raises(MalformedMessage):
        decode(cls, version, written[:cut])


@given(st.sampled_from(WRITTEN), st.data())
def test_damage_gives_another_message_or_an_error(written: tuple[str, int, bytes], data: st.DataObject) -> None:
    """A message read from damaged bytes is one that can be written, and then read again."""
    name, version, plain = written
    damaged = bytearray(plain)
    for place in data.draw(st.lists(st.integers(0, len(plain) - 1), min_size=1, max_size=4)):
        damaged[place] = data.draw(st.integers(0, 255))
    with contextlib.suppress(MalformedMessage):
        message = decode(CLASSES[name], version, bytes(damaged))
        assert decode(CLASSES[name], version, encode(message, version)) == message


@pytest.mark.parametrize(("cls", "version"), EACH)
@given(data=st.binary(max_size=200))
@settings(max_examples=examples(25))
def test_noise_gives_a_message_or_an_error(cls: type[Any], version: int, data: bytes) -> None:
    """Quickly, and of no other kind."""
    with contextlib.suppress(MalformedMessage):
        decode(cls, version, data)
