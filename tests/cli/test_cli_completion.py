"""What a shell is offered for a word that was begun, as its completion script asks."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from npusim import devices, ops
from npusim.cli import app

OFFERED = {
    "npusim run npu_quan": ["npu_quant_matmul", "npu_quantize"],
    "npusim explain npu_dynamic": ["npu_dynamic_quant", "npu_dynamic_quant_asymmetric"],
    "npusim run matmul -d ascend910_939": ["ascend910_9391", "ascend910_9392"],
    "npusim devices show Ascend910B4": ["Ascend910B4", "Ascend910B4-1"],
    "npusim run npu_rms_norm -i ": ["x=", "gamma="],
    "npusim run npu_rms_norm -d ascend910b2 -i x=spec:4x4 -a ": ["epsilon=", "template="],
    "npusim run npu_rms_norm -a template=s": ["template=single_row", "template=split_d"],
    "npusim run my_kernel.py:add -i ": [],
    "npusim run my_kernel.py:add -a template=": [],
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


@pytest.mark.skipif(shutil.which("bash") is None, reason="bash, which is asked, is not there")
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
