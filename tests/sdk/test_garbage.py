"""How often cyclic garbage is looked for, during evaluations that overlap and after them."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import ExitStack

import pytest
from wander.rollout.garbage import fewer_collections


@pytest.fixture(autouse=True)
def _as_it_was() -> Iterator[None]:
    before = gc.get_threshold()
    gc.set_threshold(700, 10, 10)
    yield
    gc.set_threshold(*before)


def test_more_live_objects_mean_fewer_collections() -> None:
    with fewer_collections(32):
        assert gc.get_threshold() == (20_000, 10, 10)
        with fewer_collections(1024):
            assert gc.get_threshold() == (204_800, 10, 10)
        assert gc.get_threshold() == (20_000, 10, 10)
    with fewer_collections(10**9):
        assert gc.get_threshold() == (1_000_000, 10, 10)
    assert gc.get_threshold() == (700, 10, 10)


def test_blocks_may_end_in_any_order() -> None:
    first, second = ExitStack(), ExitStack()
    first.enter_context(fewer_collections(32))
    second.enter_context(fewer_collections(1024))
    first.close()
    assert gc.get_threshold()[0] == 204_800
    second.close()
    assert gc.get_threshold() == (700, 10, 10)


def test_settings_of_the_caller_are_kept() -> None:
    for own in (50_000, 0):
        gc.set_threshold(own)
        with fewer_collections(32):
            assert gc.get_threshold()[0] == own
        assert gc.get_threshold()[0] == own
