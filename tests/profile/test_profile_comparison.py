"""Measured kernels next to simulated ones: ratios, causes, gaps, and what is not known."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from profile_files import SUMMARY, kernel, swiglu, write

import npusim
from npusim import TensorSpec, profile
from npusim.profile import Comparison
from npusim.profile.gaps import Gap

DEVICE = "Ascend910B2"


def compared(folder: Path, *rows: dict[str, object], **names: Any) -> Comparison:
    write(folder / "kernel_details.csv", rows, **names)
    return profile.read(folder).compare(DEVICE, jobs=1)


def simulated(**states: Any) -> npusim.Run:
    x = TensorSpec((64, 2048), "float16")
    return npusim.run("npu_swiglu", x, device=DEVICE, values=False, icache="cold", **states)


COLD_US, WARM_US = (round(simulated(l2=l2).time_us or 0.0, 3) for l2 in ("cold", "warm"))


def test_bounds_are_a_cold_and_a_warm_l2(tmp_path: Path) -> None:
    between_us = (COLD_US + WARM_US) / 2
    times_us = WARM_US / 2, WARM_US, between_us, COLD_US, 2 * COLD_US
    found = compared(tmp_path, *(swiglu(100 * place, us) for place, us in enumerate(times_us)))

    assert [each.ratio for each in found.kernels] == [0.5, 1.0, 1.0, 1.0, 2.0]
    assert [each.lost_us for each in found.kernels] == [0.0, 0.0, 0.0, 0.0, COLD_US]
    (group,) = found.groups
    assert (group.ratio, group.prediction and group.prediction.cold_us) == (1.0, COLD_US)


def test_what_the_kernel_before_wrote_is_expected_in_the_l2(tmp_path: Path) -> None:
    half = "64,2048"
    written = swiglu(0, 9, shapes="64,4096", **{"out shapes": half})
    found = compared(tmp_path, written, swiglu(10, COLD_US), swiglu(20, COLD_US))

    expected = [each.prediction.expected_us for each in found.kernels if each.prediction]
    assert expected[1:] == [WARM_US_OF_INPUT, COLD_US]


WARM_US_OF_INPUT = round(simulated(l2=("x",)).time_us or 0.0, 3)


def test_a_row_twice_as_slow_is_first_and_says_why(tmp_path: Path) -> None:
    busy = {"busy": 3.0}
    add: dict[str, object] = {"type": "Add", "formats": "ND;ND", "blocks": 32}
    add |= {"shapes": "64,1024;64,1024", "types": "FLOAT16;FLOAT16"}
    long = kernel("Sort", 200, 5000)
    slow = swiglu(0, 2 * COLD_US) | busy
    found = compared(tmp_path, long, swiglu(100, 5.5) | add, slow, names=SUMMARY)

    assert [group.kernel.type for group in found.groups] == ["SwiGlu", "Sort", "Add"]
    first = found.slowest[0]
    assert (first.ratio, first.lost_us) == (2.0, COLD_US)
    assert first.cause == "waiting: its cores were busy for 3.0 us of it"
    assert [group.cause for group in found.groups[1:]] == ["", ""]


def matmul(time_us: float, layout: str = "ND", **changes: object) -> dict[str, object]:
    weight = "1024,256,16,16" if layout == "FRACTAL_NZ" else "4096,16384"
    row: dict[str, object] = {"type": "MatMulV2", "cores": "AI_CORE", "shapes": f"16,4096;{weight}"}
    row |= {"types": "FLOAT16;FLOAT16", "formats": f"ND;{layout}", "out shapes": "16,16384"}
    return swiglu(0, time_us, **(row | changes))


@pytest.mark.parametrize(
    ("row", "cause"),
    [
        (
            swiglu(0, 50),
            "unknown: another busy stream or card, a lower clock, or another release of CANN",
        ),
        (swiglu(0, 50, blocks=40), "template: 40 blocks, where npusim's SwiGlu has 12"),
        (matmul(900, blocks=7), "template: 7 blocks, where npusim's template v2 has 22"),
        (
            matmul(140, type="MatMulV3", blocks=24),
            "ND weight: 99.0 us are simulated with FRACTAL_NZ",
        ),
        (
            matmul(900, type="MatMulV3", blocks=24),
            "unknown: another busy stream or card, a lower clock, or another release of CANN",
        ),
        (
            matmul(140, blocks="N/A"),
            "template: MatMulV2, where npusim's rules choose MatMulV3",
        ),
    ],
    ids=["unknown", "blocks", "blocks of a template", "weight in ND", "far beyond", "template"],
)
def test_causes(row: dict[str, object], cause: str, tmp_path: Path) -> None:
    (group,) = compared(tmp_path, row).slowest
    assert group.cause == cause


def test_a_kernel_between_the_bounds_that_is_long_may_be_cold(tmp_path: Path) -> None:
    add: dict[str, object] = {"type": "Add", "formats": "ND;ND", "blocks": 48}
    add |= {"shapes": "1024,3072;1024,3072", "types": "FLOAT;FLOAT"}
    out = {"out shapes": "1024,3072", "out types": "FLOAT"}
    found = compared(tmp_path, swiglu(0, 30, **out), swiglu(40, 25) | add | out)
    group = next(own for own in found.groups if own.kernel.type == "Add")
    assert (group.ratio, group.cause) == (1.0, "cold cache, or what its shapes leave open")


def test_short_kernels_are_not_slow_by_less_than_a_microsecond(tmp_path: Path) -> None:
    tiny: dict[str, object] = {"type": "Abs", "blocks": 1}
    tiny |= {"shapes": "128", "out shapes": "128"}
    found = compared(tmp_path, swiglu(0, 2.2) | tiny)
    (group,) = found.groups
    assert group.ratio is not None
    assert group.ratio > 1.5
    assert not found.slowest


def test_gaps_stand_between_all_streams(tmp_path: Path) -> None:
    rows = [kernel("A", 0, 10), kernel("B", 2, 3), kernel("C", 15, 5)]
    rows += [kernel("A", 30, 1), kernel("C", 40, 1)]
    found = compared(tmp_path, *rows)

    assert found.gaps == (
        Gap("A", "C", 2, 14.0, 9.0, 31.0),
        Gap("C", "A", 1, 10.0, 10.0, 20.0),
    )
    assert (found.gaps_us, found.span_us) == (24.0, 41.0)


def test_communication_and_what_is_not_known(tmp_path: Path) -> None:
    int4 = {"types": "INT4", "name": "x"}
    collective = kernel("hcom_allReduce_", 0, 30, cores="COMMUNICATION")
    rows = [collective, kernel("Sort", 30, 20), kernel("Sort", 50, 20), swiglu(70, 4, **int4)]
    rows += [kernel("Cast", 80, 1, cores="AI_CPU"), swiglu(90, 25)]
    found = compared(tmp_path, *rows)

    assert (found.communication_us, found.measured_us, found.known_us) == (30.0, 100.0, 25.0)
    reasons = {each.kernel.type: each.reason for each in found.kernels}
    assert reasons["hcom_allReduce_"] == "it moves data between cards"
    assert reasons["Sort"] == "npusim has no kernel Sort"
    assert reasons["Cast"] == "it runs on the AI CPU"
    assert [group.kernel.type for group in found.unknown] == ["Sort", "SwiGlu", "Cast"]


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        (
            {"type": "MatMulV2"},
            "its operands are not those of MatMulV2",
        ),
        (
            {"type": "Cast", "out shapes": "N/A", "out types": "N/A"},
            "its operands are not those of Cast",
        ),
        ({"formats": "FRACTAL_NZ"}, "FRACTAL_NZ must have 4 dimensions, not 2"),
        ({"types": "FLOAT8"}, "npusim has no type FLOAT8"),
        ({"types": "DT_UNDEFINED"}, "its operands are not those of SwiGlu"),
        ({"type": "Slice", "out shapes": "32,1024"}, "it is cut along several axes"),
        ({"type": "Transpose", "out shapes": "7,7"}, "its shapes are not those of Transpose"),
    ],
)
def test_operands_that_do_not_fit_are_not_known(
    changes: dict[str, object], reason: str, tmp_path: Path
) -> None:
    (each,) = compared(tmp_path, swiglu(0, 9) | changes).kernels
    assert (each.ratio, each.reason) == (None, reason)


def test_an_unknown_chip_is_refused(tmp_path: Path) -> None:
    write(tmp_path / "kernel_details.csv", [swiglu(0, 9)])
    with pytest.raises(ValueError, match="Ascend1"):
        profile.read(tmp_path).compare("Ascend1")


def test_a_chip_may_differ_from_the_shipped_one(tmp_path: Path) -> None:
    write(tmp_path / "kernel_details.csv", [swiglu(0, 9)])
    shipped = npusim.devices.load(DEVICE)
    halved = {
        kind: core.model_copy(update={"clock_hz": core.clock_hz // 2})
        for kind, core in shipped.cores.items()
    }
    slower = shipped.model_copy(update={"cores": halved})
    taken = profile.read(tmp_path)
    times_us = []
    for device in (shipped, slower):
        (found,) = taken.compare(device, jobs=1).kernels
        assert found.prediction is not None
        times_us.append(found.prediction.cold_us)
    x = TensorSpec((64, 2048), "float16")
    run = npusim.run("npu_swiglu", x, device=slower, values=False)
    assert times_us == [COLD_US, round(run.time_us or 0.0, 3)]
    assert times_us[1] > times_us[0]


def test_processes_change_no_result(tmp_path: Path) -> None:
    write(tmp_path / "kernel_details.csv", [swiglu(0, 9), swiglu(10, 9, shapes="32,2048")])
    taken = profile.read(tmp_path)
    shares: list[float] = []
    together = taken.compare(DEVICE, jobs=2, progress=lambda _, share: shares.append(share))
    assert together == taken.compare(DEVICE, jobs=1)
    assert shares == [0.0, 0.5, 1.0]
