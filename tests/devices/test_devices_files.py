"""What is read of a device file: regular files of a sane size, and of these nothing that hangs."""

from __future__ import annotations

import os
import re
import time
from pathlib import Path

import pytest

from npusim import devices

HEAD = 'extends = "ascend910b2"\nname = "mine"\n'
LIMIT_S = 5.0
"""Far more than a file takes on a busy machine, far less than a hang."""

DEEP = "must have at most 16 tables and lists in each other, as files of a chip have, "
# What stands below the head -> what is said.
HOSTILE = {
    f"aliases = {'[' * 2000}{']' * 2000}": f"{DEEP}but has more; flatten it",
    f"aliases = [\n{'[' * 1000}\n{'[' * 3000}\n{']' * 3000}\n{']' * 1000}]": (
        f"{DEEP}but has more; flatten it"
    ),
    f"[{'.'.join('a' * 1500)}]\nb = 1": f"{DEEP}but has more; flatten it",
    f"gm = {'{a = ' * 600}1{'}' * 600}": f"{DEEP}but has more; flatten it",
    f"[gm]\ncapacity_bytes = {'9' * 5000}": (
        "line 4: must be of at most 4096 bytes, not of 5017; shorten or break it"
    ),
    f"[{'.'.join('a' * 60000)}]": (
        "line 3: must be of at most 4096 bytes, not of 120001; shorten or break it"
    ),
    "# comment\n" * 30_000: (
        "must be of at most 262144 bytes, as files of a chip are, not of {size}; check the path "
        "{path}"
    ),
}


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "chip.toml"


def refusal(file: Path) -> str:
    began = time.monotonic()
    with pytest.raises(devices.DeviceError) as caught:
        devices.load(file)
    assert time.monotonic() - began < LIMIT_S
    return str(caught.value)


def test_what_would_hang_or_end_in_python_is_refused(file: Path, subtests: pytest.Subtests) -> None:
    for body, told in HOSTILE.items():
        with subtests.test(told, body=body[:40]):
            file.write_text(HEAD + body, encoding="utf-8")
            told = told.format(size=file.stat().st_size, path=repr(str(file)))
            assert refusal(file) == f"devices: chip.toml: {told}"


def test_numbers_of_dates_and_of_many_digits_are_reported(file: Path) -> None:
    number = '{{ value = {}, source = "x", confidence = "assumed" }}'
    for value, shown in (
        ("1979-05-27", "1979-05-27"),
        (f"0x{'f' * 3900}", "a number of very many digits"),
        ("9" * 3900, "a number of very many digits"),
        ("1e400", None),
    ):
        file.write_text(f"{HEAD}[sync]\nevent_ids = {number.format(value)}", encoding="utf-8")
        message = refusal(file)
        assert message.startswith("devices: chip.toml: sync.event_ids: must ")
        assert shown is None or f", not {shown}; " in message


# ---- what is no regular file ----


def not_regular(name: str, path: Path) -> str:
    return (
        f"devices: {name}: must be a regular file, not a device, a pipe or a socket; "
        f"check the path '{path}'"
    )


def test_a_pipe_is_not_waited_for(file: Path) -> None:
    os.mkfifo(file)
    assert refusal(file) == not_regular("chip.toml", file)
    child = file.with_name("child.toml")
    child.write_text('extends = "./chip.toml"\nname = "mine"', encoding="utf-8")
    assert refusal(child) == not_regular("chip.toml", file)


@pytest.mark.parametrize("device", ["/dev/zero", "/dev/null", "/dev/tty"])
def test_a_device_node_is_not_read(device: str, file: Path) -> None:
    if not Path(device).is_char_device():
        pytest.skip(f"{device} is no device here")
    file.write_text(f'extends = "{device}"\nname = "mine"', encoding="utf-8")
    assert refusal(file) == not_regular(Path(device).name, Path(device))


def test_a_file_that_is_longer_than_it_says_is_read_no_further() -> None:
    """The files of /proc have no size and may have no end."""
    if not Path("/proc/self/environ").is_file():
        pytest.skip("there is no /proc here")
    assert "environ: name: must be given" in refusal(Path("/proc/self/environ"))


def test_links_in_a_circle_are_reported(file: Path) -> None:
    other = file.with_name("other.toml")
    file.symlink_to(other)
    other.symlink_to(file)
    assert refusal(file) == (
        "devices: chip.toml: must be a file that can be read, but: Too many levels of symbolic "
        f"links; check the path '{file}'"
    )


def test_a_link_to_a_file_is_that_file(file: Path) -> None:
    (file.parent / "real").mkdir()
    real = file.parent / "real" / "real.toml"
    real.write_text('extends = "./base.toml"\nname = "mine"', encoding="utf-8")
    real.with_name("base.toml").write_text(HEAD, encoding="utf-8")
    file.symlink_to(real)
    assert devices.load(file).name == "mine"


def test_a_path_with_a_zero_byte_is_reported() -> None:
    assert refusal(Path("a\0b.toml")) == (
        "devices: a\\x00b.toml: must be the path of a file, not 'a\\x00b.toml'; correct the path"
    )


# ---- chains ----


@pytest.mark.parametrize("links", [15, 16])
def test_a_chain_of_files_has_an_end(links: int, tmp_path: Path) -> None:
    for number in range(links):
        base = f"./{number + 1}.toml" if number + 1 < links else "ascend910b1"
        text = f'extends = "{base}"\nname = "chip {number}"'
        (tmp_path / f"{number}.toml").write_text(text, encoding="utf-8")
    if links == 15:
        assert devices.load(tmp_path / "0.toml").name == "chip 0"
        return
    chain = " -> ".join([*(f"{number}.toml" for number in range(16)), "ascend910b1.toml"])
    message = (
        f"devices: 15.toml: extends: must lead through at most 16 files, but {chain}; "
        "take the line out of one of them"
    )
    with pytest.raises(devices.DeviceError, match=f"^{re.escape(message)}$"):
        devices.load(tmp_path / "0.toml")
