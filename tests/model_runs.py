"""Runs of models made by hand, for what reads them."""

from __future__ import annotations

from npusim.trace.model import Kernel, KernelLaunch, ModelRun, NotTimed

PRODUCT = Kernel(
    op="matmul", template="v3", inputs=("float16 16x64", "float16 64x32"),
    outputs=("float16 16x32",), cores=8, time_us=10.0, launch_us=4.0, cycles=10800,
    read_bytes=6144, written_bytes=1024, gm_bytes=8192, l2_hit_bytes=2048,
    gm_written_bytes=512, bound="the bandwidth of global memory", bound_share=0.5,
)  # fmt: skip
NORM = Kernel(
    op="npu_rms_norm", template=None, inputs=("float16 16x32",), outputs=("float16 16x32",),
    cores=16, time_us=2.5, launch_us=2.0, cycles=900, read_bytes=1024, written_bytes=1024,
    gm_bytes=1024, l2_hit_bytes=1024, gm_written_bytes=0, bound="launch and completion",
    bound_share=0.8,
)  # fmt: skip
QUANT_PRODUCT = Kernel(
    op="npu_quant_matmul", template=None, inputs=("int8 16x64", "int8 64x32"),
    outputs=("float16 16x32",), cores=8, time_us=6.0, launch_us=4.0, cycles=3600,
    read_bytes=3072, written_bytes=1024, gm_bytes=4096, l2_hit_bytes=1024,
    gm_written_bytes=0, bound="launch and completion", bound_share=0.6,
)  # fmt: skip
CLASSES = {
    "Net": "Net",
    "Net.layers.0": "Block",
    "Net.layers.0.norm": "Norm",
    "Net.layers.0.up": "Linear",
    "Net.layers.1": "Block",
    "Net.layers.1.norm": "Norm",
    "Net.layers.1.up": "Linear",
    "Net.head": "Linear",
}


def run_of(*launched: tuple[Kernel, str, int], title: str = "net.py", missing: int = 2) -> ModelRun:
    """A run of kernels one after the other, each in a module and on a stream."""
    launches, now_us = [], 0.0
    for kernel, module, stream in launched:
        operator = f"npu.{kernel.op}.default" if kernel.op.startswith("npu_") else "aten.mm.default"
        launches.append(KernelLaunch(kernel, now_us, stream, operator, module, ""))
        now_us += kernel.time_us
    not_timed = (NotTimed("aten.pow.Tensor_Scalar", "Net.layers.0", missing),) if missing else ()
    there = {module for _, module, _ in launched}
    classes = {
        path: name
        for path, name in CLASSES.items()
        if any(f"{module}.".startswith(f"{path}.") for module in there)
    }
    return ModelRun(
        title, "Ascend910B2", "Atlas A2", len(launches), tuple(launches), not_timed, classes
    )


def small(product: Kernel = PRODUCT, title: str = "net.py") -> ModelRun:
    """Two layers of a norm and a product, a head, and a copy of a norm outside, on two streams."""
    layers = [
        part
        for number in (0, 1)
        for part in (
            (NORM, f"Net.layers.{number}.norm", 0),
            (product, f"Net.layers.{number}.up", 0),
        )
    ]
    return run_of(*layers, (product, "Net.head", 0), (NORM, "", 3), title=title)
