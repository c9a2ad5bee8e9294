"""Custom kernels: run as operators are, from functions and from files."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from commands import entries, npusim_says, refused
from matplotlib.figure import Figure
from tiny import tiny_spec

import npusim
from npusim import DeviceSpec, Kernel, Tensor, TensorSpec, micro
from npusim.check.uninitialized import UnwrittenError
from npusim.data.dtypes import BUFFER_DTYPES, FLOAT16, DType
from npusim.isa import Barrier, Binary, Global, Load, Store
from npusim.kernel.builder import Builder
from npusim.kernel.program import Binding, Block, Program
from npusim.kernel.queues import ProgramError
from npusim.reports.pipes import pipes
from npusim.reports.timeline import timeline
from npusim.run.call import find
from npusim.run.user_kernel import KernelError, load

FILE = Path(__file__).parents[2] / "docs" / "course" / "vector_add.py"
ADD = f"{FILE}:add"
add = load(ADD)


def says(text: str) -> str:
    return f"^{re.escape(text)}$"


@pytest.fixture
def vectors(rng: np.random.Generator) -> tuple[Any, Any]:
    x, y = (rng.normal(size=(3, 333)).astype(np.float16) for _ in range(2))
    return x, y


@pytest.mark.parametrize("arch", ["2201", "2002"])
@pytest.mark.parametrize("depth", [1, 2])
def test_a_function_is_run_as_an_operator_is(arch: str, depth: int, vectors: Any) -> None:
    x, y = vectors
    if arch == "2002":  # which moves whole blocks only
        x, y = x.reshape(-1)[:992], y.reshape(-1)[:992]
    spec = tiny_spec(arch)
    run = npusim.run(add, x, y, tile=256, depth=depth, device=spec)
    np.testing.assert_array_equal(run.output, x + y)
    assert list(run.outputs) == ["z"]
    assert run.launch_us >= spec.launch.time_us(1)
    assert run.time_us == pytest.approx(run.launch_us + run.cycles / 1000)
    assert repr(run).startswith(f"<add on tiny: float16 {x.shape}, ")
    timed = npusim.run(add, *(TensorSpec(v.shape, "half") for v in (x, y)), 256, depth, device=spec)
    assert timed.output == TensorSpec(x.shape, "float16")
    assert timed.cycles == run.cycles


def test_a_file_is_run_as_its_function_is(vectors: Any) -> None:
    from_file = npusim.run(ADD, *vectors, tile=512, device="Atlas A2")
    from_function = npusim.run(add, *vectors, tile=512, device="Atlas A2")
    assert from_file.to_json() == from_function.to_json()
    assert from_file.op == "add"
    assert from_file.arguments["tile"] == 512
    assert from_file.arguments["depth"] == 1


def test_every_picture_takes_such_a_run(vectors: Any) -> None:
    run = npusim.run(add, *vectors, device="Atlas A2")
    for picture in (timeline, pipes):
        ax = picture(run, ax=Figure().subplots())
        assert ax.get_title(loc="left").startswith("add on ascend910b2: ")


def test_a_function_gets_layouts_and_bytes() -> None:
    matrix = np.arange(16 * 20, dtype=np.int8).reshape(16, 20)
    heard: list[TensorSpec] = []

    def through(spec: DeviceSpec, x: TensorSpec) -> Kernel:
        heard.append(x)
        out = TensorSpec(x.storage_shape, x.dtype)
        builder = Builder("through", spec.cores["aiv"], spec.sync)
        queue = builder.queue("ub", x.nbytes, "mte2", "mte3")
        slot = queue.alloc()
        builder.data_copy(slot.of(x.element, out.size), Global("x", 0, x.nbytes))
        queue.enque(slot)
        builder.data_copy(Global("y", 0, x.nbytes), queue.deque().of(x.element, out.size))
        queue.free(slot)
        block = Block(0, "aiv", builder.build(), {name: Binding(name) for name in ("x", "y")})
        return Kernel("through", (block,), {"x": x}, {"y": out})

    nz = Tensor.of(matrix, "FRACTAL_NZ")
    run = npusim.run(through, nz, device=tiny_spec())
    assert heard == [TensorSpec((16, 20), "int8", "FRACTAL_NZ")]
    np.testing.assert_array_equal(run.output, nz.storage)
    turned = npusim.run(through, Tensor.of(matrix, transposed=True), device=tiny_spec())
    np.testing.assert_array_equal(turned.output, matrix.T.reshape(20, 16))
    assert heard[-1] == TensorSpec((16, 20), "int8", transposed=True)


def test_cores_can_meet_in_a_workspace(rng: np.random.Generator) -> None:
    """A vector core doubles x in a workspace, a cube core sets it off."""

    def doubled(spec: DeviceSpec, x: TensorSpec) -> Kernel:
        builder = Builder("doubled", spec.cores["aiv"], spec.sync)
        queue = builder.queue("ub", x.nbytes, "mte2", "vector")
        sums = builder.queue("ub", x.nbytes, "vector", "mte3")
        for source, target in (("x", "between"), ("between", "y")):
            slot = queue.alloc()
            builder.data_copy(slot.of(FLOAT16, x.size), Global(source, 0, x.nbytes))
            queue.enque(slot)
            given, out = queue.deque().of(FLOAT16, x.size), sums.alloc()
            builder.emit(Binary("add", out.of(FLOAT16, x.size), given, given))
            queue.free(slot)
            sums.enque(out)
            out = sums.deque()
            builder.data_copy(Global(target, 0, x.nbytes), out.of(FLOAT16, x.size))
            sums.free(out)
            builder.sync("mte3", "mte2")
        names = ("x", "between", "y")
        block = Block(1, "aiv", builder.build(), {name: Binding(name) for name in names})
        return Kernel("doubled", (block,), {"x": x}, {"y": x}, True, {"between": x.nbytes})

    x = rng.normal(size=64).astype(np.float16)
    spec = tiny_spec()
    run = npusim.run(doubled, x, device=spec)
    np.testing.assert_array_equal(run.output, 4 * x)
    assert run.to_json()["plan"] == {
        "block_dim": 1, "template": None, "reason": None, "is_mix": True, "reads_tiling": False,
        "workspaces": {"between": 128},
    }  # fmt: skip
    alone = npusim.run(lambda spec, x: replace(doubled(spec, x), is_mix=False), x, device=spec)
    # The two cores of a vector core's group are started, too.
    more_us = spec.launch.mix_us + 2 * spec.launch.start_us
    assert run.launch_us - alone.launch_us == pytest.approx(more_us)
    found = micro.compute(doubled(spec, TensorSpec((64,), "half")), spec, x=x)
    np.testing.assert_array_equal(found["y"], 4 * x)


# ---- the command line ----

CALL = ("run", ADD, "-d", "Atlas A2", "-i", "x=arange:8x16:half", "-i", "y=full:8x16:half:value=2")


def test_the_command_sums_such_a_run_up(tmp_path: Path) -> None:
    out = tmp_path / "out"
    code, said, err = npusim_says(*CALL, "-a", "tile=64", "-o", str(out))
    assert (code, err) == (0, "")
    assert said.startswith("operator  add\n")
    assert "z         float16 (8, 16): 2.0 3.0 4.0 5.0 6.0" in said
    assert {"pipes.png", "run.json", "timeline.png", "z.npy"} <= set(entries(out))
    record = json.loads((out / "run.json").read_text())
    assert record["arguments"]["tile"] == 64
    assert record["typed"] == {
        "op": [ADD],
        "input": ["x=arange:8x16:half", "y=full:8x16:half:value=2"],
        "attr": ["tile=64"],
    }
    assert json.loads(npusim_says(*CALL, "--json").out)["arguments"]["tile"] == 4096


@pytest.mark.parametrize(
    ("code", "words", "message"),
    [
        (2, CALL[:-2], f"run: y of {ADD} must be given; add for example -i y=randn:8x16"),
        (
            2,
            (*CALL, "-a", "tiles=3"),
            f"run: -a must name an attribute of {ADD}, one of tile, depth, not 'tiles'; "
            "did you mean tile?",
        ),
        (
            1,
            ("run", f"{FILE}:ad", *CALL[2:]),
            f"kernel: {FILE} must have the function ad, but has add; did you mean add?",
        ),
        (
            1,
            ("run", str(FILE), *CALL[2:]),
            f"kernel: one in a file must be FILE.py:FUNCTION, not '{FILE}'; "
            f"name the function that makes it",
        ),
        (
            1,
            (*CALL, "-a", "tile=100000"),
            "add: a claim must fit into the 196352 bytes of ub that are left, not need 200000; "
            "use smaller tiles",
        ),
        (
            1,
            ("run", "nowhere.py:add", *CALL[2:]),
            "kernel: nowhere.py must be a file of Python, but there is none; check the path",
        ),
    ],
)
def test_what_does_not_fit_is_refused(code: int, words: tuple[str, ...], message: str) -> None:
    refused(code, message, *words)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("import nothing_there\n", "line 1 raises ModuleNotFoundError: No module named "),
        ("\ndef add(:\n", "line 2 raises SyntaxError: invalid syntax"),
        ("def halve(x): return 1 / x\nhalve(0)\n", "line 1 raises ZeroDivisionError: division"),
    ],
)
def test_bad_files_name_their_line(text: str, complaint: str, tmp_path: Path) -> None:
    file = tmp_path / "broken.py"
    file.write_text(text)
    with pytest.raises(KernelError) as caught:
        npusim.run(f"{file}:add", device="Atlas A2")
    start = f"kernel: {file} must run as it stands, but {complaint}"
    assert str(caught.value).startswith(start)
    assert str(caught.value).endswith("; fix it")


def test_what_a_file_imports_is_no_kernel_of_it(tmp_path: Path) -> None:
    (tmp_path / "sizes_of_mine.py").write_text("TILE = 5\ndef other(): ...\n")
    file = tmp_path / "mine.py"
    file.write_text("from sizes_of_mine import TILE, other\ndef add(spec): raise KeyError(TILE)\n")
    with pytest.raises(KernelError) as caught:
        npusim.run(f"{file}:add", device="Atlas A2")
    assert str(caught.value) == (
        "add: the function must return a Kernel, but line 2 raises KeyError: 5; fix it"
    )
    file.write_text("def add(spec):\n    raise ValueError('mine')\n")
    with pytest.raises(KernelError) as caught:
        npusim.run(f"{file}:add", device="Atlas A2")
    assert str(caught.value) == (
        "add: the function must return a Kernel, but line 2 raises ValueError: mine; fix it"
    )
    with pytest.raises(KernelError, match=r"must have the function sub, but has add; define it$"):
        load(f"{file}:sub")


# ---- functions that are no kernels ----

Writer = Callable[[Kernel], Any]
X = TensorSpec((64,), "float16")


def changed(change: Writer) -> Any:
    """The kernel of `add`, changed by *change*."""

    def make(spec: DeviceSpec, x: TensorSpec, y: TensorSpec) -> Any:
        return change(add(spec=spec, x=x, y=y, tile=256))

    return make


def bound(kernel: Kernel, **bindings: Binding | None) -> Kernel:
    (block,) = kernel.blocks
    kept = {name: of for name, of in (block.bindings | bindings).items() if of is not None}
    return replace(kernel, blocks=(replace(block, bindings=kept),))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda kernel: kernel.blocks,
            "make: the function must return a Kernel, not tuple; "
            "write return Kernel(name, blocks, inputs, outputs)",
        ),
        (
            lambda kernel: replace(kernel, inputs={"x": X}),
            "make: Kernel.inputs must be the tensors given, x float16 (64,) ND, "
            "y float16 (64,) ND, not x float16 (64,) ND; pass them on",
        ),
        (
            lambda kernel: replace(kernel, outputs={}),
            "make: a Kernel must have one output at least, not none; add one",
        ),
        (
            lambda kernel: replace(kernel, blocks=()),
            "make: a Kernel must have one block at least, not none; add one",
        ),
        (
            lambda kernel: replace(kernel, workspaces={"z": 32}),
            "make: z must name one tensor, not several; rename one",
        ),
        (
            lambda kernel: replace(kernel, blocks=kernel.blocks * 2),
            "make: each block must have its own core, but core 0 has several; number them",
        ),
        (
            lambda kernel: replace(kernel, blocks=kernel.blocks * 3),
            "make: blocks must fit on the cores of tiny, 2 aic, 2 aiv, not be 3 aiv; "
            "give a core more work, or use another kind",
        ),
        (
            lambda kernel: replace(kernel, blocks=(replace(kernel.blocks[0], kind="gpu"),)),
            "make: blocks must fit on the cores of tiny, 2 aic, 2 aiv, not be 1 gpu; "
            "give a core more work, or use another kind",
        ),
        (
            lambda kernel: bound(kernel, y=None),
            "make: core 0 must bind y to one of x, y, z, not to nothing; "
            "add it to the block's bindings",
        ),
        (
            lambda kernel: bound(kernel, y=Binding("w")),
            "make: core 0 must bind y to one of x, y, z, not to w; add it to the block's bindings",
        ),
        (
            lambda kernel: bound(kernel, z=Binding("z", 64)),
            "add: copies on core 0 must stay within the 128 bytes of z, not touch [64:192] as "
            "store z+0 128 B <- ub[1024:1152] float16 does; fix the tiling or the binding",
        ),
    ],
)
def test_what_cannot_be_launched_is_refused(change: Writer, message: str) -> None:
    with pytest.raises(ValueError, match=says(message)):
        npusim.run(changed(change), X, X, device=tiny_spec(), timing=False)


@pytest.mark.parametrize("turned", ["plain", "strided", "read-only"])
def test_an_input_is_never_written(turned: str, vectors: Any) -> None:
    x, y = (v[0, :320].copy() for v in vectors)
    given = np.repeat(x, 2)[::2] if turned == "strided" else x.copy()
    given.flags.writeable = turned != "read-only"
    into_x = changed(lambda kernel: bound(kernel, z=Binding("x")))
    message = (
        "make: a kernel must leave its inputs as they are, but core 0 writes x by store z+0 512 B "
        "<- ub[1024:1536] float16; list a tensor among Kernel.outputs and bind z to it"
    )
    for device in (tiny_spec(), "Atlas A2"):
        with pytest.raises(KernelError, match=says(message)):
            npusim.run(into_x, given, y, device=device)
    assert np.array_equal(given, x)


def test_what_nobody_wrote_is_found_before_a_run() -> None:
    def short(spec: DeviceSpec, x: TensorSpec, y: TensorSpec) -> Kernel:
        kernel = add(spec=spec, x=x, y=y, tile=256)
        (block,) = kernel.blocks
        ops = tuple(op for op in block.program.ops if not (isinstance(op, Load) and "y" in str(op)))
        return replace(kernel, blocks=(replace(block, program=Program("short", ops)),))

    message = (
        "short: bytes must be written before they are used, but nobody wrote ub[512:640] before "
        "#5 vector: add ub[1024:1152] float16 <- ub[0:128] float16, ub[512:640] float16 reads it, "
        "and #10 mte3: store z+0 128 B <- ub[1024:1152] float16 stores what comes of it; load or "
        "fill it before"
    )
    with pytest.raises(RuntimeError, match=says(message)):
        npusim.run(short, X, X, device=tiny_spec(), timing=False)


@pytest.mark.parametrize("values", [False, True])
@pytest.mark.parametrize(
    ("stores", "message"),
    [
        pytest.param(
            ((0, None),),
            "half: every byte of z must be stored, but nobody stores [64, 128) of its 128; store "
            "them",
            id="half of it",
        ),
        pytest.param(
            (),
            "half: every byte of z must be stored, but nobody stores [0, 128) of its 128; store "
            "them",
            id="nothing",
        ),
        pytest.param(
            ((0, FLOAT16), (64, None)),
            "half #3 (line {line} of test_user_kernel.py): store z+0 64 B float16 += ub[0:64] "
            "float16: it must add to what was stored before, but nobody stores bytes [0, 64) of z; "
            "store zeros there first",
            id="a sum onto what was there",
        ),
    ],
)
def test_every_byte_of_an_output_must_be_stored(
    stores: tuple[tuple[int, DType | None], ...], message: str, values: bool
) -> None:
    def half(spec: DeviceSpec, x: TensorSpec) -> Kernel:
        write = Builder("half", spec.cores["aiv"], spec.sync)
        here = write.claim("ub", 64).of(FLOAT16, 32)
        write.data_copy(here, Global("x", 0, 64))
        write.sync("mte2", "mte3")
        for start, atomic in stores:
            write.emit(Store(Global("z", start, 64), here, atomic=atomic))
        block = Block(0, "aiv", write.build(), {name: Binding(name) for name in "xz"})
        return Kernel("half", (block,), {"x": x}, {"z": x})

    x = np.arange(64, dtype=np.float16)
    line = half.__code__.co_firstlineno + 6
    with pytest.raises(UnwrittenError, match=says(message.format(line=line))):
        npusim.run(half, x, device="Atlas A2", values=values)


def test_what_was_stored_may_be_added_to() -> None:
    def twice(spec: DeviceSpec, x: TensorSpec) -> Kernel:
        write = Builder("twice", spec.cores["aiv"], spec.sync)
        here = write.claim("ub", 128).of(FLOAT16, 64)
        write.data_copy(here, Global("x", 0, 128))
        write.sync("mte2", "mte3")
        write.emit(Store(Global("z", 0, 128), here), Barrier("mte3"))
        write.emit(Store(Global("z", 0, 128), here, atomic=FLOAT16))
        block = Block(0, "aiv", write.build(), {name: Binding(name) for name in "xz"})
        return Kernel("twice", (block,), {"x": x}, {"z": x})

    x = np.arange(64, dtype=np.float16)
    assert np.array_equal(npusim.run(twice, x, device="Atlas A2").output, x + x)


def no_chip(x: TensorSpec) -> Kernel:
    raise NotImplementedError(x)


def whatever(spec: DeviceSpec, *tensors: TensorSpec) -> Kernel:
    raise NotImplementedError(spec, tensors)


@pytest.mark.parametrize(
    ("function", "came"),
    [(no_chip, "x: 'TensorSpec'"), (whatever, "spec: 'DeviceSpec', *tensors: 'TensorSpec'")],
)
def test_a_function_must_take_the_chip_and_names(function: Any, came: str) -> None:
    name = function.__name__
    message = (
        f"{name}: a kernel's function must take the chip as spec and everything else by "
        f"its own name, not ({came}); write for example {name}(spec, x, y)"
    )
    with pytest.raises(KernelError, match=says(message)):
        find(function)


def test_types_that_no_chip_has_are_refused() -> None:
    known = ", ".join(dtype.name for dtype in BUFFER_DTYPES)
    text = f"add: x must be an array of {known}, not complex128; convert it"
    with pytest.raises(KernelError, match=says(text)):
        npusim.run(add, np.ones(4, complex), np.ones(4), device="Atlas A2")
    text = f"add: x must be an array of {known}, not a masked array; convert it"
    with pytest.raises(KernelError, match=says(text)):
        npusim.run(add, np.ma.ones(4, np.float16), np.ones(4), device="Atlas A2")


def test_what_the_chip_refuses_keeps_its_own_words() -> None:
    x = np.ones(64, ml_dtypes.bfloat16)
    with pytest.raises(
        ValueError, match=r"^add #\d+ \(line \d+ of vector_add.py\): .*; cast first$"
    ):
        npusim.run(add, x, x, device="Atlas A2")
    with pytest.raises(ProgramError, match=r"^add: a claim must fit "):
        npusim.run(add, X, X, tile=10**6, device="Atlas A2")
    with pytest.raises(TypeError, match=r"^add: arguments must fit add\(x, y, tile=4096"):
        npusim.run(add, X, device="Atlas A2")
