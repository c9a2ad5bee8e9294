"""What a shell is offered for a word that was begun, as its completion script asks."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from select import select

import pytest
from typer.testing import CliRunner

from npusim import devices, ops
from npusim.cli import app
from npusim.cli.commands import completion

A800I = ["Atlas 800I A3", "Atlas 800I A2", "Atlas 800I A2 推理产品"]
OFFERED = {
    "npusim run npu_quan": ["npu_quant_matmul", "npu_quantize"],
    "npusim explain npu_dynamic_q": ["npu_dynamic_quant", "npu_dynamic_quant_asymmetric"],
    "npusim run matmul -d ascend910_939": ["ascend910_9391", "ascend910_9392"],
    "npusim devices show Ascend910B4": ["Ascend910B4", "Ascend910B4-1"],
    "npusim run npu_rms_norm -i ": ["x=", "gamma="],
    "npusim run npu_rms_norm -d ascend910b2 -i x=spec:4x4 -a ": ["epsilon=", "template="],
    "npusim run npu_rms_norm -a template=s": ["template=single_row", "template=split_d"],
    "npusim run --template m": [],
    "npusim run --json npu_quan": ["npu_quant_matmul", "npu_quantize"],
    'npusim run matmul -d "Atlas 800I A': A800I,
    "npusim run matmul -i x1=spec:64x64:int8:layout=F": ["x1=spec:64x64:int8:layout=FRACTAL_NZ"],
    "npusim run npu_quantize -a dtype=q": ["dtype=qint8", "dtype=quint8", "dtype=qint32"],
    "npusim run npu_quantize -a div_mode=": ["div_mode=true", "div_mode=false"],
    "npusim layout 20x40 int8 FR": ["FRACTAL_NZ", "FRACTAL_Z"],
    "npusim layout 20x40 i": ["int4", "int8", "int32", "int64"],
    "npusim run my_kernel.py:add -i ": [],
    "npusim run my_kernel.py:add -a template=": [],
    "npusim sweep npu_rms_norm --template ": ["all", "merge_n", "normal", "single_row", "split_d"],
    "npusim sweep npu_rms_norm --template normal,s": ["normal,single_row", "normal,split_d"],
    "npusim sweep my_kernel.py:add --template ": [],
}


def offered(typed: str) -> list[str]:
    told = CliRunner().invoke(
        app,
        [],
        prog_name="npusim",
        env={"_NPUSIM_COMPLETE": "complete_fish", "_TYPER_COMPLETE_ARGS": typed,
             "_TYPER_COMPLETE_FISH_ACTION": "get-args"},
    )  # fmt: skip
    return [line.partition("\t")[0] for line in told.stdout.splitlines() if line]


@pytest.mark.parametrize("typed", OFFERED)
def test_a_word_that_was_begun_is_completed(typed: str) -> None:
    assert offered(typed) == OFFERED[typed]


def test_all_operators_and_chips_are_offered() -> None:
    assert offered("npusim run ") == list(ops.names())
    chips = offered("npusim run matmul -d ")
    assert set(devices.names()) <= set(chips) <= set(devices.spellings())
    assert all(re.fullmatch(r"\S+", chip) for chip in chips)
    for chip in chips:
        assert devices.load(chip).name in devices.names()


def test_a_blank_within_quotes_ends_no_word(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("_TYPER_COMPLETE_ARGS", 'npusim run matmul -d "Atlas 800I ')
    with completion.whole_words():
        assert offered(os.environ["_TYPER_COMPLETE_ARGS"]) == A800I
    assert offered('npusim run matmul -d "Atlas 800I A2" -i ') == ["x1=", "x2=", "bias="]


needs_bash = pytest.mark.skipif(
    shutil.which("bash") is None, reason="bash, which is asked, is not there"
)


@needs_bash
def test_bash_completes_with_the_script_that_is_shown(tmp_path: Path) -> None:
    command = tmp_path / "npusim"
    command.write_text(f"#!{sys.executable}\nfrom npusim.cli import main\nmain()\n")
    command.chmod(0o755)
    script = (
        f'PATH={tmp_path}:$PATH; eval "$(npusim --show-completion bash)"\n'
        "COMP_WORDS=(npusim run npu_quanti); COMP_CWORD=2\n"
        "_npusim_completion npusim npu_quanti run; echo ${COMPREPLY[@]}"
    )
    ran = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=True)
    assert ran.stdout == "npu_quantize\n"


TYPED = {
    "-a template=si\t": ["-a", "template=single_row"],
    # No blank comes between a name and its value.
    "-a te\tsp\t--json": ["-a", "template=split_d", "--json"],
    "-d A2 -i x=spec:4x4:float16 -a ep\t1e-5": [
        *("-d", "A2", "-i", "x=spec:4x4:float16", "-a", "epsilon=1e-5")
    ],
    "--attr=template=sp\t": ["--attr=template=split_d"],
    "-i x=./gam\t": ["-i", "x=./gamma.npy"],
    "--template=spl\t": ["--template=split_d"],
    '-d "Atlas 300I P\t': ["-d", "Atlas 300I Pro"],
}

PATIENCE_S = 60.0


def typed(folder: Path, lines: Iterable[str]) -> str:
    """What a terminal shows where *lines* are typed into bash; a tab is the key."""
    ours, its = os.openpty()
    environ = os.environ | {"PATH": f"{folder}:{os.environ['PATH']}", "TERM": "dumb"}
    command = ["bash", "--norc", "--noprofile", "-i"]
    with subprocess.Popen(
        command, stdin=its, stdout=its, stderr=its, env=environ, cwd=folder, start_new_session=True
    ) as bash:
        os.close(its)
        every = 'eval "$(npusim --show-completion bash)"', *lines, "exit"
        os.write(ours, "".join(f"{line}\n" for line in every).encode())
        told = b""
        with suppress(OSError):  # of a terminal that bash has left
            while select([ours], [], [], PATIENCE_S)[0] and (more := os.read(ours, 1 << 16)):
                told += more
        bash.kill()
    os.close(ours)
    return told.decode()


@pytest.mark.nightly
@needs_bash
def test_bash_completes_words_that_it_splits(tmp_path: Path) -> None:
    command = tmp_path / "npusim"
    command.write_text(
        f"#!{sys.executable}\nimport os, sys\n"
        "if '_NPUSIM_COMPLETE' in os.environ or '--show-completion' in sys.argv:\n"
        "    from npusim.cli import main\n    main()\n"
        "print(sys.argv[3:])\n"
    )
    command.chmod(0o755)
    (tmp_path / "gamma.npy").touch()
    start = {True: "npusim sweep npu_rms_norm", False: "npusim run npu_rms_norm"}
    told = typed(tmp_path, [f"{start['--template' in each]} {each}" for each in TYPED])
    assert [line for line in told.splitlines() if line.startswith("[")] == [
        str(words) for words in TYPED.values()
    ]
