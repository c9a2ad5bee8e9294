"""The device `npu`: the registrations by which `npu:0` exists in this process.

Other modules use::

    from npusim.torch.relabel import to_host, to_npu    # same memory, other label, no copy
    from npusim.torch.formats import ND, NZ, get, put   # the format of a storage
    from npusim.torch import card                       # card.run(op, ...) moves the clock
    from npusim.torch.clock import clock                # clock.graph(name): one launch

An operator of the namespace `npu` is defined by its schema, its kernel and its fake::

    def register(define: Define) -> None:               # npusim.torch.operators
        define("npu_twice(Tensor x) -> Tensor", real=twice, fake=lambda x: torch.empty_like(x))

The kernel gets the npu tensors themselves, with their strides and formats, and returns npu tensors;
`to_host(x).numpy()` is their memory. The fake gets fake tensors. For CPU tensors torch raises the
same error as on a card: Could not run 'npu::npu_twice' with arguments from the 'CPU' backend.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from functools import partial
from typing import Protocol

import torch
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

from npusim.torch import (
    accelerator,
    aten,
    attention,
    autocast,
    distances,
    formats,
    logits,
    npu,
    pinned,
    shapes,
    sparse_tensors,
)
from npusim.torch.calls import noted
from npusim.torch.clock import launched_by
from npusim.torch.fallback import HostOp, fallback, on_host
from npusim.torch.storages import KERNELS, new_storage

__all__ = ["Define", "check", "define", "register"]

KEY = "PrivateUse1"
_libraries: list[torch.library.Library] = []
"""Registrations live as long as their library."""


class Define(Protocol):
    """Defines the operator of *schema*, which starts with its name, in the namespace `npu`."""

    def __call__(
        self, schema: str, *, real: Callable[..., object], fake: Callable[..., object]
    ) -> None: ...


def register() -> None:
    """Register the device. Raises RuntimeError if another backend is already PrivateUse1."""
    taken = torch._C._get_privateuse1_backend_name()
    if taken != "privateuseone":
        raise RuntimeError(
            "npusim.torch: torch must not have a device of another package yet, "
            f"but has {taken!r}; start a new process"
        )
    _setup_privateuseone_for_python_backend("npu", backend_module=npu)
    torch.utils.generate_methods_for_privateuse1_backend(
        for_tensor=False, for_module=False, for_packed_sequence=False, for_storage=True
    )
    _register_fallback()
    _register_kernels()
    sparse_tensors.register()
    _patch_torch()
    _libraries.append(torch.library.Library("npu", "DEF"))


def define(schema: str, *, real: Callable[..., object], fake: Callable[..., object]) -> None:
    """Define the operator `npu::name` of *schema* with its kernel and its fake."""
    library, name = _libraries[-1], schema.partition("(")[0]
    library.define(schema)
    full = _full("npu", name)
    library.impl(name, noted(full, launched_by(full, real)), KEY)
    torch.library.register_fake(f"npu::{name}", fake, lib=library)


@on_host
def check() -> None:
    """Test the features of torch that this backend needs. Raises RuntimeError if one is missing."""
    row = torch.arange(6.0).npu()
    column = row.view(2, 3).t()
    base = torch.nn.Parameter(torch.empty(1, device="npu"), requires_grad=False)
    base.data = column
    base.add_(1)
    right = torch.arange(1.0, 7.0)
    if not torch.equal(row.cpu(), right) or not torch.equal(base.cpu(), right.view(2, 3).t()):
        raise RuntimeError(
            "npusim.torch: torch must share memory between a tensor and its views on npu, "
            f"but torch {torch.__version__} does not; use torch 2.13"
        )


def _register_fallback() -> None:
    library = torch.library.Library("_", "IMPL")
    library.fallback(noted(None, fallback), KEY)
    library.fallback(torch.library.fallthrough_kernel, "AutocastPrivateUse1")
    _libraries.append(library)


def _register_kernels() -> None:
    library = torch.library.Library("aten", "IMPL")
    _libraries.append(library)
    for name, kernel in {
        **KERNELS,
        **attention.KERNELS,
        **logits.KERNELS,
        **distances.KERNELS,
        **aten.kernels(),
    }.items():
        full = _full("aten", name)
        library.impl(name, noted(full, launched_by(full, kernel)), KEY)
    above = {**attention.AUTOGRAD, **logits.AUTOGRAD, **distances.KERNELS}
    for name, kernel in above.items():
        library.impl(name, kernel, "AutogradPrivateUse1")
    with warnings.catch_warnings():
        # torch warns that this operation has a kernel for every device, which is intended.
        warnings.filterwarnings("ignore", "Warning only once for all operators", UserWarning)
        for key in ("CPU", KEY):
            library.impl("_has_compatible_shallow_copy_type", _is_exchangeable, key)
    for name, host_op in _functions():
        library.impl(name, noted(host_op.name, host_op), KEY)
    for name, kernel in autocast.KERNELS.items():
        library.impl(name, kernel, "AutocastPrivateUse1")
    for bit in ("Conjugate", "Negative"):
        # torch's fallbacks would clone the source, which copies, which clones it again.
        library.impl("_copy_from", torch.library.fallthrough_kernel, bit)


def _is_exchangeable(self: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether `self.data = other` works: for tensors on card and host, as in torch_npu."""
    both = (self, other)
    is_dense = all(x.layout is torch.strided and x.device.type in ("cpu", "npu") for x in both)
    return is_dense and not any(x.is_mkldnn or x.is_quantized for x in both)


def _full(namespace: str, name: str) -> str:
    """The full name of the operation *name* in torch; the overload may be omitted."""
    return f"{namespace}.{name}" if "." in name else f"{namespace}.{name}.default"


def _functions() -> list[tuple[str, HostOp]]:
    """Functional operations that torch would otherwise split into an allocation and an `out=`.

    Those without a kernel for the CPU are made of views and copies, on a card too.
    """
    found = []
    for full in torch._C._dispatch_get_registrations_for_dispatch_key(
        "CompositeExplicitAutogradNonFunctional"
    ):
        namespace, _, name = full.partition("::")
        has_kernel = partial(torch._C._dispatch_has_kernel_for_dispatch_key, full)
        if namespace != "aten" or has_kernel(KEY) or not has_kernel("CPU"):
            continue
        packet, _, overload = name.partition(".")
        op = getattr(getattr(torch.ops.aten, packet), overload or "default")
        if not op._schema.is_mutable:
            found.append((name, HostOp(op)))
    return found


def _patch_torch() -> None:
    """Replace the functions that torch implements only for backends in C++."""
    torch.UntypedStorage.__new__ = staticmethod(new_storage)
    torch.Generator = npu.Generator
    # The value that torch_npu sets if it does not find CANN.
    torch.version.cann = "not known"
    torch._tensor_str._str = shapes.printed(on_host(torch._tensor_str._str))
    torch._TorchCompileInductorWrapper.__call__ = _refuse_inductor
    torch._TorchCompileWrapper.__init__ = _by_name
    accelerator.patch()
    formats.patch()
    pinned.patch()


_compile_wrapper = torch._TorchCompileWrapper.__init__
COMPILERS = ("npu", "npugraph_ex")
"""Backends of `torch.compile` that torch_npu registers (Ascend/pytorch@9e73e70, dynamo)."""


def _by_name(self: object, backend: object, *args: object, **kwargs: object) -> None:
    """`torch.compile(model, backend="npugraph_ex")`; its module is slow to import."""
    if backend in COMPILERS:
        from npusim.torch.torchair.npugraph_ex import compile_fx as backend

    _compile_wrapper(self, backend, *args, **kwargs)


_inductor = torch._TorchCompileInductorWrapper.__call__


def _refuse_inductor(
    self: object, model: object, inputs: Sequence[object], **kwargs: object
) -> object:
    """Raise an error: torch's default compiler supports no card, and would fail deep inside."""
    if any(isinstance(given, torch.Tensor) and given.is_npu for given in inputs):
        raise RuntimeError(
            "torch.compile: the backend for tensors on npu must be torchair's, not inductor; "
            "pass backend=torchair.get_npu_backend()"
        )
    return _inductor(self, model, inputs, **kwargs)
