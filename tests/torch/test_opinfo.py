"""Torch's own samples of all its operations: values are the CPU's, and all is timed or reported."""

from __future__ import annotations

import os
import warnings
from typing import Any

import pytest
from dispatched import Dispatched
from hypothesis import settings
from simulated_card import torch
from torch.utils._pytree import tree_map

# Torch's samples come with a profile of hypothesis, which must be the one that there is.
os.environ["PYTORCH_HYPOTHESIS_PROFILE"] = settings.get_current_profile_name()
from torch.testing._internal.common_methods_invocations import op_db

NO_KERNEL = "torch has no kernel for sparse tensors of another device"
UNWRITTEN = "its result is memory that nobody has written"
BEYOND = "its samples look at memory next to the tensor, which is not copied along"
ON_HOST = "it wants its indices on the CPU, on every device"
APPROXIMATED = "the card's kernel is the tanh form, whatever it is asked for: see test_aten"
FOR_CUDA = "it is for CUDA alone"
EXCLUDED = {
    "as_strided": BEYOND,
    "nn.functional.gelu": APPROXIMATED,
    "tensor_split": ON_HOST,
    "jiterator_2inputs_2outputs": FOR_CUDA,
    "jiterator_4inputs_with_extra_args": FOR_CUDA,
    "jiterator_binary": FOR_CUDA,
    "jiterator_binary_return_by_ref": FOR_CUDA,
    "jiterator_unary": FOR_CUDA,
    "sparse.mm": NO_KERNEL,
    "sparse.sampled_addmm": NO_KERNEL,
    "to_sparse": NO_KERNEL,
    "empty": UNWRITTEN,
    "empty_like": UNWRITTEN,
    "empty_permuted": UNWRITTEN,
    "empty_strided": UNWRITTEN,
    "new_empty": UNWRITTEN,
    "new_empty_strided": UNWRITTEN,
}
"""Operation -> why it is left out."""

MADE_SOMEWHERE = (
    *("arange", "linspace", "logspace", "ones", "zeros", "full", "eye", "randn", "normal"),
)
"""Operations whose samples name the CPU as the device of the output."""

DTYPES = (torch.float32, torch.int64)
MOST_SAMPLES = 3
"""Of an operation in a type: they begin with the plainest."""

OPERATIONS = [op for op in op_db if op.name not in EXCLUDED]


def _on_npu(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.detach().npu()
    return torch.device("npu") if isinstance(value, torch.device) else value


def _on_host(value: Any) -> Any:
    return value.detach().cpu() if isinstance(value, torch.Tensor) else value


def _expected(op: Any, sample: Any) -> Any:
    """What the CPU gives; None where it refuses the sample."""
    torch.manual_seed(0)
    try:
        return op(sample.input, *sample.args, **sample.kwargs)
    except (RuntimeError, NotImplementedError, ValueError, IndexError, TypeError):
        return None


@pytest.mark.nightly
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("op", OPERATIONS, ids=lambda op: op.formatted_name)
def test_an_operation_gives_what_the_cpu_gives(op: Any) -> None:
    for dtype in DTYPES:
        if dtype not in op.supported_dtypes("cpu"):
            continue
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            samples = list(op.sample_inputs("cpu", dtype))[:MOST_SAMPLES]
        for sample in samples:
            want = _expected(op, sample)
            if want is None:
                continue
            args, kwargs = tree_map(_on_npu, (sample.args, sample.kwargs))
            given = tree_map(_on_npu, sample.input)
            torch.manual_seed(0)
            with Dispatched() as dispatched:
                made = op(given, *args, **kwargs)
            assert dispatched.uncounted == set()
            got = tree_map(_on_host, made)
            torch.testing.assert_close(
                got, tree_map(_on_host, want), equal_nan=True, rtol=1e-4, atol=1e-4
            )


WITH_OUTPUTS = [op for op in OPERATIONS if op.supports_out and op.name not in MADE_SOMEWHERE]


@pytest.mark.nightly
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("op", WITH_OUTPUTS, ids=lambda op: op.formatted_name)
def test_an_output_that_is_too_large_is_resized(op: Any) -> None:
    if torch.float32 not in op.supported_dtypes("cpu"):
        return
    for sample in list(op.sample_inputs("cpu", torch.float32))[:1]:
        want = _expected(op, sample)
        if not isinstance(want, torch.Tensor) or want.dim() == 0:
            continue
        given, args, kwargs = tree_map(_on_npu, (sample.input, sample.args, sample.kwargs))
        larger = [size + 3 for size in want.shape]
        out = torch.empty(larger, dtype=want.dtype, device="npu")
        torch.manual_seed(0)
        assert op.op(given, *args, **kwargs, out=out) is out
        torch.testing.assert_close(out.cpu(), _on_host(want), equal_nan=True, rtol=1e-4, atol=1e-4)
