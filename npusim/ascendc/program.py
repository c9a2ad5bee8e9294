"""A program with host code: each kernel that it launches, one after the other.

The program continues after a launch once the outputs of the kernel are in global memory.
"""

from __future__ import annotations

import signal
import struct
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from npusim.ascendc import source as sources
from npusim.ascendc.compiler import Build, compiled, preprocessed
from npusim.ascendc.errors import AscendCError, CrashError, StuckError
from npusim.ascendc.launch import Launch
from npusim.ascendc.lines import Lines
from npusim.ascendc.process import Message, Process
from npusim.ascendc.programs import Place, Written, written
from npusim.ascendc.source import Kernel, Parameter, on_chip
from npusim.data.dtypes import INT4, Array, DType
from npusim.data.tensor import Operand, TensorSpec
from npusim.devices.schema import DeviceSpec

__all__ = ["HostProgram", "ProgramLaunch"]


@dataclass(frozen=True, slots=True, eq=False)
class ProgramLaunch:
    """A kernel that a program launched, with its arguments."""

    name: str
    file: Path
    operands: dict[str, Operand]
    programs: Written
    is_strict: bool
    number: int
    """The number of the launch in the program, from 1."""

    @property
    def parameters(self) -> tuple[Parameter, ...]:
        return tuple(Parameter(name, True, "") for name in self.operands)

    def record(self, *_: object) -> Written:
        """The programs of its cores."""
        return self.programs


class HostProgram:
    """The program of a source with `main`, on a chip."""

    def __init__(self, file: Path, spec: DeviceSpec, build: Build | None = None) -> None:
        self.file, self._spec, self._build = file, spec, build or Build()
        self._texts: dict[Path, str] = {}
        for each in (file, *self._build.sources):
            self._texts |= sources.texts_of(each)
        if not sources.has_main(self._texts[file]):
            raise AscendCError(
                f"ascendc: {file} must have a main that launches kernels, but has none; add one, "
                f"or name a kernel, as in {file}:add"
            )
        self._kernels: dict[str, Kernel] = {}
        for each, text in self._texts.items():
            preprocess = partial(preprocessed, source=each, spec=spec, build=self._build)
            self._kernels |= sources.kernels(text, preprocess)
        self.exit_code: int | None = None
        """The exit code of the program, once it has ended."""

    def launches(
        self,
        arguments: Sequence[str] = (),
        timeout_s: float | None = None,
        stdout: int | None = None,
    ) -> Iterator[tuple[ProgramLaunch, dict[str, NDArray[np.uint8]]]]:
        """Run it with these *arguments*: yields each launch and the bytes of its tensors, into
        which the caller writes the outputs. Raises AscendCError.

        It prints to the file descriptor *stdout*, by default to that of this process.
        """
        whole = "\n".join(self._texts.values())
        cores = {
            name: on_chip(kernel.cores or sources.guessed_cores(whole), self._spec)
            for name, kernel in self._kernels.items()
        }
        text = sources.with_watches(self._texts[self.file], self._build.watches)
        text = sources.with_launches(sources.with_workspaces(text), cores)
        text = f'#line 1 "{self.file.resolve()}"\n{text}'
        others = sources.other_sources(self._build.sources, cores)
        program = compiled(text, self.file, self._spec, self._build, others)
        lines, allocated, count = Lines(program.file, self.file), dict[int, int](), 0
        sys.stdout.flush()
        with Process([program.file, *arguments], timeout_s, stdout) as process:
            while (said := process.hear()) is not None:
                match said.kind:
                    case Message.ALLOCATE:
                        start, nbytes = struct.unpack("<2q", said.payload)
                        allocated[start] = nbytes
                    case Message.RELEASE:
                        allocated.pop(struct.unpack("<q", said.payload)[0], None)
                    case Message.LAUNCH:
                        count += 1
                        launch = Launch(
                            process, said, self._spec, lines, allocated, self._build.auto_sync
                        )
                        launch.run()
                        found = self._launched(launch, allocated, process.memory, count)
                        bytes_of = {
                            place.name: process.memory[place.start : place.start + place.nbytes]
                            for place in found[1]
                        }
                        yield found[0], bytes_of
                        process.answer(b"\0")
                    case _:
                        raise AssertionError(f"{said.kind.name} outside of a launch")
            self.exit_code = process.end()
        if self.exit_code == -signal.SIGALRM:
            raise StuckError(
                f"{self.file.name}: the program must end within {timeout_s:g} s, but runs on "
                f"outside of any kernel; allow more by --timeout"
            )
        if self.exit_code < 0:
            raise CrashError(
                f"{self.file.name}: the program must run to its end, but stops with "
                f"{signal.Signals(-self.exit_code).name} outside of any kernel; fix its host code"
            )

    def _launched(
        self,
        launch: Launch,
        allocated: Mapping[int, int],
        memory: NDArray[np.uint8],
        number: int,
    ) -> tuple[ProgramLaunch, list[Place]]:
        recording = launch.recording
        kernel = self._kernels.get(recording.kernel)
        parameters = [each.name for each in kernel.parameters] if kernel else []
        names: dict[int, str] = {}
        for index, pointer in enumerate(recording.pointers):
            start = max((x for x in allocated if x <= pointer), default=None)
            if pointer >= 0 and start is not None:
                name = parameters[index] if index < len(parameters) else f"argument{index}"
                names.setdefault(start, name)
        places = [
            Place(names.get(start, f"memory{index}"), start, nbytes)
            for index, (start, nbytes) in enumerate(allocated.items())
        ]
        programs = written(launch, places, self._spec)
        used = [p for p in places if p.name in programs.stored | programs.loaded]
        operands = {}
        for place in used:
            data = launch.before.get(place.start)
            if data is None:
                data = memory[place.start : place.start + place.nbytes].copy()
            operands[place.name] = _operand(place.name, data, programs.types.get(place.name))
        return ProgramLaunch(
            recording.kernel, self.file, operands, programs, self._build.is_strict, number
        ), used


def _operand(name: str, data: NDArray[np.uint8], dtype: DType | None) -> Operand:
    """A tensor of the type in which it is copied, or of bytes if it has a partial element."""
    if dtype is not None and dtype is not INT4 and not data.size * 8 % dtype.bits:
        array: Array = data.view(dtype.numpy)
        return Operand(name, TensorSpec(array.shape, dtype.name), array)
    return Operand(name, TensorSpec(data.shape, "uint8"), data)
