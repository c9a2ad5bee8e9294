"""What all tests share: small chips, seeded numbers, and which tests are left to the night."""

from __future__ import annotations

import os
import signal
import sys
from collections import defaultdict
from collections.abc import Iterator
from typing import TYPE_CHECKING

# One thread each before numpy is loaded, and in every process that a test starts: workers share
# the processors, and threads of BLAS besides them only wait for each other.
for library in ("OPENBLAS", "OMP", "MKL"):
    os.environ[f"{library}_NUM_THREADS"] = "1"

# Tests start hundreds of processes: each would compile the whole package if nothing was kept.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

# Who is started in the background, as by nohup, ignores these, and so would what tests start.
for name, usual in (("SIGINT", signal.default_int_handler), ("SIGHUP", signal.SIG_DFL)):
    number = getattr(signal, name, None)  # Windows has no SIGHUP.
    if number is not None and signal.getsignal(number) is signal.SIG_IGN:
        signal.signal(number, usual)

import numpy as np  # noqa: E402
import pytest  # noqa: E402
from draws import is_night  # noqa: E402
from hypothesis import is_hypothesis_test  # noqa: E402
from tiny import tiny_spec  # noqa: E402

from npusim.devices.schema import DeviceSpec  # noqa: E402
from npusim.run.memory_cache import forget  # noqa: E402

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-golden", action="store_true", help="rewrite tests/golden")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Leave to the night all but n cases of a test with the mark `sample(n)`.

    Those that stay are spread evenly, the first and the last among them. A test that draws its
    cases runs by day and, as it draws more of them then, at night.
    """
    cases = defaultdict(list)
    for item in items:
        if is_night() and is_hypothesis_test(getattr(item, "obj", None)):
            item.add_marker(pytest.mark.nightly)
        mark = item.get_closest_marker("sample")
        if mark is not None:
            cases[item.nodeid.partition("[")[0], *mark.args].append(item)
    for (_, count), every in cases.items():
        stay = {round(case) for case in np.linspace(0, len(every) - 1, count)}
        for place, item in enumerate(every):
            if place not in stay:
                item.add_marker(pytest.mark.nightly)


@pytest.fixture
def nothing_kept() -> Iterator[None]:
    """Keep nothing from before the test or for after it.

    A test asks for this where it replaces code that programs or times come from, or where it
    measures what is kept.
    """
    forget()
    yield
    forget()


@pytest.fixture(scope="session")
def tiny() -> DeviceSpec:
    """A chip of arch 2201 whose times can be computed by hand."""
    return tiny_spec()


@pytest.fixture(scope="session")
def tiny_2002() -> DeviceSpec:
    """The same for arch 2002: two kinds of core with a vector pipe."""
    return tiny_spec("2002")


@pytest.fixture
def ax() -> Axes:
    """Where a picture is drawn; nothing else needs what draws it."""
    from matplotlib.figure import Figure

    return Figure((10, 5), dpi=100).subplots()


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(20260801)
