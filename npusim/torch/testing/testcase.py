"""`torch_npu.testing.testcase`: a test case with a fixed seed and tolerant comparisons."""
# ruff: noqa: PT009 (it is a unittest.TestCase itself)

from __future__ import annotations

import os
import random
import unittest
from typing import Any

import numpy as np
import torch

from npusim.torch.testing.comparison import difference

__all__ = ["TestCase", "run_tests", "set_rng_seed"]

SEED = 666
"""The default of the environment variable SEED (Ascend/pytorch@9e73e70, testcase.py)."""
ARRAYS = (torch.Tensor, np.ndarray)


def set_rng_seed(seed: int = SEED) -> None:
    """Seed torch, the card, random and numpy."""
    torch.manual_seed(seed)
    random.seed(seed)
    np.random.seed(seed)


def run_tests() -> None:
    """Run the tests of the script that calls it."""
    unittest.main()


class TestCase(unittest.TestCase):
    """Tests that start with the same random numbers each."""

    precision = 1e-5
    """The tolerance of elements in :meth:`assertEqual`."""

    def setUp(self) -> None:
        set_rng_seed(int(os.environ.get("SEED", SEED)))

    def assertRtolEqual(  # noqa: N802
        self,
        x: object,
        y: object,
        prec: float = 1e-4,
        prec16: float = 1e-3,
        auto_trans_dtype: bool = False,
        message: str | None = None,
    ) -> None:
        """Fail if :mod:`npusim.torch.testing.comparison` finds a difference."""
        found = difference(x, y, prec, prec16, auto_trans_dtype)
        if found is not None:
            self.fail(found if message is None else f"{message}: {found}")

    def assertEqual(self, first: object, second: object, *rest: object, **named: object) -> None:  # noqa: N802
        """Tensors and arrays must have the same shape, NaN at the same indices, and elements that
        differ by at most `prec`; so must numbers. Lists are compared element by element.

        Anything else is compared as in unittest. *rest*: prec and message, as in torch_npu.
        """
        options: dict[str, Any] = dict(zip(("prec", "message"), rest, strict=False)) | named
        message = options.get("message") or options.get("msg")
        prec = self.precision if options.get("prec") is None else options["prec"]
        if isinstance(first, ARRAYS) or isinstance(second, ARRAYS):
            self._assert_alike(first, second, prec, message)
        elif isinstance(first, list | tuple) and isinstance(second, list | tuple):
            super().assertEqual(len(first), len(second), message)
            for x, y in zip(first, second, strict=True):
                self.assertEqual(x, y, prec, message)
        elif isinstance(first, float) and isinstance(second, int | float) and first != second:
            super().assertAlmostEqual(first, second, msg=message, delta=prec)
        else:
            super().assertEqual(first, second, message)

    def assertExpectedInline(self, actual: object, expected: str, skip: int = 0) -> None:  # noqa: N802, ARG002
        """Fail if the text of *actual* is not *expected*, which is never rewritten here."""
        super().assertEqual(str(actual), expected)

    def assertNotEqual(self, first: object, second: object, *rest: Any, **named: Any) -> None:  # noqa: N802
        """Tensors and arrays of the same shape must have an element that differs by more than
        `prec`."""
        if not isinstance(first, ARRAYS) or not isinstance(second, ARRAYS):
            super().assertNotEqual(first, second, named.get("message") or named.get("msg"))
            return
        try:
            self.assertEqual(first, second, *rest, **named)
        except AssertionError:
            return
        self.fail("an element must be further apart than prec, but none is")

    def _assert_alike(self, first: Any, second: Any, atol: float, message: str | None) -> None:
        x, y = (torch.as_tensor(value).detach().cpu() for value in (first, second))
        super().assertEqual(x.shape, y.shape, message)
        wide = torch.complex128 if x.is_complex() else torch.float64
        if not torch.allclose(x.to(wide), y.to(wide), rtol=0, atol=atol, equal_nan=True):
            away = float((x.to(wide) - y.to(wide)).abs().max())
            self.fail(message or f"elements must be no more than {atol:g} apart, not {away:g}")
