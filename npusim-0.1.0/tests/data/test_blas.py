"""BLAS has one thread where it should, and as many as before afterwards."""

from __future__ import annotations

from collections.abc import Iterator
from threading import Thread

import pytest
from threadpoolctl import ThreadpoolController

from npusim.data.blas import one_thread

BLAS = ThreadpoolController().select(user_api="blas")


def threads() -> set[int]:
    return {library["num_threads"] for library in BLAS.info()}


@pytest.fixture(autouse=True)
def _two_threads() -> Iterator[None]:
    with BLAS.limit(limits=2):
        yield


def test_inside_there_is_one_thread_however_deep() -> None:
    before = threads()
    with one_thread():
        with one_thread():
            assert threads() == {1}
        assert threads() == {1}
    assert threads() == before


def test_an_error_ends_it_too() -> None:
    before = threads()
    with pytest.raises(KeyError), one_thread():
        raise KeyError
    assert threads() == before


def test_another_thread_inside_ends_nothing() -> None:
    before, seen = threads(), []

    def other() -> None:
        with one_thread():
            seen.append(threads())

    with one_thread():
        thread = Thread(target=other)
        thread.start()
        thread.join()
        assert [*seen, threads()] == [{1}, {1}]
    assert threads() == before
