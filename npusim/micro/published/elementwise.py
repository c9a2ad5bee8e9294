"""Casts and maxima of whole tensors."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from npusim.data.tensor import TensorSpec
from npusim.devices.schema import DeviceSpec
from npusim.kernel.launch import Kernel
from npusim.micro.elementwise import elementwise
from npusim.micro.published.rows import Row, Table

__all__ = ["CASTS", "MAXIMA"]


def _casts() -> Iterator[Row]:
    measured = {
        (1, 8): 1.13,
        (3, 128): 1.19,
        (256,): 1.32,
        (4096,): 1.76,
        (114, 128): 3.65,
        (256, 128): 5.87,
        (1, 154880): 7.43,
        (16, 154880): 9.47,
    }
    for shape, took in measured.items():
        x = TensorSpec(shape, "bfloat16")
        yield Row("", _times(shape), took, _kernel("cast", x, "float32"))


def _maxima() -> Iterator[Row]:
    measured = {
        (4096, 4096): ("bfloat16", 66.02),
        (8192, 16384): ("int8", 316.83),
        (1023, 1023): ("float16", 5.7),
        (1009, 1021): ("float32", 9.16),
        (1537, 769): ("bfloat16", 7.44),
        (363, 367, 373): ("float16", 188.04),
        (1000007,): ("float32", 8.82),
        (3, 7, 11, 13, 1013): ("float32", 20.62),
    }
    for shape, (dtype, took) in measured.items():
        x = TensorSpec(shape, dtype)
        yield Row("", f"{_times(shape)} {dtype}", took, _kernel("maximum", x, x))


def _broadcast_maxima() -> Iterator[Row]:
    measured = {
        ((2, 3, 5, 1024, 256), (1024, 1)): ("int32", 39.06),
        ((255, 8193), (8193,)): ("float16", 9.74),
        ((2, 3, 17, 1024, 101), (1024, 1)): ("float32", 133.06),
        ((2049, 513), (513,)): ("float32", 10.78),
    }
    for (shape, other), (dtype, took) in measured.items():
        operands = TensorSpec(shape, dtype), TensorSpec(other, dtype)
        text = f"{_times(shape)} and {_times(other)} {dtype}"
        yield Row("", text, took, _kernel("maximum", *operands))


def _kernel(op: str, *operands: TensorSpec | str) -> Callable[[DeviceSpec], Kernel]:
    return lambda spec: elementwise(spec, op, *operands)


def _times(shape: tuple[int, ...]) -> str:
    return " x ".join(str(size) for size in shape)


# hudingyi688/aiconfigurator-npu@11bc0ae docs/profiler_alignment/groundtruth/by_op_family.csv:
# median Task Duration; the source does not give the target type of the bfloat16 cast.
CASTS = Table(
    "Cast of bfloat16 to float32 (aiconfigurator-npu)", "Atlas A3", "repeat", (*_casts(),), "cold"
)
# hicann/cann-bench@d59d44c tasks/metadata/910b2.json: Task Duration. int64 is left out: the source
# of the vendor's comparison for it is closed.
MAXIMA = Table("Maximum (cann-bench)", "ascend910b2", "cold", (*_maxima(), *_broadcast_maxima()))
