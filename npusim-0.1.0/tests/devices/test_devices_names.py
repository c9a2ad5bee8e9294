"""By which names a chip is known, what is suggested, what is a path, and what a name may hold."""

from __future__ import annotations

import tomllib
from importlib.resources import files
from pathlib import Path

import pytest
from pydantic import ValidationError

from npusim import devices
from npusim.devices.aliases import ALIASES
from npusim.devices.names import normalised
from npusim.devices.schema import DeviceSpec

# The operators' documents (支持的型号), their English edition, the market, and tools.
MEANT = {
    "Atlas 推理系列产品": "ascend310p3",
    "Atlas inference series products": "ascend310p3",
    "Atlas inference product": "ascend310p3",
    "Atlas A2 训练系列产品": "ascend910b2",
    "Atlas A2 training series product": "ascend910b2",
    "Atlas A2 Training Series Products": "ascend910b2",
    "Atlas 800I A2 推理产品": "ascend910b4",
    "Atlas 800I A2 inference product": "ascend910b4",
    "Atlas A2 推理系列产品": "ascend910b4",
    "A200I A2 Box 异构组件": "ascend910b4",
    "A200I A2 Box heterogeneous component": "ascend910b4",
    "Atlas A3 训练系列产品": "ascend910_9391",
    "Atlas A3 推理系列产品": "ascend910_9391",
    "Atlas A3 inference series product": "ascend910_9391",
    "Atlas A2 训练系列产品/Atlas 800I A2 推理产品/A200I A2 Box 异构组件": "ascend910b2",
    "Atlas 800I A2 推理产品/A200I A2 Box 异构组件": "ascend910b4",
    "Atlas A3 训练系列产品 / Atlas A3 推理系列产品": "ascend910_9391",
    "Atlas A3 训练系列产品／Atlas A3 推理系列产品": "ascend910_9391",
    "Atlas 300I Pro": "ascend310p3",
    "ATLAS-800I_A2": "ascend910b4",
    " Atlas 800I A2 ": "ascend910b4",
    "Atlas 800T A3": "ascend910_9391",
    "Atlas 800I A3": "ascend910_9391",
    "A2": "ascend910b2",
    "A3": "ascend910_9391",
    "310P": "ascend310p3",
    "310P3": "ascend310p3",
    "910B": "ascend910b2",
    "910B3": "ascend910b3",
    "Ascend910B3": "ascend910b3",
    "ascend 910B3": "ascend910b3",
    "昇腾910B3": "ascend910b3",
    "Ascend910B4-1": "ascend910b4_1",
    "Ascend910_93": "ascend910_9391",
    "910C": "ascend910_9391",
    "300I Duo": "ascend310p3",
    "Atlas 300I Duo 推理卡": "ascend310p3",
    "Atlas 300V Pro 视频解析卡": "ascend310p3",
    "Atlas 800T A2 训练服务器": "ascend910b3",
    "atlas800ia2": "ascend910b4",
    "CloudMatrix 384": "ascend910_9391",
    "Ａｔｌａｓ　Ａ２": "ascend910b2",
}
# Nothing that ships is of these families, so nothing is suggested.
FOREIGN = (
    "Ascend310B", "Ascend310B1", "Ascend310", "Ascend910", "Ascend910A", "Ascend910ProB",
    "Ascend950", "Ascend950PR_958x", "Atlas 训练系列产品", "Atlas training series products",
    "Atlas 200/500 A2 推理产品", "Atlas 800I A5", "Atlas A5", "tpu", "Atlas", "",
)  # fmt: skip
MISSPELLED = {
    "ascend910b9": "ascend910b4",
    "asend910b3": "ascend910b3",
    "ascend910b22": "ascend910b2",
    "ascend910_9393": "ascend910_9392",
    "Atlas 300 I Pr": "Atlas 300I Pro",
    "Atlas 800T A33": None,
    "Atlas A2 训练系列产": "Atlas A2 训练系列产品",
}
AMBIGUOUS = {
    "Atlas 800I": "Atlas 800I A2 (ascend910b4), Atlas 800I A2 推理产品 (ascend910b4), "
    "Atlas 800I A3 (ascend910_9391)",
    "atlas 800T": "Atlas 800T A2 (ascend910b3), Atlas 800T A3 (ascend910_9391)",
    "Atlas 300I": "Atlas 300I Pro (ascend310p3), Atlas 300I Duo (ascend310p3)",
}
"""What several go by -> the choices."""
UNNAMED = (
    "", " chip", "chip ", "-chip", ".chip", "$x$", "a$b", "<b>chip</b>", "a&b", '"chip"', "it's",
    "[red]chip", "{chip}", "a\\b", "a/b", "chip\x1b[31m", "chip\n", "chip\x00", "a\u202eb",
    "a\u200bb", "a" * 65,
)  # fmt: skip
NAMES = ("chip", "My chip 2.0 (a+b)", "芯片", "x" * 64, "ascend910b4_1", "910B3-what-if")


@pytest.mark.parametrize("name", MEANT)
def test_a_name_of_the_documents_and_of_the_market_is_a_chip(name: str) -> None:
    assert devices.load(name).name == MEANT[name]


def test_names_are_those_of_the_files() -> None:
    found = {
        path.name.removesuffix(".toml"): tomllib.loads(path.read_text(encoding="utf-8"))["aliases"]
        for path in files("npusim.devices").iterdir()
        if path.name.endswith(".toml")
    }
    assert list(ALIASES) == sorted(found)
    assert {
        name: tuple(alias for group in groups.values() for alias in group["value"])
        for name, groups in found.items()
    } == ALIASES


def test_what_counts_in_a_name_is_its_own_in_every_file() -> None:
    """No chip has an alias that another has, nor the same twice; all of it has a source."""
    known: dict[str, str] = {}
    for name in devices.names():
        spec = devices.load(name)
        for alias in {normalised(each) for each in (name, *spec.aliases)}:
            assert known.setdefault(alias, name) == name
        groups = tomllib.loads((files(devices) / f"{name}.toml").read_text("utf-8"))["aliases"]
        assert next(iter(groups)) == "soc"
        assert {group["confidence"] for group in groups.values()} <= {"vendor file", "inferred"}
        assert all(f"aliases.{alias}" in spec.sources for alias in spec.aliases)


def refusal(name: str) -> str:
    with pytest.raises(devices.DeviceError) as caught:
        devices.load(name)
    return str(caught.value)


@pytest.mark.parametrize("name", FOREIGN)
def test_nothing_of_another_family_is_suggested(name: str) -> None:
    assert refusal(name).startswith(f"devices: no device '{name}'; known: ascend310p1, ")


@pytest.mark.parametrize("name", MISSPELLED)
def test_a_misspelled_name_finds_its_own_family(name: str) -> None:
    meant = MISSPELLED[name]
    hint = f"did you mean {meant}? " if meant else ""
    assert refusal(name).startswith(f"devices: no device '{name}'; {hint}known: ascend310p1, ")


@pytest.mark.parametrize("name", AMBIGUOUS)
def test_a_name_that_several_begin_with_names_the_choices(name: str) -> None:
    told = refusal(name)
    head = f"devices: {name!r} must say which one is meant, of "
    assert told.startswith(head)
    assert told.endswith("; write all of it")
    said = told.removeprefix(head).removesuffix("; write all of it").split("), ")
    assert sorted(each.rstrip(")") for each in said) == sorted(
        each.rstrip(")") for each in AMBIGUOUS[name].split("), ")
    )
    for each in said:
        alias, _, chip = each.rstrip(")").partition(" (")
        assert devices.load(alias).name == chip


def test_a_list_is_of_one_series() -> None:
    message = (
        "devices: the names of a list must be of one series, not of Atlas A2 and Atlas inference "
        "as in 'Atlas A2/Atlas 推理系列产品'; give one of them"
    )
    assert refusal("Atlas A2/Atlas 推理系列产品") == message


def test_known_names_are_listed_with_their_aliases() -> None:
    assert "ascend910b2 (Atlas A2, Atlas A2 训练系列产品, Ascend910B), " in devices.listing()
    assert "ascend910b1, " in devices.listing()
    message = refusal("x\x1b[31m" + "y" * 100)
    assert message.startswith(f"devices: no device 'x\\x1b[31m{'y' * 68}...'; known: ")


# ---- paths ----

CHILD = 'extends = "ascend910b2"\nname = "mine"\n'


def test_a_slash_makes_a_path_of_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    folder = tmp_path / "chips"
    folder.mkdir()
    (folder / "mine").write_text(CHILD, encoding="utf-8")
    for path in ("chips/mine", "./chips/mine", "~/chips/mine", f"{folder}/mine"):
        assert devices.load(path).name == "mine"
    (tmp_path / "A2").write_text(CHILD, encoding="utf-8")
    assert devices.load("A2").name == "ascend910b2"
    assert devices.load("./A2").name == "mine"
    assert refusal("chips/other").startswith("devices: no device 'chips/other'; known: ")
    assert refusal("./other").startswith("devices: other: must be a file that can be read, but: ")
    assert refusal("~nobody-at-all/chip").startswith("devices: chip: must be a file that can be ")


def test_a_file_extends_what_lies_beside_it_and_a_list_of_products(tmp_path: Path) -> None:
    (tmp_path / "chips").mkdir()
    (tmp_path / "chips" / "base").write_text(CHILD, encoding="utf-8")
    child = tmp_path / "child.toml"
    for base in ("chips/base", "Atlas A2 训练系列产品/Atlas 800I A2 推理产品"):
        child.write_text(f'extends = "{base}"\nname = "child"\n', encoding="utf-8")
        assert devices.load(child).cores == devices.load("ascend910b2").cores


# ---- what a name may hold ----


def test_a_name_holds_nothing_that_a_page_picture_or_terminal_would_obey(tmp_path: Path) -> None:
    spec = devices.load("ascend910b2").model_dump(exclude={"sources"})
    file = tmp_path / "chip.toml"
    for name in NAMES:
        assert DeviceSpec.model_validate(spec | {"name": name}).name == name
        file.write_text(CHILD.replace("mine", name), encoding="utf-8")
        assert devices.load(file).name == name
    for name in UNNAMED:
        for entry in ({"name": name}, {"aliases": (name,)}):
            with pytest.raises(ValidationError, match="must be letters, digits, blanks"):
                DeviceSpec.model_validate(spec | entry)


HIDDEN = {
    'name = "a\\u001b[31m$x$"': (
        "name: must be letters, digits, blanks and _ . + - ( ), 64 at most, from a letter or a "
        "digit on, not 'a\\x1b[31m$x$'; rename it"
    ),
    '"gm\\u001b[31m" = 5': "gm\\x1b[31m: must be one of extends, name, ",
    '[cores."a\\u001b"]': "cores.a\\x1b: must be one of ai_core, vector_core, aic, aiv, "
    "not a\\x1b; rename the table",
    '[cores.aiv.paths."\\u001b"]\npipe = "mte2"': "cores.aiv.paths.\\x1b: must be named <from>_to_",
    '[cube.k_per_cycle]\n"\\u001b" = { value = 1, source = "x", confidence = "assumed" }': (
        "cube.k_per_cycle.\\x1b: must be one of int4, int8, float16, bfloat16, float32, "
        "not \\x1b; rename or drop it"
    ),
    'series = "\\u001b"': "series: must be 'Atlas inference', 'Atlas A2' or 'Atlas A3', not "
    "'\\x1b'; take one of these",
    '[gm]\ncapacity_bytes = { value = 5, source = "x\\u001b", confidence = "assumed" }': (
        "gm.capacity_bytes: source must be one line of at most 1000 letters and no control "
        "characters, not 'x\\x1b'; shorten or retype it"
    ),
    '[gm]\ncapacity_bytes = { value = 5, "\\u001b" = 1 }': (
        "gm.capacity_bytes: must have value, source and confidence, not value, \\x1b; write "
    ),
    '[sources]\n"a\\u001b" = "x"': "sources.a\\x1b: must be named by letters, digits and _ alone, "
    "not 'a\\x1b'; rename it",
    '[sources]\nbook = "x\\ny"': "sources.book: must be one line of at most 1000 letters and no "
    "control characters, not 'x\\ny'; shorten or retype it",
    'name = "b"\n"\\u001b" = 1\n"\\u001b" = 2': "must be TOML, but: Cannot overwrite a value ",
}


def test_no_escape_of_a_file_reaches_a_message(tmp_path: Path, subtests: pytest.Subtests) -> None:
    file = tmp_path / "chip.toml"
    for body, told in HIDDEN.items():
        with subtests.test(told):
            head = 'extends = "A2"\n' + ("" if body.startswith("name") else 'name = "mine"\n')
            file.write_text(head + body, encoding="utf-8")
            with pytest.raises(devices.DeviceError) as caught:
                devices.load(file)
            assert str(caught.value).startswith(f"devices: chip.toml: {told}")
            assert str(caught.value).isprintable()


def test_the_name_of_a_file_is_told_without_what_is_hidden_in_it(tmp_path: Path) -> None:
    file = tmp_path / "chip\x1b[31m.toml"
    file.write_text("speed = 2", encoding="utf-8")
    with pytest.raises(devices.DeviceError, match=r"^devices: chip\\x1b\[31m\.toml: ") as caught:
        devices.load(file)
    assert "\x1b" not in str(caught.value)
