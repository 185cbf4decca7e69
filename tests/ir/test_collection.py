"""Python's garbage collector off while libraries are imported and a model is traced."""

import gc
from contextlib import suppress

import pytest

from tilewright.ir.collection import collection_paused


@pytest.mark.parametrize("was_on", [True, False])
def test_collector_is_left_as_it_was(was_on):
    before = gc.isenabled()
    (gc.enable if was_on else gc.disable)()
    try:
        with suppress(KeyError), collection_paused():
            assert not gc.isenabled()
            with collection_paused():
                pass
            assert not gc.isenabled()
            raise KeyError
        assert gc.isenabled() is was_on
    finally:
        (gc.enable if before else gc.disable)()
