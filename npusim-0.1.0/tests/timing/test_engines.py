"""The compiled engine gives what SimPy's gives, or says what is wrong in the same words."""

from __future__ import annotations

import random
import re
import subprocess
import sys
from dataclasses import replace
from typing import Any

import pytest
from chips import THREE, every
from engine_times import assert_equal_traces, needs_compiled
from nests import flat, nested
from random_programs import DEVICE, TENSORS, RandomProgram, random_program

from npusim import TensorSpec, chip, devices, run
from npusim.check.hazards import DeadlockError
from npusim.data.tensor import GlobalTensor
from npusim.timing import engines
from npusim.timing.engines import Engine, EngineError, engine_named
from npusim.trace import Trace

Calls = list[tuple[str, dict[str, Any]]]
RAGGED: Calls = [
    ("npu_quantize", {"input": ((515, 33), "float16"), "scales": ((33,), "float32")}),
    ("npu_dynamic_quant", {"x": ((131, 544), "float16")}),
    ("npu_quant_matmul", {"x1": ((70, 600), "int8"), "x2": ((600, 336), "int8")}),
    ("matmul", {"x1": ((300, 1040), "float16"), "x2": ((1040, 272), "float16")}),
]
ATTRIBUTES: dict[str, dict[str, Any]] = {
    "npu_quantize": {"zero_points": None, "dtype": "qint8"},
    "npu_quant_matmul": {"scale": TensorSpec((336,), "int64"), "output_dtype": "float16"},
}


def outcome(program: RandomProgram, engine: Engine, every_core: bool = True) -> Trace | str:
    """What *engine* makes of *program*, right or wrong: its trace, or how it says to be stuck."""
    tensors = [GlobalTensor(name, nbytes) for name, nbytes in TENSORS.items()]
    spec = devices.load(DEVICE)
    try:
        return chip.time(program.blocks, tensors, spec, engine=engine, every_core=every_core)
    except DeadlockError as error:
        return str(error)


@needs_compiled
def test_engines_agree_on_random_launches() -> None:
    kinds = set()
    for seed in random.Random(5).sample(range(10**6), 150):
        program = random_program(seed)
        simpy, built = outcome(program, "simpy"), outcome(program, "compiled")
        kinds.add(type(simpy))
        if isinstance(simpy, Trace) and isinstance(built, Trace):
            assert_equal_traces(simpy, built)
        else:
            assert simpy == built, seed
    assert kinds == {Trace, str}


def test_cores_timed_together_do_as_each_on_its_own() -> None:
    kinds = set()
    for seed in random.Random(6).sample(range(10**6), 150):
        program = random_program(seed)
        together, alone = (outcome(program, "simpy", every_core) for every_core in (False, True))
        kinds.add(type(alone))
        if isinstance(together, Trace) and isinstance(alone, Trace):
            assert together.to_text() == alone.to_text(), seed
        else:
            assert together == alone, seed
    assert kinds == {Trace, str}


@needs_compiled
@pytest.mark.parametrize("engine", ["simpy", "compiled"])
def test_calls_in_calls_take_the_time_of_what_they_do(engine: Engine) -> None:
    for seed in range(60):
        program = random_program(seed)
        one, other = (
            outcome(replace(program, blocks=blocks), engine)
            for blocks in (flat(program.blocks), nested(program.blocks, seed))
        )
        if isinstance(one, Trace) and isinstance(other, Trace):
            assert one.to_text() == other.to_text(), seed
            assert one.counters() == other.counters(), seed
        else:
            assert one == other, seed


@pytest.mark.sample(3)
@needs_compiled
@pytest.mark.parametrize("l2", ["cold", "warm", "repeat"])
@pytest.mark.parametrize("device", every(devices.names()))
def test_engines_agree_on_ragged_calls(device: str, l2: chip.L2State) -> None:
    for op, inputs in RAGGED:
        if op == "matmul" and device not in THREE[1:]:
            continue
        call = {name: TensorSpec(*spec) for name, spec in inputs.items()} | ATTRIBUTES.get(op, {})
        simpy, built = (
            run(op, **call, device=device, values=False, l2=l2, engine=engine).trace
            for engine in ("simpy", "compiled")
        )
        assert simpy is not None
        assert built is not None
        assert simpy is not built
        assert_equal_traces(simpy, built)


@pytest.mark.usefixtures("nothing_kept")
@needs_compiled
def test_single_times_are_worked_out_when_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    def asked(*_: object) -> None:
        raise AssertionError

    monkeypatch.setattr("npusim.timing.compiled.run._Replay.times", asked)
    x = TensorSpec((250, 264), "float16")
    built = run("npu_dynamic_quant", x, device=THREE[1], values=False, engine="compiled")
    assert built.trace is not None
    assert built.cycles == max(lane.last_end for lane in built.trace.lanes) > 0
    with pytest.raises(AssertionError):
        _ = built.trace.slowest.start


@pytest.mark.usefixtures("nothing_kept")
@needs_compiled
def test_both_report_progress_and_stop_when_asked() -> None:
    x = TensorSpec((256, 256), "float16")
    for engine in ("simpy", "compiled"):
        shares: list[float] = []

        def hear(stage: str, share: float, shares: list[float] = shares) -> None:
            if stage == "time":
                shares.append(share)
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            run(
                *("npu_dynamic_quant", x),
                device=THREE[1],
                values=False,
                engine=engine,
                progress=hear,
                every_core=True,
            )
        assert len(shares) == 1
        assert 0 <= shares[0] < 1


def refusal(text: str) -> str:
    return f"^{re.escape(text)}$"


def test_an_engine_that_there_is_not_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    text = "run: engine must be one of auto, simpy, compiled, not 'numba'; use one"
    with pytest.raises(EngineError, match=refusal(text)):
        run("npu_dynamic_quant", TensorSpec((8, 64), "float16"), device=THREE[1], engine="numba")  # type: ignore[arg-type]
    monkeypatch.setenv("NPUSIM_ENGINE", "numba")
    text = "run: NPUSIM_ENGINE must be one of auto, simpy, compiled, not 'numba'; use one"
    with pytest.raises(EngineError, match=refusal(text)):
        engine_named("auto")


def test_an_engine_that_was_not_built_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engines, "is_built", lambda: False)
    text = (
        "run: engine must be an engine that there is, not 'compiled', which was not built when "
        "npusim was installed; install a C compiler, then npusim again, or use 'auto'"
    )
    with pytest.raises(EngineError, match=refusal(text)):
        engine_named("compiled")


def test_auto_is_what_the_environment_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engines, "is_built", lambda: True)
    monkeypatch.setenv("NPUSIM_ENGINE", "simpy")
    assert engine_named("auto") == "simpy"
    assert engine_named("compiled") == "compiled"


@pytest.mark.parametrize("said", ["", "auto"])
def test_auto_is_compiled_where_it_was_built(said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NPUSIM_ENGINE", said)
    monkeypatch.setattr(engines, "is_built", lambda: True)
    assert engine_named("auto") == "compiled"


UNBUILT = """
from npusim.timing import engines
engines.is_built = lambda: False
"""
SLOW = (
    "run: the compiled engine was not built when npusim was installed, and SimPy takes ten times "
    "as long or more for the same times; install a C compiler, then npusim again, or set "
    "NPUSIM_ENGINE=simpy to read this no more"
)


def said_of(code: str, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What a new process without the compiled engine says on stderr when it runs *code*."""
    monkeypatch.delenv("NPUSIM_ENGINE", raising=False)
    words = [sys.executable, "-c", UNBUILT + code]
    return subprocess.run(words, capture_output=True, text=True, check=True).stderr.splitlines()


def test_who_has_no_compiled_engine_hears_of_it_once(monkeypatch: pytest.MonkeyPatch) -> None:
    twice = """
import numpy as np, npusim, warnings
warnings.simplefilter("always")
for rows in (1, 2):
    run = npusim.run("npu_dynamic_quant", np.ones((rows, 64), np.float16), device="A2")
    assert run.engine == "simpy"
"""
    assert [line for line in said_of(twice, monkeypatch) if line.startswith("<string>")] == [
        f"<string>:8: SlowEngineWarning: {SLOW}"
    ]


@pytest.mark.parametrize(
    "words",
    [
        "['--version']",
        "['run', 'npu_dynamic_quant', '-d', 'A2', '-i', 'x=spec:8x64:float16']",
        "['sweep', 'npu_dynamic_quant', '-d', 'A2,310P', '-i', 'x=spec:{1,2}x64:float16']",
    ],
)
def test_the_command_says_so_in_one_line(words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    code = f"import sys; from npusim.cli import main; sys.argv[1:] = {words}; main()"
    assert said_of(code, monkeypatch) == [f"npusim: warning: {SLOW}"]


def test_who_asks_for_simpy_hears_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    assert said_of("engines.engine_named('simpy')", monkeypatch) == []
