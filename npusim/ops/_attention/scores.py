"""What training adds to scores, and what it drops of their exponentials: pse and dropout_mask.

.. code-block:: text

    pse_type 0      s * scale + pse                           pse of the type of the query
             1      (s + pse) * scale
             2      s * scale - slope * |key - token + d|     pse: a float32 slope for each head
             3      s * scale - slope * sqrt(|key - token + d|)
    dropout         T(p * kept * (1 / keep_prob))             a bit per score, the lowest first

d is kv_start_idx - q_start_idx. Sums of rows are those of p, before dropout.

Sources: ops-transformer@c29bc10 common/include/kernel, pse.h and dropmask.h;
attention/flash_attention_score/op_host, flash_attention_score_tiling_general.cpp
(AnalyzeOptionalInput).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Literal

import numpy as np

from npusim.data.dtypes import DType

ADD_THEN_MUL, INNER, INNER_ROOT = 1, 2, 3
"""Values of pse_type: the bias is scaled with the scores; distances times slopes, or their roots.
"""
BITS_OF_BYTE = 8


@dataclass(frozen=True, slots=True)
class Places:
    """Layout of a tensor with a row of keys for each token of each head of each request."""

    starts: tuple[int, ...]
    """Index of the first element of each request."""
    tokens: tuple[int, ...]
    """Rows of each head, by request: its tokens, or one row for all of them."""
    keys: tuple[int, ...]
    """Elements of a row, by request."""

    @staticmethod
    def of(heads: int, tokens: Sequence[int], keys: Sequence[int], *, is_shared: bool) -> Places:
        """Requests one behind the other, or with *is_shared* the same elements for all."""
        sizes = [heads * rows * columns for rows, columns in zip(tokens, keys, strict=True)]
        starts = (0, *accumulate(sizes))[:-1] if not is_shared else (0,) * len(sizes)
        return Places(starts, tuple(tokens), tuple(keys))

    @property
    def splits_bytes(self) -> bool:
        """Whether rows of bits do not all begin at whole bytes."""
        return any(keys % BITS_OF_BYTE for keys in self.keys)

    def at(self, request: int, head: int, token: int, key: int) -> int:
        """The index of an element."""
        tokens = self.tokens[request]
        row = head * tokens + min(token, tokens - 1)
        return self.starts[request] + row * self.keys[request] + min(key, self.keys[request] - 1)


@dataclass(frozen=True, slots=True)
class Bias:
    """pse."""

    dtype: DType
    places: Places
    kind: Literal["scores", "keys", "slopes"]
    """An element for each score, for each key of a head, or for each head."""
    pse_type: int
    shift: int = 0
    """kv_start_idx - q_start_idx."""

    @property
    def is_scaled(self) -> bool:
        """Whether it is added before scores are scaled."""
        return self.pse_type == ADD_THEN_MUL


@dataclass(frozen=True, slots=True)
class Dropout:
    """dropout_mask: the bits, and the probability of a one."""

    keep_prob: float
    places: Places
    in_bytes: bool
    """Whether kernels first store each bit as a byte: rows do not all begin at one."""

    @property
    def factor(self) -> float:
        """What elements are multiplied by, a float32."""
        return float(np.float32(1) / np.float32(self.keep_prob))
