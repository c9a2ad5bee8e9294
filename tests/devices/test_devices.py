"""The shipped chips against the vendor's numbers, and how names and files are found."""

from __future__ import annotations

import re
import tomllib
from importlib.resources import files
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from npusim import devices
from npusim.devices.schema import CORE_KINDS, DeviceSpec

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30


class Vendor(NamedTuple):
    """A row of the vendor's platform file of one chip."""

    name: str
    series: str
    arch: str
    counts: tuple[int, int]
    clocks_mhz: tuple[int, int]
    l2_bytes: int
    gm_bytes: int


# CANN 8.1.RC1 platform_config/*.ini: ai_core_cnt and vector_core_cnt, cube_freq and vec_freq,
# l2_size, memory_size. The file of the 910B2C leaves its memory blank, 64 GiB is assumed.
VENDOR = [
    Vendor("ascend310p1", "Atlas inference", "2002", (10, 8), (1060, 1000), 16 * MIB, 24 * 10**9),
    Vendor("ascend310p3", "Atlas inference", "2002", (8, 7), (1060, 1000), 16 * MIB, 24 * 10**9),
    Vendor("ascend310p5", "Atlas inference", "2002", (8, 7), (800, 1000), 16 * MIB, 24 * 10**9),
    Vendor("ascend310p7", "Atlas inference", "2002", (8, 7), (550, 1000), 16 * MIB, 24 * 10**9),
    Vendor("ascend910_9362", "Atlas A3", "2201", (20, 40), (1500, 1500), 168 * MIB, 32 * GIB),
    Vendor("ascend910_9372", "Atlas A3", "2201", (20, 40), (1800, 1800), 192 * MIB, 64 * GIB),
    Vendor("ascend910_9381", "Atlas A3", "2201", (24, 48), (1800, 1800), 192 * MIB, 64 * GIB),
    Vendor("ascend910_9382", "Atlas A3", "2201", (24, 48), (1800, 1800), 192 * MIB, 64 * GIB),
    Vendor("ascend910_9391", "Atlas A3", "2201", (24, 48), (1850, 1850), 192 * MIB, 64 * GIB),
    Vendor("ascend910_9392", "Atlas A3", "2201", (24, 48), (1850, 1850), 192 * MIB, 64 * GIB),
    Vendor("ascend910b1", "Atlas A2", "2201", (24, 48), (1850, 1850), 192 * MIB, 64 * GIB),
    Vendor("ascend910b2", "Atlas A2", "2201", (24, 48), (1800, 1800), 192 * MIB, 64 * GIB),
    Vendor("ascend910b2c", "Atlas A2", "2201", (24, 48), (1800, 1800), 192 * MIB, 64 * GIB),
    Vendor("ascend910b3", "Atlas A2", "2201", (20, 40), (1800, 1800), 192 * MIB, 64 * GIB),
    # Its file says 1500; kernels of a training step ran at 1650.
    Vendor("ascend910b4", "Atlas A2", "2201", (20, 40), (1650, 1650), 96 * MIB, 32 * GIB),
    Vendor("ascend910b4_1", "Atlas A2", "2201", (20, 40), (1500, 1500), 168 * MIB, 32 * GIB),
]
# The same files, [AICoreSpec]: bytes of each buffer, per kind of core.
BUFFERS = {
    "ai_core": {"ub": 256, "l1": 1024, "l0a": 64, "l0b": 64, "l0c": 256, "bt": None, "fb": None},
    "vector_core": {
        "ub": 256, "l1": None, "l0a": None, "l0b": None, "l0c": None, "bt": None, "fb": None,
    },
    "aic": {"ub": None, "l1": 512, "l0a": 64, "l0b": 64, "l0c": 128, "bt": 1, "fb": 7},
    "aiv": {"ub": 192, "l1": None, "l0a": None, "l0b": None, "l0c": None, "bt": None, "fb": None},
}  # fmt: skip
KNOWN = (
    "ascend310p1, ascend310p3 (Atlas inference, Atlas 推理系列产品, Atlas 300I Pro, "
    "Atlas 300V Pro, Atlas 300I Duo, Ascend310P), ascend310p5, ascend310p7, ascend910_9362, "
    "ascend910_9372, ascend910_9381, ascend910_9382, ascend910_9391 (Atlas A3, "
    "Atlas A3 训练系列产品, Atlas A3 推理系列产品, Atlas 800T A3, Atlas 800I A3, CloudMatrix384, "
    "Ascend910_93, Ascend910C), ascend910_9392, ascend910b1, ascend910b2 (Atlas A2, "
    "Atlas A2 训练系列产品, Ascend910B), ascend910b2c, ascend910b3 (Atlas 800T A2), "
    "ascend910b4 (Atlas 800I A2, A200I A2 Box, Atlas 800I A2 推理产品, Atlas A2 推理系列产品, "
    "A200I A2 Box 异构组件), "
    "ascend910b4_1"
)

by_vendor = pytest.mark.parametrize("vendor", VENDOR, ids=lambda vendor: vendor.name)
by_name = pytest.mark.parametrize("name", devices.names())


def stated(name: str) -> dict[str, Any]:
    """The tree of a shipped file as it stands, without what it extends."""
    return tomllib.loads((files(devices) / f"{name}.toml").read_text(encoding="utf-8"))


def folded(name: str) -> str:
    return re.sub(r"[\s_-]+", "_", name).casefold()


def numbers(tree: dict[str, Any], above: str = "") -> set[str]:
    """The dotted key of every number in *tree*."""
    found: set[str] = set()
    for name, node in tree.items():
        if isinstance(node, dict):
            found |= numbers(node, f"{above}{name}.")
        elif isinstance(node, int | float):
            found.add(f"{above}{name}")
    return found


# ---- the vendor's numbers ----


def test_every_chip_of_the_vendor_table_ships_and_no_other() -> None:
    assert devices.names() == tuple(sorted(vendor.name for vendor in VENDOR))


@by_vendor
def test_cores_clocks_and_memories_are_those_of_the_platform_files(vendor: Vendor) -> None:
    spec = devices.load(vendor.name)
    kinds = CORE_KINDS[vendor.arch]
    found = Vendor(
        spec.name,
        spec.series,
        spec.arch,
        (spec.cores[kinds[0]].count, spec.cores[kinds[1]].count),
        (spec.cores[kinds[0]].clock_hz // 10**6, spec.cores[kinds[1]].clock_hz // 10**6),
        spec.l2.capacity_bytes,
        spec.gm.capacity_bytes,
    )
    assert found == vendor


@by_name
def test_buffers_are_those_of_the_platform_files(name: str) -> None:
    for kind, core in devices.load(name).cores.items():
        found = {buffer: getattr(core, f"{buffer}_bytes") for buffer in BUFFERS[kind]}
        assert found == {
            buffer: kib and kib * KIB  # None stays None
            for buffer, kib in BUFFERS[kind].items()
        }


# The data sheets' dense fp16 figures count the vector cores too: 128 lanes, a multiply-add each.
@pytest.mark.parametrize(
    ("name", "cube_tflops", "published"),
    [("ascend910b2", 353.9, 376), ("ascend910b3", 294.9, 313), ("ascend910_9381", 353.9, 376)],
)
def test_cube_peak_is_the_published_one(name: str, cube_tflops: float, published: int) -> None:
    spec = devices.load(name)
    aiv = spec.cores["aiv"]
    vector_tflops = 2 * spec.vector.repeat_bytes // 2 * aiv.count * aiv.clock_hz / 1e12
    assert round(cube_tops(spec, "float16"), 1) == cube_tflops
    assert round(cube_tops(spec, "float16") + vector_tflops) == published


def test_a_310p3_has_the_140_int8_tops_of_its_card() -> None:
    assert cube_tops(devices.load("ascend310p3"), "int8") == pytest.approx(140, rel=0.01)


def cube_tops(spec: DeviceSpec, dtype: str) -> float:
    core = spec.cores[CORE_KINDS[spec.arch][0]]
    macs = spec.cube.m * spec.cube.n * spec.cube.k_per_cycle[dtype]
    return 2 * macs * core.count * core.clock_hz / 1e12


def shares_of_cores(spec: DeviceSpec, shares: dict[str, float]) -> float:
    """Bytes a second when each core of a kind has its share, in bytes a cycle."""
    return sum(shares[kind] * core.count * core.clock_hz for kind, core in spec.cores.items())


@by_name
@pytest.mark.parametrize(("way", "aic"), [("read", 110.0), ("write", 86.0)])
def test_the_l2_moves_the_shares_of_the_platform_file(name: str, way: str, aic: float) -> None:
    spec = devices.load(name)
    shares = {"ai_core": 114.0, "vector_core": 57.0, "aic": aic, "aiv": 0.0}
    rate = getattr(spec.l2, f"{way}_bytes_per_s")
    assert rate == pytest.approx(shares_of_cores(spec, shares))


@by_name
def test_a_bus_of_atlas_a2_is_taken_up_by_written_bytes_for_1_7_times_as_long(name: str) -> None:
    spec = devices.load(name)
    ratio = 1.7 if spec.arch == "2201" else 1.0
    assert spec.gm.read_bytes_per_s == pytest.approx(ratio * spec.gm.write_bytes_per_s, rel=1e-3)


def test_global_memory_streams_at_the_measured_slope() -> None:
    """Copies of 8 KB take 584 cycles and of 32 KB 1998.5 while 48 cores read at 1.85 GHz."""
    slope = (32 - 8) * KIB / (1998.5 - 584)
    rate = devices.load("ascend910b1").gm.read_bytes_per_s
    assert rate == pytest.approx(slope * 48 * 1.85e9, rel=0.005)


def test_the_scalar_add_loop_takes_the_measured_34_cycles() -> None:
    scalar = devices.load("ascend910b1").scalar
    assert 2 * scalar.load_cycles + scalar.alu_cycles + scalar.store_cycles == 34


def test_310p_stores_whole_blocks_and_saturates_where_a2_does_neither() -> None:
    old, new = devices.load("ascend310p3"), devices.load("ascend910b1")
    assert (old.transfer.store_granule_bytes, new.transfer.store_granule_bytes) == (32, 1)
    assert (old.half_overflow, new.half_overflow) == ("saturate", "inf_nan")


# ---- sources ----


@by_name
def test_every_number_has_a_source_and_every_source_a_number(name: str) -> None:
    spec = devices.load(name)
    given = spec.model_dump(exclude={"sources"}, exclude_unset=True)
    called = {f"aliases.{alias}" for alias in spec.aliases}
    assert set(spec.sources) == numbers(given) | called
    assert all(source.text.strip() for source in spec.sources.values())


@by_vendor
def test_inherited_numbers_cite_the_platform_file_of_their_own_chip(vendor: Vendor) -> None:
    spec = devices.load(vendor.name)
    own = next(alias for alias in spec.aliases if folded(alias) == vendor.name)
    cited = {
        text
        for source in spec.sources.values()
        for text in re.findall(r"\w[\w-]*\.ini", source.text)
    }
    assert cited == {f"{own}.ini"}


@by_name
def test_a_source_key_is_written_out(name: str) -> None:
    source = devices.load(name).sources["l2.capacity_bytes"]
    assert re.fullmatch(r"leideng/CANN-8\.1\.RC1@.*\.ini: \[SoCInfo\] l2_size", source.text)
    assert source.confidence == "vendor file"


def test_two_source_keys_are_both_written_out() -> None:
    text = devices.load("ascend910b1").sources["cores.aiv.paths.gm_to_ub.bytes_per_cycle"].text
    assert text.startswith("triton-ascend@5e836c2a ")
    assert " and hw-native-sys/pto-isa@3186c381 " in text


@by_name
def test_no_source_key_is_stated_in_vain(name: str) -> None:
    text = (files(devices) / f"{name}.toml").read_text(encoding="utf-8")
    used = re.findall(r'(?:source = "|; )(\w+(?:, \w+)*): ', text)
    assert set(stated(name)["sources"]) <= {"ini"} | {
        key for keys in used for key in keys.split(", ")
    }


# ---- names ----


@by_name
def test_a_chip_is_found_by_its_name_and_its_vendor_spelling(name: str) -> None:
    spec = devices.load(name)
    assert spec.name == name
    assert name in {folded(alias) for alias in spec.aliases}
    assert all(devices.load(alias) is spec for alias in spec.aliases)


def test_a_device_that_is_loaded_already_stays_the_same() -> None:
    spec = devices.load("ascend910b2")
    assert devices.load(spec) is spec


@pytest.mark.parametrize(
    ("name", "hint"), [("ascend910b9", "did you mean ascend910b4? "), ("tpu", ""), ("", "")]
)
def test_an_unknown_name_lists_the_known_ones(name: str, hint: str) -> None:
    message = (
        f"devices: no device {name!r}; {hint}known: {KNOWN}; "
        "for your own file give its path, which ends in .toml"
    )
    with pytest.raises(devices.DeviceError, match=f"^{re.escape(message)}$"):
        devices.load(name)


def test_a_device_is_named_by_text() -> None:
    message = (
        "devices: a device must be a name, a path or a DeviceSpec, not 910; "
        "pass for example 'Atlas A2'"
    )
    with pytest.raises(TypeError, match=f"^{re.escape(message)}$"):
        devices.load(910)  # type: ignore[arg-type]


# ---- custom files ----

WHAT_IF = """
extends = "ascend910b2"
name = "my_chip"

[gm]
read_bytes_per_s = { value = 3.2e12, source = "twice the HBM", confidence = "assumed" }
"""


@pytest.fixture
def what_if(tmp_path: Path) -> Path:
    path = tmp_path / "my_chip.toml"
    path.write_text(WHAT_IF, encoding="utf-8")
    return path


def test_a_what_if_chip_differs_in_its_one_number_alone(what_if: Path) -> None:
    mine, base = devices.load(what_if), devices.load("ascend910b2")
    assert mine.sources["gm.read_bytes_per_s"] == ("twice the HBM", "assumed")
    gm = base.gm.model_copy(update={"read_bytes_per_s": 3.2e12})
    sources = {key: text for key, text in base.sources.items() if not key.startswith("aliases")}
    sources["gm.read_bytes_per_s"] = mine.sources["gm.read_bytes_per_s"]
    assert mine == base.model_copy(
        update={"name": "my_chip", "aliases": (), "gm": gm, "sources": sources}
    )


def test_a_string_like_a_path_is_one(what_if: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(what_if.parent)
    assert devices.load("my_chip.toml").name == "my_chip"
    assert devices.load(str(what_if)).name == "my_chip"


def test_a_custom_file_is_read_anew_each_time(what_if: Path) -> None:
    devices.load(what_if)
    what_if.write_text(WHAT_IF.replace("3.2e12", "1.6e12"), encoding="utf-8")
    assert devices.load(what_if).gm.read_bytes_per_s == 1.6e12


def test_own_source_keys_are_written_out(what_if: Path) -> None:
    text = WHAT_IF.replace("twice the HBM", "memo: twice the HBM")
    what_if.write_text(f'{text}\n[sources]\nmemo = "a note of ours"\n', encoding="utf-8")
    source = devices.load(what_if).sources["gm.read_bytes_per_s"]
    assert source.text == "a note of ours: twice the HBM"
