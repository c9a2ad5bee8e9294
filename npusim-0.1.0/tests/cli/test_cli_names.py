"""Names that somebody else chose: none of them does anything to a terminal."""

from __future__ import annotations

from pathlib import Path

import pytest
from commands import npusim_says, refused
from records import SMALL

from npusim import devices

NAME = "chip\x1b]0;owned\x07 \x1b[2J[red]of\x9b31m [/red]\u202eoctober"
SHOWN = r"chip\x1b]0;owned\x07 \x1b[2J[red]of\x9b31m [/red]\u202eoctober"


@pytest.fixture
def named(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every chip that is loaded has that name."""
    load = devices.load

    def other(name: str) -> devices.DeviceSpec:
        return load(name).model_copy(update={"name": NAME, "aliases": (NAME,)})

    monkeypatch.setattr(devices, "load", other)


def harmless(text: str) -> bool:
    return all(letter.isprintable() or letter == "\n" for letter in text)


@pytest.mark.usefixtures("named")
@pytest.mark.parametrize(
    "words",
    [
        ("devices",),
        ("devices", "show", "Atlas A2"),
        SMALL,
        ("explain", "npu_quantize", "-i", "input=spec:8x8", "-i", "scales=spec:1",
         "-a", "dtype=qint8"),
        ("layout", "where", "2x2", "int8", "ND", "--index", "1,1"),
    ],
)  # fmt: skip
def test_a_name_of_a_chip_is_shown_letter_by_letter(words: tuple[str, ...]) -> None:
    code, out, err = npusim_says(*words)

    assert (code, err) == (0, "")
    # What rings is left out by rich.
    assert SHOWN.replace(r"\x07", "") in out.replace(r"\x07", "")
    assert harmless(out)


@pytest.mark.usefixtures("named")
@pytest.mark.parametrize(
    "words", [("devices", "--json"), ("devices", "show", "Atlas A2", "--json")]
)
def test_json_has_no_control_characters(words: tuple[str, ...]) -> None:
    code, out, _ = npusim_says(*words)

    assert code == 0
    assert harmless(out)


def test_a_name_in_an_error_is_shown_letter_by_letter(tmp_path: Path) -> None:
    file = tmp_path / "a\x1b[2J[red].npy"
    refused(
        1,
        f"inputs: {tmp_path}/a\\x1b[2J[red].npy: must be a file that can be read, but: No such "
        f"file or directory; check the path",
        *("compare", str(file), "ones:2"),
    )


@pytest.mark.parametrize("words", [("a\x1b[2J[red]b",), ("ops", "--a\x1b[2J[red]b")])
def test_a_word_that_is_unknown_is_shown_letter_by_letter(words: tuple[str, ...]) -> None:
    code, out, err = npusim_says(*words)

    assert (code, out) == (2, "")
    assert r"a\x1b[2J[red]b" in err
    assert harmless(err)
