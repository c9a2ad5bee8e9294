"""What all tests share: small chips, seeded numbers, and examples that are the same every time."""

from __future__ import annotations

import os

# One thread each before numpy is loaded, and in every process that a test starts: workers share
# the processors, and threads of BLAS beside them only wait for each other.
for library in ("OPENBLAS", "OMP", "MKL"):
    os.environ[f"{library}_NUM_THREADS"] = "1"

import numpy as np  # noqa: E402
import pytest  # noqa: E402
from hypothesis import settings  # noqa: E402
from tiny import tiny_spec  # noqa: E402

from npusim.devices.schema import DeviceSpec  # noqa: E402
from npusim.run.kept import forget  # noqa: E402

# No database and no deadline: a run depends on nothing but the code.
settings.register_profile("repeatable", derandomize=True, database=None, deadline=None)
settings.load_profile("repeatable")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-golden", action="store_true", help="rewrite tests/golden")


@pytest.fixture(autouse=True)
def _anew() -> None:
    """No test depends on what another one had computed, or had replaced while it did."""
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
def rng() -> np.random.Generator:
    return np.random.default_rng(20260801)
