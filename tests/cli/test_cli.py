"""The command line: what goes to stdout, what to stderr, and with which exit code."""

import json
import os
import re
import subprocess
import sys
from dataclasses import replace
from importlib.metadata import version
from itertools import pairwise
from pathlib import Path
from time import monotonic, sleep
from typing import get_args

import ml_dtypes
import numpy as np
import pytest
from commands import entries, npusim_says, refused
from engine_times import needs_compiled
from rich.console import Console

import npusim
from npusim import TensorSpec, chip, devices
from npusim.cli import app, folder, progress
from npusim.cli.call import attribute
from npusim.cli.summary import summary
from npusim.data import folders
from npusim.reports import bounds, style
from npusim.trace.record import VERSION

CHIPS = devices.listing()
ALIASES = (
    "Ascend310P3, Atlas inference, Atlas 推理系列产品, Atlas 300I Pro, Atlas 300V Pro, "
    "Atlas 300I Duo, Ascend310P"
)
"""Of the ascend310p3."""
QUANTIZE = (
    *("run", "npu_quantize", "-d", "Atlas 300I Pro", "-i", "input=arange:2x3x12"),
    *("-i", "scales=full:12:value=3", "-a", "dtype=qint8", "-a", "axis=-1", "-a", "div_mode=false"),
)
"""A call that works."""
FILES = ("output.npy", "run.json", "device.json", "trace.npz", "timeline.png", "pipes.png")
"""What it leaves in its folder."""


def quantize(*more: str, without: str | None = None) -> tuple[str, ...]:
    """The call that works, with *more* words and without the pair whose value starts so."""
    words = list(QUANTIZE)
    if without is not None:
        (place,) = [i for i, word in enumerate(words) if word.startswith(without)]
        del words[place - 1 : place + 1]
    return (*words, *more)


def reference() -> npusim.Run:
    x = np.arange(72, dtype=np.float32).reshape(2, 3, 12)
    scales = np.full(12, 3, np.float32)
    return npusim.run("npu_quantize", x, scales, None, "qint8", -1, False, device="ascend310p3")


# ---- run ----


def test_a_run_is_summed_up() -> None:
    run = reference()
    assert run.time_us is not None
    assert run.trace is not None
    cores_us = run.time_us - run.launch_us
    works = run.trace.lanes[0].work_cycles()
    rows = [
        (
            pipe,
            f"{100 * counter.busy_cycles / run.trace.cycles:.1f} %",
            f"{100 * works[pipe] / run.trace.cycles:.1f} %",
            counter,
        )
        for pipe in style.PIPES
        if (counter := run.counters[0].get(pipe)) is not None
    ]
    code, out, err = npusim_says(*QUANTIZE)

    assert (code, err) == (0, "")
    assert out == (
        "operator  npu_quantize\n"
        "chip      Atlas inference (Ascend 310P3)\n"
        "output    int8 (2, 3, 12): 0 3 6 9 12 15 18 21 24 27 30 33 ...\n"
        f"time      {run.time_us:.2f} us = {run.launch_us:.2f} us launch and completion"
        f" + {cores_us:.2f} us slowest core ({run.cycles} cycles at 1.06 GHz)\n"
        f"engine    {run.engine}\n"
        "accuracy  unvalidated: no public measurement of this kind of kernel on Atlas inference; "
        "90 % of the kernels of other kinds are within 49 %\n"
        f"why       {bounds.finding(run)}\n"
        "memory    768 bytes from and to global memory, 3.125 KiB from and to the L2\n"
        "cores     core 0 (ai_core) alone\n"
        "\n"
        f"pipe       busy   active   busy cycles   micro-ops   bytes moved\n"
        f"{'─' * 64}\n"
        + "".join(
            f"{pipe:6}   {busy:>6}   {own:>6}   {counter.busy_cycles:11}   "
            f"{counter.micro_ops:9}   {counter.nbytes:11}\n"
            for pipe, busy, own, counter in rows
        )
    )


def test_of_many_cores_the_slowest_is_named() -> None:
    x, scale = TensorSpec((512, 512), "float16"), TensorSpec((1,), "float16")
    run = npusim.run("npu_quantize", x, scale, None, "qint8", 1, False, device="ascend310p3")
    assert run.trace is not None
    slowest = run.trace.slowest
    code, out, _ = npusim_says(
        *("run", "npu_quantize", "-d", "ascend310p3", "-i", "input=spec:512x512:half"),
        *("-i", "scales=spec:1:half", "-a", "dtype=qint8", "-a", "div_mode=false"),
    )

    assert code == 0
    assert "output    int8 (512, 512), without values\n" in out
    assert (
        f"cores     15: 8 ai_core and 7 vector_core, of which core {slowest.cores[0]} "
        f"({slowest.kind}) is the slowest\n" in out
    )


def test_of_a_mixed_kernel_each_kind_of_core_has_its_table() -> None:
    """The pipe that holds the run up is of a cube core, the core that ends last a vector core."""
    x1, x2 = TensorSpec((16, 1024), "int8"), TensorSpec((1024, 2048), "int8")
    scale, rows = TensorSpec((2048,), "bfloat16"), TensorSpec((16,), "float32")
    run = npusim.run(
        *("npu_quant_matmul", x1, x2, scale),
        pertoken_scale=rows, output_dtype="bfloat16", device="ascend910b2",
    )  # fmt: skip
    assert run.trace is not None
    cubes, vectors = (
        [core for core in run.trace.cores if run.trace.kind(core) == kind]
        for kind in ("aic", "aiv")
    )
    slowest = run.trace.slowest
    code, out, _ = npusim_says(
        *("run", "npu_quant_matmul", "-d", "ascend910b2", "-a", "output_dtype=bfloat16"),
        *("-i", "x1=spec:16x1024:int8", "-i", "x2=spec:1024x2048:int8"),
        *("-i", "scale=spec:2048:bfloat16", "-i", "pertoken_scale=spec:16:float32"),
    )

    assert code == 0
    assert f"why       {bounds.finding(run)}\n" in out
    assert (
        f"cores     {len(cubes) + len(vectors)}: {len(cubes)} aic and {len(vectors)} aiv, of which "
        f"core {slowest.cores[0]} ({slowest.kind}) is the slowest\n" in out
    )
    first, *tables = out.split("\n\n")
    assert first.startswith("operator")
    assert len(tables) == 2
    for text, cores, pipes in zip(
        tables,
        (cubes, vectors),
        (["mte2", "mte1", "cube", "fixpipe"], ["mte2", "vector", "mte3"]),
        strict=True,
    ):
        heading, _, _, *lines = text.splitlines()
        ends = {core: max(span.end for span in run.trace.spans(core)) for core in cores}
        last = min(core for core in cores if ends[core] == max(ends.values()))
        kind = run.trace.kind(last)
        assert heading == f"core {last}, the slowest of {len(cores)} ({kind})"
        assert [line.split()[0] for line in lines] == pipes
        for line in lines:
            pipe, share, _, own, _, cycles, ops, nbytes = line.split()
            counter = run.counters[last][pipe]  # type: ignore[index]
            assert f"{100 * counter.busy_cycles / run.trace.cycles:.1f}" == share
            assert 0 < float(own) <= float(share)
            found = int(cycles), int(ops), int(nbytes)
            assert found == (counter.busy_cycles, counter.micro_ops, counter.nbytes)


CAST = ("run", "npu_format_cast", "-d", "ascend910b2", "-a", "acl_format=29")


def test_an_output_in_fractals_is_printed_by_element() -> None:
    code, out, _ = npusim_says(*CAST, "-i", "x=arange:3x5:int8")

    assert code == 0
    assert "output    int8 (3, 5) FRACTAL_NZ: 0 1 2 3 4 5 6 7 8 9 10 11 ...\n" in out
    _, out, _ = npusim_says(*CAST, "-i", "x=spec:3x5:int8")
    assert "output    int8 (3, 5) FRACTAL_NZ, without values\n" in out


def test_a_tensor_in_fractals_can_be_an_input() -> None:
    code, out, _ = npusim_says(
        *("run", "npu_format_cast", "-d", "ascend910b2", "-a", "acl_format=ND"),
        *("-i", "x=arange:3x5:int8:layout=FRACTAL_NZ:transposed=true"),
    )

    assert code == 0
    assert "output    int8 (3, 5): 0 1 2 3 4 5 6 7 8 9 10 11 ...\n" in out


def test_a_folder_holds_a_tensor_as_it_lies(tmp_path: Path) -> None:
    npusim_says(*CAST, "-i", "x=arange:3x5:int8", "-o", str(tmp_path / "out"), "--no-timing")

    expected = np.zeros((1, 1, 16, 32), np.int8)
    expected[0, 0, :3, :5] = np.arange(15).reshape(3, 5)
    np.testing.assert_array_equal(np.load(tmp_path / "out" / "output.npy"), expected)
    record = json.loads((tmp_path / "out" / "run.json").read_text())
    assert record["output"] == {"shape": [3, 5], "dtype": "int8", "layout": "FRACTAL_NZ"}


def test_each_of_several_outputs_has_a_line_and_a_file(tmp_path: Path) -> None:
    words = ("run", "npu_dynamic_quant", "-d", "Atlas A2", "-i", "x=arange:2x3:float16")
    code, out, err = npusim_says(*words, "-o", str(tmp_path / "out"), "--no-timing")

    assert (code, err) == (0, "")
    assert "output    int8 (2, 3): 0 64 127 76 102 127\n" in out
    assert "scale     float32 (2,): 0.01574803" in out
    assert f"\nwrote output.npy, scale.npy, run.json, device.json to {tmp_path / 'out'}\n" in out
    scale = np.load(tmp_path / "out" / "scale.npy")
    np.testing.assert_array_equal(scale, np.float32([2, 5]) * np.float32(1 / 127))
    assert np.load(tmp_path / "out" / "output.npy").tolist() == [[0, 64, 127], [76, 102, 127]]
    _, out, _ = npusim_says(*words[:-1], "x=spec:2x3:float16")
    assert "output    int8 (2, 3), without values\n" in out
    assert "scale     float32 (2,), without values\n" in out


def test_the_template_is_printed_with_its_reason() -> None:
    class Chosen:
        template, reason, block_dim = "msd", "few rows", 1

    told = Console(width=200)
    for reason, line in (("few rows", "template  msd: few rows"), (None, "template  msd")):
        plan = Chosen()
        plan.reason = reason
        with told.capture() as captured:
            told.print(summary(replace(reference(), plan=plan, trace=None, timed=False)))
        assert line in [text.rstrip() for text in captured.get().splitlines()]
    _, out, _ = npusim_says(*QUANTIZE)
    assert "template" not in out


@pytest.mark.parametrize(
    ("words", "lines"),
    [
        (
            quantize("--no-timing"),
            "12): 0 3 6 9 12 15 18 21 24 27 30 33 ...\ntime      not asked for\n",
        ),
        (quantize("--no-values"), "output    int8 (2, 3, 12), without values\n"),
        (
            quantize("-i", "input=zeros:0x12", without="input="),
            "output    int8 (0, 12):\ntime      0 us, for no kernel ran\n",
        ),
    ],
)
def test_what_is_missing_is_said(words: tuple[str, ...], lines: str) -> None:
    code, out, err = npusim_says(*words)

    assert (code, err) == (0, "")
    assert lines in out


def test_json_is_all_there_is_and_always_the_same_bytes() -> None:
    first, second = npusim_says(*quantize("--json")), npusim_says(*quantize("--json"))

    assert first == second
    assert (first.code, first.err) == (0, "")
    assert json.loads(first.out) == json.loads(json.dumps(reference().to_json()))


def test_options_reach_the_run() -> None:
    cold = json.loads(npusim_says(*quantize("--json")).out)
    warm = json.loads(npusim_says(*quantize("--json", "--l2", "warm")).out)

    assert (cold["l2"], warm["l2"]) == ("cold", "warm")
    assert warm["time_us"] < cold["time_us"]
    assert json.loads(npusim_says(*quantize("--json", "--every-core")).out) == cold
    assert json.loads(npusim_says(*quantize("--json", "--no-timing")).out)["time_us"] is None


def test_files_are_inputs(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.ones((2, 12), ml_dtypes.bfloat16))
    code, out, _ = npusim_says(
        *("run", "npu_quantize", "-d", "Atlas A2", "-i", f"input={tmp_path}/x.npy:bfloat16"),
        *("-i", "scales=full:12:bfloat16:value=0.5", "-i", "zero_points=none"),
        *("-a", "dtype=qint8", "-a", "axis=-1"),
    )

    assert code == 0
    assert "output    int8 (2, 12): 2 2 2 2 2 2 2 2 2 2 2 2 ...\n" in out


def test_optional_tensors_and_keywords_can_be_left_out_or_given() -> None:
    call = (
        *("run", "npu_group_quant", "-d", "Atlas A2", "-i", "x=ones:8x32:half"),
        *("-i", "scale=full:2x32:value=3", "-i", "group_index=full:2:int32:value=8"),
        *("-a", "dst_dtype=qint8"),
    )

    assert "int8 (8, 32): 3 3 3" in npusim_says(*call).out
    assert "int8 (8, 32): 5 5 5" in npusim_says(*call, "-i", "offset=full:1:value=2").out


def test_a_device_can_be_a_custom_file(tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text('extends = "ascend310p3"\nname = "mine"\n')
    call = [str(file) if word == "Atlas 300I Pro" else word for word in QUANTIZE]

    assert "chip      Atlas inference (mine)\n" in npusim_says(*call).out


# ---- wrong calls: exit code 2 ----


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ("-i", "scale=ones:1"),
            "-i must name a tensor of npu_quantize, one of input, scales, zero_points, "
            "not 'scale'; did you mean scales?",
        ),
        (
            ("-i", "axis=ones:1"),
            "-i must name a tensor of npu_quantize, one of input, scales, zero_points, "
            "not 'axis'; use one of these, or -a",
        ),
        (
            ("-a", "scales=3"),
            "-a must name an attribute of npu_quantize, one of dtype, axis, div_mode, "
            "not 'scales'; use one of these, or -i",
        ),
        (
            ("-a", "div_mod=true"),
            "-a must name an attribute of npu_quantize, one of dtype, axis, div_mode, "
            "not 'div_mod'; did you mean div_mode?",
        ),
        (
            ("-i", "x.npy"),
            "-i must be NAME=VALUE, not 'x.npy'; write for example -i input=randn:8x16",
        ),
        (("-a", "qint8"), "-a must be NAME=VALUE, not 'qint8'; write for example -a dtype=qint8"),
        (("-a", "axis=0"), "-a axis must come once; drop one of them"),
        (("-i", "input=ones:3"), "-i input must come once; drop one of them"),
    ],
)
def test_names_must_fit_the_operator(words: tuple[str, ...], message: str) -> None:
    refused(2, f"run: {message}", *quantize(*words))


REFUSED: list[tuple[int, tuple[str, ...], str]] = [
    (
        2,
        ("run", "npu_quantise", "-d", "Atlas A2"),
        "ops: an operator must be one that npusim simulates, not 'npu_quantise'; did you mean "
        "npu_quantize?",
    ),
    (
        1,
        quantize("--l2", "hot"),
        "run: l2 must be cold, warm, repeat, or a tuple of inputs out of input, scales, or shares "
        "of these by name, not ('hot',); use one of these",
    ),
    (
        1,
        quantize("--l2", "input=half"),
        "run: the share of input in l2 must be a number from 0 to 1, not 'half'; 1 is all of it",
    ),
    (
        1,
        quantize("--icache", "hot"),
        "run: icache must be cold or warm, not 'hot'; use one of these",
    ),
    (
        2,
        quantize(without="scales="),
        "run: scales of npu_quantize must be given; add for example -i scales=randn:8x16",
    ),
    (
        2,
        quantize(without="dtype="),
        "run: dtype of npu_quantize must be given; add for example -a dtype=int8",
    ),
    (
        2,
        quantize("-i", "zero_points=randn:8x-1"),
        "inputs: randn must have a shape of sizes joined by x, not '8x-1'; "
        "write for example randn:8x16, or randn:scalar",
    ),
    (
        1,
        quantize("-a", "dtype=quint8", without="dtype="),
        "npu_quantize: dtype must be qint8 with div_mode=False on Atlas inference, not 'quint8'; "
        "pass 'qint8' [161002]",
    ),
    (
        1,
        quantize("-i", "zero_points=/nowhere/x.npy"),
        "inputs: /nowhere/x.npy: must be a file that can be read, but: No such file or directory; "
        "check the path",
    ),
    (
        2,
        quantize("-a", "axis=" + "1" * 5000, without="axis="),
        "attributes: a whole number must have at most 19 digits, not 5000; write a smaller one",
    ),
    (
        2,
        quantize("-a", "axis=-" + "1" * 20, without="axis="),
        "attributes: a whole number must have at most 19 digits, not 20; write a smaller one",
    ),
    (
        2,
        quantize("-a", "axis=1e999", without="axis="),
        "attributes: a number must be at most 1.79769e+308, not 1e999; write a smaller one",
    ),
]


@pytest.mark.parametrize(("code", "words", "message"), REFUSED, ids=[row[2] for row in REFUSED])
def test_wrong_calls_are_refused(code: int, words: tuple[str, ...], message: str) -> None:
    refused(code, message, *words)


def test_tensors_of_a_list_are_given_one_by_one() -> None:
    words = ("-i", "x=ones:8x32:float16", "-i", "weight=ones:32x16:float16")
    code, out, err = npusim_says(
        *("run", "npu_grouped_matmul", "-d", "A2", *words, "-i", "weight=ones:32x16:float16"),
        *("-i", "group_list=values:2:int64:of=3,8", "-a", "group_type=0", "-a", "split_item=3"),
    )
    assert (code, err) == (0, "")
    assert "output    float16 (8, 16): 32.0 32.0" in out


@pytest.mark.parametrize(
    ("word", "state"),
    [
        ("warm", "warm"),
        ("repeat", "repeat"),
        ("input,scales", ["input", "scales"]),
        ("input=0.5,scales", {"input": 0.5, "scales": 1}),
    ],
)
def test_the_l2_may_hold_inputs_by_name(word: str, state: object) -> None:
    code, out, err = npusim_says(*quantize("--l2", word, "--json"))
    assert (code, err) == (0, "")
    assert json.loads(out)["l2"] == state


@pytest.mark.parametrize(
    ("words", "part"),
    [
        (("layout",), "Usage: npusim layout"),
        (("run",), "Usage: npusim run"),
        (("run", "npu_quantize"), "Missing option '--device'"),
        (quantize("--fast"), "No such option"),
        (("walk",), "No such command 'walk'"),
        (("devices", "list"), "No such command 'list'"),
        (("devices", "show"), "Missing argument 'NAME'"),
    ],
)
def test_other_wrong_words_are_reported_by_usage(words: tuple[str, ...], part: str) -> None:
    code, out, err = npusim_says(*words)

    assert code == 2
    assert part in " ".join((out + err).split())


@pytest.mark.parametrize("engine", ["simpy", pytest.param("compiled", marks=needs_compiled)])
def test_the_version_is_that_of_the_package(engine: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NPUSIM_ENGINE", engine)
    said = f"npusim {version('npusim')}, times by engine {engine}\n"
    assert npusim_says("--version") == (0, said, "")


def test_the_version_is_refused_an_engine_that_there_is_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("NPUSIM_ENGINE", "numba")
    text = "run: NPUSIM_ENGINE must be one of auto, simpy, compiled, not 'numba'; use one"
    assert npusim_says("--version") == (1, "", f"npusim: {text}\n")


@pytest.mark.parametrize("engine", ["simpy", pytest.param("compiled", marks=needs_compiled)])
def test_a_run_names_what_found_its_times(engine: str, tmp_path: Path) -> None:
    words = quantize("--engine", engine)
    assert f"\nengine    {engine}\n" in npusim_says(*words).out
    npusim_says(*words, "-o", str(tmp_path / "out"))
    record = json.loads((tmp_path / "out" / "run.json").read_text())
    assert record["engine"] == engine


# ---- refusals: exit code 1 ----


def test_a_trap_is_reported_like_any_refusal() -> None:
    code, out, err = npusim_says(
        *("run", "npu_group_quant", "-d", "Atlas A2", "-i", "x=ones:8x32:half"),
        *("-i", "scale=ones:2x32", "-i", "group_index=full:2:int32:value=9"),
        *("-a", "dst_dtype=qint8"),
    )

    assert (code, out) == (1, "")
    assert err.startswith("npusim: npu_group_quant: ")
    assert err.endswith(" [507015]\n")
    assert err.count("\n") == 1


def test_a_device_must_exist() -> None:
    message = (
        f"devices: no device 'ascend910x'; did you mean ascend910b1? known: {CHIPS}; "
        f"for your own file give its path, which ends in .toml"
    )
    call = [word if word != "Atlas 300I Pro" else "ascend910x" for word in QUANTIZE]
    code, out, err = npusim_says(*call)

    assert (code, out) == (1, "")
    assert err.startswith("npusim: devices: no device 'ascend910x'; ")
    assert err.endswith(message[message.index("known:") :] + "\n")


def test_each_problem_of_a_device_file_has_its_line(tmp_path: Path) -> None:
    file = tmp_path / "[mine].toml"
    file.write_text('extends = "ascend310p3"\nname = 1\nspeed = 2\n')
    code, out, err = npusim_says("devices", "show", str(file))

    assert (code, out) == (1, "")
    assert [line.partition(" must ")[0] for line in err.splitlines()] == [
        "npusim: devices: [mine].toml: name:",
        "npusim: devices: [mine].toml: speed:",
    ]


def test_too_little_memory_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    def out_of_memory(*_: object, **__: object) -> None:
        raise MemoryError

    monkeypatch.setattr(npusim, "run", out_of_memory)
    refused(
        1, "the arrays must fit into memory; use spec:SHAPE:DTYPE to ask for time only", *QUANTIZE
    )


def test_a_fault_of_npusim_is_not_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    def faulty(*_: object, **__: object) -> None:
        raise KeyError("ours")

    monkeypatch.setattr(npusim, "run", faulty)
    with pytest.raises(KeyError, match="ours"):
        npusim_says(*QUANTIZE)


@pytest.mark.parametrize(
    ("word", "value"),
    [
        ("true", True),
        ("False", False),
        ("none", None),
        ("-1", -1),
        ("+3", 3),
        ("0.5", 0.5),
        ("1e3", 1000.0),
        (".5", 0.5),
        ("qint8", "qint8"),
        ("", ""),
        ("1_0", "1_0"),
        ("nan", "nan"),
        ("1,-2,3", [1, -2, 3]),
        ("64,", [64]),
        ("1,x", "1,x"),
        (",", ","),
    ],
)
def test_attributes_mean_what_they_look_like(word: str, value: object) -> None:
    assert attribute(word) == value
    assert type(attribute(word)) is type(value)


@pytest.mark.parametrize(
    "words",
    [
        ("run", "npu_dynamic_quant", "-d", "A2", "-i", "x=randn:8x64:float16:seed={}x"),
        ("run", "npu_dynamic_quant", "-d", "A2", "-i", "x=randn:{}x64:float16"),
        ("run", "npu_dynamic_quant", "-d", "A2", "-i", "x=randn:8x64:{}"),
        ("run", "npu_dynamic_quant", "-d", "A2", "-i", "x={}"),
        ("run", "npu_dynamic_quant", "-d", "A2", "-i", "{}=zeros:8"),
        ("run", "npu_dynamic_quant", "-d", "A2", "-i", "{}"),
        ("layout", "{}x4", "int8", "ND"),
        ("layout", "20x40", "int8", "ND", "--offset", "{}"),
        ("layout", "where", "20x40", "int8", "ND", "--index", "1,{}"),
        ("decode-scale", "x{}"),
        ("decode-scale", "--encode", "{},x"),
        ("compare", "{}", "ones:8"),
    ],
)
def test_long_words_are_cut(words: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        app([word.format("9" * 5000) for word in words], prog_name="npusim")

    message = capsys.readouterr().err
    assert caught.value.code == 2
    assert "99999..." in message
    assert len(message) < 400


def test_a_full_disk_behind_stdout_is_reported_once(tmp_path: Path) -> None:
    # Files of this process cannot grow, as on a full disk.
    code = (
        "import resource, npusim.cli; resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0)); "
        "npusim.cli.main()"
    )
    with (tmp_path / "answer").open("wb") as answer:
        done = subprocess.run(
            [sys.executable, "-c", code, "ops"],
            stdout=answer,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONUNBUFFERED": ""},
        )
    assert done.returncode == 1
    assert done.stderr == (
        "npusim: files: the answer must be one that can be read or written, but: File too large; "
        "check where it goes\n"
    )


# ---- folders ----


def test_a_folder_holds_values_numbers_and_pictures(tmp_path: Path) -> None:
    out = tmp_path / "deep" / "out"
    code, said, err = npusim_says(*quantize("-o", str(out)))

    assert (code, err) == (0, "")
    assert said.endswith(f"\nwrote {', '.join(FILES)} to {out}\n")
    assert entries(out) == sorted(FILES)
    assert entries(out.parent) == ["out"]
    np.testing.assert_array_equal(np.load(out / "output.npy"), reference().output)
    record = json.loads((out / "run.json").read_text())
    assert next(row["causes"] for row in record.pop("trials")) == ["launch"]
    assert record.pop("version") == VERSION
    assert record.pop("files") == sorted(FILES)
    assert set(record.pop("sha256")) == {"run.json", "device.json", "trace.npz"}
    words = quantize()
    assert record.pop("typed") == {
        "op": ["npu_quantize"],
        "input": [word for flag, word in pairwise(words) if flag == "-i"],
        "attr": [word for flag, word in pairwise(words) if flag == "-a"],
    }
    assert record == json.loads(npusim_says(*quantize("--json")).out)
    for picture in ("timeline.png", "pipes.png"):
        assert (out / picture).read_bytes().startswith(b"\x89PNG")


def test_a_folder_next_to_json_changes_nothing_on_stdout(tmp_path: Path) -> None:
    with_folder = npusim_says(*quantize("--json", "-o", str(tmp_path / "out")))

    # A slow machine prints its progress on stderr.
    without = npusim_says(*quantize("--json"))
    assert (with_folder.code, with_folder.out) == (without.code, without.out)


def test_only_what_there_is_gets_written(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()  # an empty one may be there
    npusim_says(*quantize("-o", str(tmp_path / "a"), "--no-values"))
    npusim_says(*quantize("-o", str(tmp_path / "b"), "--no-timing"))

    assert entries(tmp_path / "a") == sorted({*FILES} - {"output.npy"})
    assert entries(tmp_path / "b") == ["device.json", "output.npy", "run.json"]


def test_a_refused_run_leaves_nothing(tmp_path: Path) -> None:
    out = tmp_path / "deep" / "out"
    code, _, _ = npusim_says(*quantize("-o", str(out), "-a", "dtype=quint8", without="dtype="))

    assert code == 1
    assert entries(tmp_path) == []


def test_a_folder_that_holds_something_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "letter.txt").write_text("dear")
    refused(
        1,
        f"run: the folder {tmp_path} must be new or empty, but holds letter.txt; "
        f"name another, or add --force to replace an earlier run",
        *quantize("-o", str(tmp_path)),
    )
    refused(
        1,
        f"run: the folder {tmp_path} must hold a run.json to be replaced, but holds letter.txt; "
        f"name another",
        *quantize("-o", str(tmp_path), "--force"),
    )
    assert (tmp_path / "letter.txt").read_text() == "dear"


def test_force_replaces_an_earlier_run(tmp_path: Path) -> None:
    out = tmp_path / "out"
    npusim_says(*quantize("-o", str(out)))
    code, _, _ = npusim_says(*quantize("-o", str(out), "--force", "--no-timing"))

    assert code == 0
    assert entries(out) == ["device.json", "output.npy", "run.json"]
    assert entries(tmp_path) == ["out"]


def test_a_failed_picture_keeps_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "out"
    npusim_says(*quantize("-o", str(out)))

    def full(*_: object) -> list[str]:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(folder, "_draw", full)
    refused(
        1,
        f"run: the folder {out} must be one that can be written, but: No space left on device; "
        f"name another",
        *quantize("-o", str(out), "--force"),
    )
    assert len(entries(out)) == len(FILES)
    assert entries(tmp_path) == ["out"]


def test_a_folder_below_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for place in (tmp_path / "file", tmp_path / "file" / "out"):
        refused(
            1,
            f"run: the folder {place} must be one that can be written, but: Not a directory; "
            f"name another",
            *quantize("-o", str(place)),
        )


def test_a_read_only_folder_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(folders.os, "access", lambda path, _: path != tmp_path)
    refused(
        1,
        f"run: the folder {tmp_path}/a/b must be one that can be written, but: Permission denied; "
        f"name another",
        *quantize("-o", str(tmp_path / "a" / "b")),
    )


def test_the_current_folder_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    refused(
        1, "run: the folder . must not be the current one; name one below it", *quantize("-o", ".")
    )


# ---- progress ----


def test_a_run_reports_its_progress() -> None:
    heard: list[tuple[str, float]] = []
    x = np.ones((64, 8192), np.float32)
    one = np.ones(1, np.float32)
    npusim.run(
        *("npu_quantize", x, one, None, "qint8"),
        device="ascend310p3",
        progress=lambda *news: heard.append(news),
    )
    stages = ("programs", "checks", "values", "time")
    shares = [[share for stage, share in heard if stage == wanted] for wanted in stages]

    in_order = [stage for stage, own in zip(stages, shares, strict=True) for _ in own]
    assert [stage for stage, _ in heard] == in_order
    for own in shares:
        assert own == sorted(own) != []
        assert all(0 <= share <= 1 for share in own)


def test_what_takes_long_before_the_first_value_is_reported_core_by_core() -> None:
    """Batches, groups and pieces are all written before anything is computed or timed."""
    heard: list[tuple[str, float]] = []
    x = TensorSpec((96, 16, 16), "float16")
    found = npusim.run("matmul", x, x, device="Atlas A2", progress=lambda *news: heard.append(news))

    programs = [share for stage, share in heard if stage == "programs"]
    assert programs[0] == 0.0
    # Its 24 cores have programs of their own, and the last report says that all is done.
    assert len(set(programs)) == 25
    assert programs[-1] == 1.0
    checks = [share for stage, share in heard if stage == "checks"]
    assert len(checks) == found.plan.block_dim == 24
    assert checks[-1] == 23 / 24


def test_a_launch_of_both_kinds_of_core_is_reported_too() -> None:
    heard: list[tuple[str, float]] = []
    x, weight = TensorSpec((16, 256), "float16"), TensorSpec((256, 6144), "int8")
    scale = TensorSpec((6144,), "float16")
    npusim.run(
        *("npu_weight_quant_batchmatmul", x, weight, scale),
        device="Atlas A2",
        progress=lambda *news: heard.append(news),
    )
    programs = [share for stage, share in heard if stage == "programs"]
    assert len(programs) > 4
    assert programs == sorted(programs)
    assert programs[-1] == 1.0


def test_who_listens_does_not_change_the_times() -> None:
    x, one = TensorSpec((512, 8192), "float16"), TensorSpec((8192,), "float16")
    call = ("npu_quantize", x, one, None, "qint8", -1, False)
    silent = npusim.run(*call, device="ascend310p3")
    heard = npusim.run(*call, device="ascend310p3", progress=lambda *_: None)

    assert silent.to_json() == heard.to_json()


def test_files_get_lines(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """By the clock: also before there is news, and where news are far apart."""

    def hears(line: str, times: int) -> bool:
        heard, deadline = "", monotonic() + 10
        while heard.count(line) < times and monotonic() < deadline:
            sleep(0.005)
            heard += capsys.readouterr().err
        return heard.count(line) >= times

    now_s = 0.0
    monkeypatch.setattr(progress, "monotonic", lambda: now_s)
    monkeypatch.setattr(progress, "LINE_EVERY_S", 0.01)
    with progress.shown() as report:
        assert hears("npusim: working, 0 s elapsed\n", 1)
        report("rows", 0.3)
        assert hears("npusim: Simulating rows: 30 %, 0 s elapsed\n", 2)
        now_s = 10.0
        report("rows", 0.4, "5 a second")
        assert hears(
            "npusim: Simulating rows: 40 %, 10 s elapsed, 5 a second, about 60 s left\n", 1
        )
        report("rows", 1.0)
        assert hears("npusim: Simulating rows: 100 %, 10 s elapsed\n", 1)
    capsys.readouterr()
    sleep(0.05)
    assert capsys.readouterr() == ("", "")


def test_every_stage_has_words() -> None:
    assert set(progress.STAGES) == set(get_args(chip.Stage))


def test_short_runs_lack_a_bar(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    monkeypatch.setattr(
        "rich.console.Console",
        lambda stderr: Console(stderr=stderr, force_terminal=True, width=60),
    )

    def play() -> chip.Progress:
        with progress.shown() as report:
            report("values", 0.5)
            report("time", 0.25)
        return report

    play()
    assert capsys.readouterr() == ("", "")
    monkeypatch.setattr(progress, "PATIENCE_S", 0.0)
    play()
    out, err = capsys.readouterr()
    assert out == ""
    assert "Computing values" in err
    assert " 25%" in err


# ---- ops ----


def test_operators_are_listed_with_what_they_do() -> None:
    code, out, err = npusim_says("ops")

    assert (code, err) == (0, "")
    rows = [line.split(maxsplit=1) for line in out.splitlines()[2:]]
    assert [name for name, _ in rows] == list(npusim.ops.names())
    assert dict(rows)["npu_quantize"] == (
        "floats to int8, uint8, int32 or packed int4, by given scales."
    )


def test_operators_as_json() -> None:
    first, second = npusim_says("ops", "--json"), npusim_says("ops", "--json")
    rows = {row["name"]: row for row in json.loads(first.out)}

    assert first == second
    assert tuple(rows) == npusim.ops.names()
    assert rows["npu_quantize"] == {
        "name": "npu_quantize",
        "signature": "(input, scales, zero_points, dtype, axis=1, div_mode=True)",
        "summary": "floats to int8, uint8, int32 or packed int4, by given scales.",
        "tensors": ["input", "scales", "zero_points"],
        "attributes": ["dtype", "axis", "div_mode"],
        "types": dict.fromkeys(("input", "scales"), "Tensor")
        | {"zero_points": "Tensor?", "dtype": "dtype", "axis": "int", "div_mode": "bool"},
    }


# ---- devices ----


def test_chips_are_listed_with_their_products() -> None:
    code, out, err = npusim_says("devices")

    assert (code, err) == (0, "")
    chips, products = (part.splitlines()[2:] for part in out.split("\n\n"))
    rows = {line.split("   ")[0].strip(): line for line in chips}
    assert tuple(rows) == devices.names()
    row = [cell.strip() for cell in rows["ascend310p3"].split("  ") if cell.strip()]
    assert row == [
        *("ascend310p3", "Atlas inference", "8 ai_core, 7 vector_core"),
        *("1.06 GHz", "16 MiB", "204.8 GB/s"),
    ]
    cells = [re.split(r" {2,}", line) for line in products]
    assert ["Atlas 300I Pro", "ascend310p3"] in cells
    assert all(devices.load(product).name == chip for product, chip in cells)


PROFILE = Path(__file__).parents[2] / "examples" / "profile"
PRODUCT = ("-i", "x1=spec:16x64:int8", "-i", "x2=spec:64x32:int8", "-i", "scale=spec:32")


@pytest.mark.parametrize(
    "words",
    [
        ("ops",),
        ("devices",),
        ("profile", PROFILE, "-d", "910B3", "-j", "1"),
        ("explain", "npu_quant_matmul", "-d", "A2", *PRODUCT),
        *(("explain", name) for name in npusim.ops.names()),
    ],
    ids=lambda words: " ".join(map(str, words[:2])),
)
def test_a_list_fits_a_pipe(words: tuple[str, ...]) -> None:
    code, out, err = npusim_says(*words)
    assert (code, err) == (0, "")
    assert max(map(len, out.splitlines())) <= 100


def test_chips_as_json() -> None:
    first, second = npusim_says("devices", "--json"), npusim_says("devices", "--json")
    rows = {row["name"]: row for row in json.loads(first.out)}

    assert first == second
    assert tuple(rows) == devices.names()
    spec = devices.load("ascend910b2")
    assert rows["ascend910b2"] == {
        "name": "ascend910b2",
        "aliases": ["Ascend910B2", "Atlas A2", "Atlas A2 训练系列产品", "Ascend910B"],
        "series": "Atlas A2",
        "cores": {
            "aic": {"count": 24, "clock_hz": 1_800_000_000},
            "aiv": {"count": 48, "clock_hz": 1_800_000_000},
        },
        "l2_bytes": spec.l2.capacity_bytes,
        "gm_read_bytes_per_s": spec.gm.read_bytes_per_s,
    }


def test_a_chip_is_shown_with_every_number_and_its_unit() -> None:
    code, out, err = npusim_says("devices", "show", "Atlas 300I Pro")

    assert (code, err) == (0, "")
    lines = [" ".join(line.split()) for line in out.splitlines()]
    assert lines[2:7] == [
        "name ascend310p3",
        "series Atlas inference",
        "arch 2002",
        f"aliases {ALIASES}",
        "half_overflow saturate",
    ]
    for row in (
        "[cores.ai_core]",
        "clock_hz 1.06 GHz",
        "ub_bytes 256 KiB",
        "[cores.ai_core.paths.gm_to_ub]",
        "bytes_per_cycle 114 bytes/cycle",
        "read_bytes_per_s 204.8 GB/s",
        "[vector.classes.cast]",
        "cycles_per_repeat_16bit 1 cycles/repeat",
        "completion_us 0.25 us",
    ):
        assert row in lines
    keys = [key for key in devices.load("ascend310p3").sources if not key.startswith("aliases.")]
    names = {key.rpartition(".")[2] for key in keys}
    assert names <= {line.partition(" ")[0] for line in lines}


def test_every_number_can_be_shown_with_its_source() -> None:
    code, out, _ = npusim_says("devices", "show", "ascend310p3", "--sources")

    assert code == 0
    for source in devices.load("ascend310p3").sources.values():
        assert f"{source.confidence}  " in out
        assert f"   {source.text}\n" in out


def test_a_chip_as_json_is_its_spec() -> None:
    bare = json.loads(npusim_says("devices", "show", "ascend910b2", "--json").out)
    full = json.loads(npusim_says("devices", "show", "ascend910b2", "--json", "--sources").out)
    sources = full.pop("sources")
    spec = devices.load("ascend910b2")

    assert bare == full
    assert npusim.DeviceSpec.model_validate(bare) == spec.model_copy(update={"sources": {}})
    assert sources["l2.capacity_bytes"] == {
        "text": spec.sources["l2.capacity_bytes"].text,
        "confidence": spec.sources["l2.capacity_bytes"].confidence,
    }
    assert sources.keys() == spec.sources.keys()


# ---- the process ----


def test_the_module_is_the_command() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "npusim", "ops", "--json"], capture_output=True, check=True
    )

    assert done.stdout.decode() == npusim_says("ops", "--json").out
    assert done.stderr == b""


def test_pictures_are_not_loaded_until_they_are_drawn() -> None:
    code = "import sys, npusim.cli, npusim.reports.timeline; sys.exit('matplotlib' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize("command", ["run", "explain"])
def test_that_a_custom_file_is_run_is_said(command: str) -> None:
    code, out, _ = npusim_says(command, "--help")

    assert code == 0
    words = " ".join(out.replace("│", " ").split())
    assert "The whole file is run." in words


def test_a_call_that_the_document_excludes_is_warned_of_in_a_line() -> None:
    weight = "weight=randint:64x128:int8:high=8:layout=FRACTAL_NZ"
    code, out, err = npusim_says(
        *("run", "npu_weight_quant_batchmatmul", "-d", "ascend910b2", "--no-timing"),
        *("-i", "x=randn:4x64:float16", "-i", weight, "-i", "antiquant_scale=ones:128:float16"),
        *("-i", "quant_scale=ones:128"),
    )
    assert code == 0
    assert "int8" in out
    assert err.splitlines()[-1] == (
        "npusim: warning: npu_weight_quant_batchmatmul: the document takes quant_scale with ND "
        "weights only, but its own example passes it with a FRACTAL_NZ one; it is taken"
    )
