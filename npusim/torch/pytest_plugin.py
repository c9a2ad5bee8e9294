"""pytest on a simulated card: `pytest -p npusim.torch.pytest_plugin [--npu-device NAME]`.

The card is installed before any test module or conftest.py is imported.
"""

from __future__ import annotations

import pytest

from npusim import torch as drop_in
from npusim.devices import DeviceError

__all__ = ["pytest_addoption", "pytest_load_initial_conftests", "pytest_report_header"]

_names: list[str] = []


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option `--npu-device`."""
    parser.getgroup("npusim").addoption(
        "--npu-device",
        default=drop_in.DEFAULT_DEVICE,
        metavar="NAME",
        help="the card that torch_npu finds, a chip or a product line (%(default)s)",
    )


@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests(early_config: pytest.Config) -> None:
    """Install the card."""
    try:
        _names[:] = [drop_in.install(early_config.known_args_namespace.npu_device)]
    except (DeviceError, ImportError, RuntimeError) as error:
        raise pytest.UsageError(str(error)) from None


def pytest_report_header() -> str:
    """Name the card at the top of the report."""
    return f"npusim: simulating {', '.join(_names)}"
