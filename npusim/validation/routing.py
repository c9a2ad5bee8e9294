"""The number of experts that a few tokens use, if each token draws its experts at random."""

from __future__ import annotations

import re
from dataclasses import dataclass
from math import sqrt

import numpy as np

from npusim.data.dtypes import Array
from npusim.kernel.launch import share

__all__ = ["Draw"]

NOTE = re.compile(r": (\d+) tokens, (\d+) of (\d+) experts each, (\d+) of them here")


@dataclass(frozen=True, slots=True)
class Draw:
    """*tokens* of which each draws *chosen* of all *experts*, *here* of them on this card.

    All experts are equally likely, and a token draws none twice.
    """

    tokens: int
    chosen: int
    experts: int
    here: int

    @staticmethod
    def read(note: str) -> Draw | None:
        """The draw that the *note* of a row describes; None if it describes none.

        >>> Draw.read("m: 8 tokens, 6 of 64 experts each, 64 of them here")
        Draw(tokens=8, chosen=6, experts=64, here=64)
        """
        found = NOTE.search(note)
        return Draw(*map(int, found.groups())) if found else None

    @property
    def mean(self) -> float:
        """The expected number of experts of this card that get tokens.

        >>> round(Draw(8, 6, 64, 64).mean, 2)
        34.88
        """
        return self.here * (1 - self._left_out)

    @property
    def spread(self) -> float:
        """The standard deviation of this number, relative to the mean."""
        out, experts = self._left_out, self.experts
        # The probability that neither of two experts is drawn; without replacement, below out**2.
        rest = (experts - self.chosen) * (experts - self.chosen - 1)
        both = (rest / (experts * (experts - 1))) ** self.tokens
        variance = self.here * out * (1 - out) + self.here * (self.here - 1) * (both - out * out)
        return sqrt(max(variance, 0.0)) / self.mean

    @property
    def _left_out(self) -> float:
        """The probability that no token draws a certain expert."""
        return (1 - self.chosen / self.experts) ** self.tokens

    def rows(self, count: int) -> Array:
        """*count* rows spread evenly over the expected number of experts `(here,)`."""
        used = round(self.mean)
        shares = [len(share(count, used, expert)) for expert in range(used)]
        return np.array(shares + [0] * (self.here - used), np.int64)
