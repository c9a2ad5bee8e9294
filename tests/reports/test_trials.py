"""What bounds a run is what was gained when it was tried: held against runs on changed chips."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
from calls import CALLS
from chips import THREE
from played import CHAIN, Played, at_1_mhz, lane, trace
from tiny import tiny_spec

import npusim
from npusim import OpError, TensorSpec, devices
from npusim.devices.schema import DeviceSpec
from npusim.devices.settings import changed
from npusim.reports.bounds import headline
from npusim.reports.causes import causes
from npusim.reports.trials import FACTOR, faster, settings
from npusim.trace import Known, Trial

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")

LARGE: dict[str, tuple[str, tuple[Any, ...], dict[str, Any]]] = {
    "product": ("matmul", tuple(TensorSpec((1536, 1536), "float16") for _ in "ab"), {}),
    "add": ("add", tuple(TensorSpec((2048, 2048), "float16") for _ in "ab"), {}),
    "norm": ("npu_rms_norm", (TensorSpec((512, 4096), "float16"), TensorSpec((4096,), "float16")),
             {}),
    "softmax": ("softmax", (TensorSpec((512, 1000), "float32"),), {"dim": -1}),
    "quantised": (
        "npu_quant_matmul",
        (TensorSpec((64, 4096), "int8"), TensorSpec((4096, 1024), "int8", "FRACTAL_NZ"),
         TensorSpec((1024,), "float32")),
        {"output_dtype": "float16"},
    ),
}  # fmt: skip
"""Calls that more than launch bounds."""
REPORTED = 0.1
"""From this share on, a cause must gain what it says."""


def test_a_trial_says_by_which_share_it_was_held_up() -> None:
    trial = Trial(("gm",), 1 - 1 / FACTOR, {"gm.read_bytes_per_s": 2.1e12}, 97.0)
    assert trial.share(100.0) == pytest.approx(0.63)
    assert trial.share(97.0) == 0.0
    assert trial.share(96.0) == 0.0
    assert trial.share(1000.0) == 1.0


def test_whole_numbers_stay_whole_and_are_as_fast_together() -> None:
    spec = devices.load("ascend910b2")
    heads = {
        key: value
        for key, value in settings(spec, "vector", FACTOR).items()
        if key.endswith("head_cycles")
    }
    before = [spec.vector.classes[key.split(".")[2]].head_cycles for key in heads]  # type: ignore[index]
    assert all(isinstance(value, int) for value in heads.values())
    assert abs(sum(heads.values()) - sum(before) / FACTOR) <= 1
    rates = settings(spec, "gm", FACTOR)
    assert rates["gm.read_bytes_per_s"] == spec.gm.read_bytes_per_s * FACTOR


def assert_tried(run: npusim.Run, again: Any) -> None:
    """Each trial of *run* is a run on the chip with its numbers; what is reported gains that."""
    assert run.time_us is not None
    for trial in run.trials:
        other = again(changed(run.device, trial.settings))
        assert other.time_us == pytest.approx(trial.time_us, rel=1e-9), trial.causes
    removed = {trial.causes: trial.removed for trial in run.trials}
    for bound in causes(run):
        if bound.share < REPORTED or bound.second or bound.cause == "earlier":
            continue
        quick = again(faster(run.device, bound.cause, FACTOR))
        # Of a whole number of cycles not just any share can be removed.
        says = bound.share * removed.get((bound.cause,), 1 - 1 / FACTOR)
        gained = 1 - quick.time_us / run.time_us
        assert gained >= 0.5 * says, bound.cause
        # The chip is quicker for kernels that run earlier, too, whose time is not of this cause.
        assert gained <= 1.5 * says or len(run.launches) > 1, bound.cause


@pytest.mark.parametrize("device", THREE)
@pytest.mark.parametrize("name", LARGE)
def test_a_cause_gains_what_it_says(name: str, device: str) -> None:
    op, args, options = LARGE[name]

    def again(spec: DeviceSpec) -> npusim.Run:
        return npusim.run(op, *args, device=spec, **options)

    try:
        run = again(devices.load(device))
    except OpError as error:
        pytest.skip(str(error))
    assert_tried(run, again)


@pytest.mark.nightly
@pytest.mark.parametrize("device", THREE)
@pytest.mark.parametrize("name", CALLS)
def test_every_operator_and_template(name: str, device: str) -> None:
    op, arguments = CALLS[name]

    def again(spec: DeviceSpec) -> npusim.Run:
        return npusim.run(op, **arguments, device=spec, values=False)

    try:
        run = again(devices.load(device))
    except OpError as error:
        pytest.skip(str(error))
    if run.trace is not None:
        assert_tried(run, again)


# ---- in words ----

WORK = trace(lane((0,), *CHAIN))
"""Of 100 cycles, the latency of memory takes 50, the port 29 and the vector unit 9."""


@dataclass(frozen=True, eq=False)
class Tried(Played):
    """A run of which what each trial gained is given, in parts of its time."""

    gains: tuple[tuple[tuple[Known, ...], float], ...] = ()

    @property
    def trials(self) -> tuple[Trial, ...]:
        return tuple(
            Trial(causes, 0.1, {}, 110.0 * (1 - 0.1 * gain)) for causes, gain in self.gains
        )


@pytest.mark.parametrize(
    ("gains", "words"),
    [
        pytest.param(
            ((("port",), 0.6), (("memory latency",), 0.2), (("vector",), 0.04)),
            "bound by the core's own port to memory: 60 % of 110.0 us, on mte3; next the latency "
            "of memory, 20 %",
            id="one and the next",
        ),
        pytest.param(
            ((("port",), 0.6), (("memory latency",), 0.1)),
            "bound by the core's own port to memory: 60 % of 110.0 us, on mte3; next the latency "
            "of memory, 10 %; the latency of memory, 45 % of the critical path, on mte3, gains "
            "little if faster",
            id="longest on the path",
        ),
        pytest.param(
            ((("memory latency",), 0.1), (("port",), 0.0), (("memory latency", "port"), 0.5)),
            "bound by the latency of memory and the core's own port to memory, which tie: 50 % of "
            "110.0 us, on mte3",
            id="a tie",
        ),
        pytest.param(
            ((("memory latency",), 0.3), (("port",), 0.2), (("memory latency", "port"), 0.55)),
            "bound by the latency of memory: 30 % of 110.0 us, on mte3; next the core's own port "
            "to memory, 20 %",
            id="no tie",
        ),
        pytest.param(
            ((("memory latency",), 0.04), (("port",), -0.5)),
            "no number of the chip bounds it, but the order of the kernel, strides or banks; the "
            "longest part of its critical path is the latency of memory: 45 % of 110.0 us, on mte3",
            id="nothing",
        ),
    ],
)
def test_the_headline_says_what_was_gained(
    gains: tuple[tuple[tuple[Known, ...], float], ...], words: str
) -> None:
    run = Tried(WORK, at_1_mhz(tiny_spec()), gains=gains)
    assert headline(run) == words


def test_nothing_gains_the_time_of_the_launch() -> None:
    run = Tried(WORK, at_1_mhz(tiny_spec()), gains=((("gm",), 1.0), (("launch",), 10 / 110)))
    shares = {bound.cause: bound.share for bound in causes(run)}
    assert shares == pytest.approx({"gm": 100 / 110, "launch": 10 / 110})
