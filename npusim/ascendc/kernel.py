"""A callable kernel of a source.

.. code-block:: python

    add = npusim.ascendc.load("add_custom.cpp").add_custom
    run = add[8](x, y, z, 65536, device="Atlas A2")
    run.time_us, z
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

import npusim
from npusim.ascendc import source as sources
from npusim.ascendc.arguments import POINTER, value_bytes
from npusim.ascendc.compiler import Build, compiled
from npusim.ascendc.errors import AscendCError
from npusim.ascendc.launch import Launch
from npusim.ascendc.lines import Lines
from npusim.ascendc.process import MEMORY_START, Message, Process
from npusim.ascendc.programs import Place, Written, written
from npusim.ascendc.source import Cores, Parameter
from npusim.ascendc.tiling import of_headers, tiling_bytes
from npusim.data.dtypes import Array, dtype_of
from npusim.data.tensor import Operand
from npusim.devices.schema import DeviceSpec

if TYPE_CHECKING:
    from npusim import Run

__all__ = ["SourceKernel", "SourceLaunch", "find", "named", "names_source"]

MOST_BLOCKS = 65535
"""asc-devkit, docs/zh/api: numBlocks of <<<>>>."""
TYPE_NUMBER = "ORIG_DTYPE_"
"""The prefix of macros that give the type of a tensor, by number."""
TYPE_NUMBERS = '#include "npusim_ascendc/data_types.h"\n'
"""The header that defines the numbers."""
UNIT_BYTES, GAP_BYTES = 512, 1 << 16
"""The alignment of tensors, and the least gap, so that no address belongs to two tensors."""
SUFFIXES = (".asc", ".cpp", ".cc", ".cxx", ".cce")
"""The suffixes of sources."""


@dataclass(frozen=True, slots=True, eq=False)
class SourceKernel:
    """A `__global__` function of a file; *instance* includes its template arguments."""

    file: Path
    instance: str
    parameters: tuple[Parameter, ...]
    cores: Cores
    build: Build

    @property
    def name(self) -> str:
        """Its name without template arguments."""
        return self.instance.partition("<")[0]

    def __getitem__(self, blocks: int) -> SourceLaunch:
        """A launch on this many blocks; raises AscendCError."""
        if not isinstance(blocks, int) or not 0 < blocks <= MOST_BLOCKS:
            raise AscendCError(
                f"{self.name}: blocks must be a number from 1 to {MOST_BLOCKS}, not {blocks!r}; "
                f"pass one"
            )
        return SourceLaunch(self, blocks)

    def record(
        self,
        spec: DeviceSpec,
        blocks: int,
        operands: Mapping[str, Operand],
        attributes: Mapping[str, object],
        timeout_s: float | None = None,
    ) -> Written:
        """Compile it, run it, and write the programs of its cores; raises AscendCError.

        *operands* are the pointer parameters, the tensors of a list as `x[0]`, `x[1]` and so on,
        *attributes* the others.
        """
        others = sources.other_sources(self.build.sources, {})
        text = self._source_text() + self._driver(spec)
        program = compiled(text, self.file, spec, self.build, others)
        with Process([program.file], timeout_s) as process:
            places = _placed(process, operands)
            said = process.hear()
            if said is None or said.kind is not Message.PARAMETERS:
                raise AscendCError(f"{self.name}: its process must start; it ended at once")
            words = struct.unpack(f"<{len(said.payload) // 8}q", said.payload)
            kinds, sizes = words[: len(words) // 2], words[len(words) // 2 :]
            starts = {place.name: place.start for place in places}
            allocated = {place.start: place.nbytes for place in places}
            process.answer(struct.pack("<Q", blocks))
            for (name, *_), kind, size in zip(self.parameters, kinds, sizes, strict=True):
                if kind == POINTER:
                    process.answer(struct.pack("<q", starts.get(name, -1)))
                else:
                    process.answer(value_bytes(self.name, name, kind, size, attributes.get(name)))
            begun = process.hear()
            assert begun is not None
            launch = Launch(
                process,
                begun,
                spec,
                Lines(program.file, self.file),
                allocated,
                self.build.auto_sync,
            )
            launch.run()
            return written(launch, places, spec)

    def structure(self, spec: DeviceSpec, name: str, values: Mapping[str, object]) -> Array:
        """The bytes of the structure of parameter *name*, which is given by its fields.

        Raises AscendCError.
        """
        parameter = next(each for each in self.parameters if each.name == name)
        text = self._source_text()
        return tiling_bytes(self.name, parameter, values, text, self.file, spec, self.build)

    def _source_text(self) -> str:
        text = sources.with_watches(self.file.read_text(), self.build.watches)
        compares = any(each.startswith(TYPE_NUMBER) for each in self.build.defines)
        return (
            f"{of_headers(self.build, self.name)}"
            f"{TYPE_NUMBERS if compares else ''}"
            "#define main npusim_main_of_the_source\n"
            f'#line 1 "{self.file.resolve()}"\n'
            f"{sources.with_launches(sources.with_workspaces(text), {})}\n"
            '#line 1 "driver.cpp"\n'
            "#undef main\n"
        )

    def _driver(self, spec: DeviceSpec) -> str:
        cores = sources.on_chip(self.cores, spec)
        return (
            '#include "npusim_ascendc/driver.h"\n'
            f'int main() {{ return npusim::drive("{self.name}", {{{cores.kind}, {cores.halves}}}, '
            f"{self.instance}); }}\n"
        )


@dataclass(frozen=True, slots=True, eq=False)
class SourceLaunch:
    """A kernel on a number of blocks."""

    kernel: SourceKernel
    blocks: int
    timeout_s: float | None = None

    def __str__(self) -> str:
        return self.name

    @property
    def name(self) -> str:
        return self.kernel.name

    @property
    def file(self) -> Path:
        return self.kernel.file

    @property
    def is_strict(self) -> bool:
        return self.kernel.build.is_strict

    @property
    def parameters(self) -> tuple[Parameter, ...]:
        return self.kernel.parameters

    def record(
        self, spec: DeviceSpec, operands: Mapping[str, Operand], others: Mapping[str, object]
    ) -> Written:
        """The programs of its cores for *operands*, its pointers, and its *other* arguments."""
        return self.kernel.record(spec, self.blocks, operands, others, self.timeout_s)

    def __call__(
        self, *args: object, device: str | os.PathLike[str] | DeviceSpec, **options: Any
    ) -> Run:
        """Run it on *device*: *args* are those of the C++ function, *options* those of
        :func:`npusim.run`. Arrays that the kernel stores to are written in place.
        """
        names = [each.name for each in self.kernel.parameters]
        by_name = {name: options.pop(name) for name in names if name in options}
        given = dict(zip(names, args, strict=False)) | by_name
        options |= {name: _known(value) for name, value in by_name.items()}
        run = npusim.run(self, *map(_known, args), device=device, **options)
        arrays = dict(_by_operand(given))
        for name, found in run.outputs.items():
            array = arrays[name]
            if isinstance(array, np.ndarray) and isinstance(found, np.ndarray):
                # Tensors of types that npusim does not have are passed as bytes.
                array[...] = found.view(array.dtype).reshape(array.shape)
        return run


def find(file: Path, instance: str, build: Build) -> SourceKernel:
    """The kernel of *file* that *instance* names; raises AscendCError."""
    text, name = _whole(file), instance.partition("<")[0]
    known = sources.kernels(text)
    if not known:
        raise AscendCError(
            f"ascendc: {file} must have the kernel {name}, but has none; mark a function of it as "
            f"__global__ __aicore__, or name another file"
        )
    if name not in known:
        near = get_close_matches(name, known, n=1)
        hint = f"did you mean {near[0]}?" if near else "name one of these"
        raise AscendCError(
            f"ascendc: {file} must have the kernel {name}, but has {', '.join(known)}; {hint}"
        )
    found = known[name]
    cores = found.cores or sources.guessed_cores(text)
    return SourceKernel(file, instance, found.parameters, cores, build)


def _whole(file: Path) -> str:
    return "\n".join(sources.texts_of(file).values())


def _by_operand(given: Mapping[str, object]) -> Iterator[tuple[str, object]]:
    """Each argument, and each tensor of a list separately."""
    for name, value in given.items():
        yield name, value
        if isinstance(value, list | tuple):
            for number, part in enumerate(value):
                yield f"{name}[{number}]", part


def _known(value: object) -> object:
    """*value*, or its bytes if it is an array of a type that npusim does not have."""
    if isinstance(value, list | tuple):
        return [_known(part) for part in value]
    if isinstance(value, np.ndarray) and dtype_of(value) is None and value.dtype.kind in "biuf":
        return np.ascontiguousarray(value).reshape(-1).view(np.uint8)
    return value


def names_source(op: str) -> bool:
    """Whether *op* names a C++ file, with or without a kernel name."""
    return Path(op.partition(":")[0]).suffix in SUFFIXES


def named(
    op: str,
    blocks: int | None = None,
    timeout_s: float | None = None,
    build: Build | None = None,
) -> SourceLaunch:
    """The launch that `FILE.cpp:KERNEL[BLOCKS]` names; *blocks* overrides those in brackets.

    Raises AscendCError.
    """
    file, _, rest = op.partition(":")
    instance, _, number = rest.removesuffix("]").partition("[")
    if not instance:
        raise AscendCError(
            f"ascendc: {file} must be followed by a kernel, as in {file}:add; name one of its "
            f"{', '.join(sources.kernels(_whole(Path(file)))) or 'none'}"
        )
    found = find(Path(file), instance, build or Build())
    if blocks is None and not number.isdigit():
        raise AscendCError(
            f"{found.name}: it must be said on how many blocks a kernel runs, as in {file}:"
            f"{instance}[8]; add them, or --blocks 8"
        )
    return replace(found[int(number) if blocks is None else blocks], timeout_s=timeout_s)


def _placed(process: Process, operands: Mapping[str, Operand]) -> list[Place]:
    """Put *operands* into global memory, with a descriptor after the tensors of a list."""
    start, places = GAP_BYTES, []
    lists: dict[str, list[tuple[int, tuple[int, ...]]]] = {}
    for name, operand in operands.items():
        tensor = operand.place()
        places.append(Place(name, start, tensor.nbytes))
        if tensor.data is not None:
            process.memory[start : start + tensor.nbytes] = tensor.data[: tensor.nbytes]
        if name.endswith("]"):
            lists.setdefault(name.partition("[")[0], []).append((start, operand.spec.shape))
        start += -(-tensor.nbytes // UNIT_BYTES) * UNIT_BYTES + GAP_BYTES
    for name, tensors in lists.items():
        words = _described(tensors)
        places.append(Place(name, start, words.nbytes))
        process.memory[start : start + words.nbytes] = words.view(np.uint8)
        start += -(-words.nbytes // UNIT_BYTES) * UNIT_BYTES + GAP_BYTES
    return places


def _described(tensors: Sequence[tuple[int, tuple[int, ...]]]) -> NDArray[np.uint64]:
    """The descriptor in memory of a list of *tensors*, start and shape each: see list_tensor.h."""
    words: list[int] = [0]
    for number, (_, shape) in enumerate(tensors):
        words += [len(shape) | number << 32, *shape]
    words[0] = 8 * len(words)
    return np.array([*words, *(MEMORY_START + start for start, _ in tensors)], np.uint64)
