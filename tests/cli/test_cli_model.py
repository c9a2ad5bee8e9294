"""`npusim model` and sweeps of models: their tables, their JSON, their files, what they refuse."""

from __future__ import annotations

import csv
import io
import json
import re
from pathlib import Path
from typing import Any

import pytest
from commands import entries, npusim_says, refused
from configs import config

SMALL = ("--batch", 2, "--context", 256, "--prompt", 64)
OWN_ENGINE = """\
extends = "eager"
name = "ours"

[decode]
launch_us = { value = 1000, source = "a slow host", confidence = "measured" }
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """The config.json of a small model."""
    where = tmp_path / "config.json"
    where.write_text(json.dumps(config()))
    return where


def asked(path: Path, *more: object) -> dict[str, Any]:
    code, out, err = npusim_says("model", path, "-d", "A2", *SMALL, *more, "--json")
    assert (code, err) == (0, "")
    found: dict[str, Any] = json.loads(out)
    return found


def test_it_prints_what_a_step_takes_and_what_it_is_made_of(path: Path) -> None:
    code, out, err = npusim_says("model", path.parent, "-d", "A2", *SMALL, "--tp", 2)
    lines = out.splitlines()

    assert (code, err) == (0, "")
    assert lines[0] == "Qwen3ForCausalLM, float, on 2 x ascend910b2, served by vllm-ascend"
    assert re.fullmatch(
        r"decode: 2 requests of 256 tokens: [\d,]+ tokens a second, \d+\.\d each", lines[1]
    )
    assert lines[3] == "memory: 10.5 MB of weights and 1.57 MB of caches on each card, of 68.7 GB"
    first = [line.split(" ")[0] for line in lines[7:12]]
    assert first == ["kernels", "gaps", "communication", "rest", "TPOT,"]
    assert all("±" in line for line in lines[7:12])
    assert lines[-1].startswith("timed by kernels that do the same work: ")


def test_json_has_the_times_and_their_parts(path: Path) -> None:
    found = asked(path)

    assert {"tp", "ep", "dp", "batch", "context", "prompt", "quant", "engine"} < set(found)
    for phase, key in (("decode", "tpot_ms"), ("prefill", "ttft_ms")):
        own = found[phase]
        assert set(own["parts"]) == {"kernels", "gaps", "communication", "rest"}
        assert own[key] == pytest.approx(sum(part["ms"] for part in own["parts"].values()))
        assert sum(part["share"] for part in own["parts"].values()) == pytest.approx(1)
        assert own["off_ms"] > 0
        kernels = [each for each in own["kernels"] if each["op"] != "all_reduce"]
        assert own["parts"]["kernels"]["ms"] == pytest.approx(sum(each["ms"] for each in kernels))
    assert found["memory"]["fits"] is True


def test_an_engine_of_ones_own_is_a_file(path: Path, tmp_path: Path) -> None:
    file = tmp_path / "ours.toml"
    file.write_text(OWN_ENGINE)
    found = asked(path, "--engine", file)

    assert found["engine"] == "ours"
    assert found["decode"]["tpot_ms"] == pytest.approx(2.8 + found["decode"]["launches"])


def test_it_writes_a_page_for_each_step(path: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    words = ("model", path, "-d", "A2", *SMALL, "-o", out)
    code, said, err = npusim_says(*words)

    assert (code, err) == (0, "")
    assert said.endswith(f"\nwrote decode.html, prefill.html, step.json to {out}\n")
    assert entries(out) == ["decode.html", "prefill.html", "step.json"]
    page = (out / "decode.html").read_text(encoding="utf-8")
    tpot_ms = json.loads((out / "step.json").read_text())["decode"]["tpot_ms"]
    assert f"<b>{tpot_ms:.2f} ms</b>TPOT: ± " in page
    assert "matrix products" in page
    code, _, err = npusim_says(*words)
    assert code == 1
    assert "add --force" in err
    assert npusim_says(*words, "--force").code == 0


def test_what_is_wrong_is_a_line(path: Path) -> None:
    message = "models: tp must divide the 8 heads, not be 3; take another number of cards"
    refused(1, message, "model", path, "-d", "A2", "--tp", 3)
    path.write_text("{}")
    code, out, err = npusim_says("model", path, "-d", "A2")
    assert (code, out) == (1, "")
    assert err.startswith("npusim: models: 'config.json': architectures must be a list with ")


# ---- sweeps ----


def swept(path: Path, *more: object) -> tuple[int, list[dict[str, str]], str]:
    words = ("sweep", path, "-a", "context=256", "-a", "prompt=64", *more, "-f", "csv")
    code, out, err = npusim_says(*words)
    return code, list(csv.DictReader(io.StringIO(out))), err


def test_a_sweep_has_a_row_for_each_step(path: Path) -> None:
    options = ("-d", "A2,910B4", "-a", "batch={1,8}", "-a", "engine={eager,xlite}")
    code, rows, _ = swept(path, *options, "-a", "tp=2")

    assert code == 0
    assert [(row["device"], row["batch"], row["engine"]) for row in rows] == [
        (device, batch, engine)
        for device in ("ascend910b2", "ascend910b4")
        for batch in ("1", "8")
        for engine in ("eager", "xlite")
    ]
    for row in rows:
        parts = [row[f"decode_{name}_ms"] for name in ("kernels", "gaps", "communication", "rest")]
        assert float(row["tpot_ms"]) == pytest.approx(sum(map(float, parts)))
    one = asked(path, "--batch", 8, "--tp", 2, "--engine", "xlite")
    assert float(rows[3]["tpot_ms"]) == pytest.approx(one["decode"]["tpot_ms"])


def test_a_step_that_is_refused_is_a_row_with_its_message(path: Path) -> None:
    code, rows, err = swept(path, "-d", "A2", "-a", "quant={float,w4a16}")

    assert code == 1
    assert rows[0]["error"] == ""
    assert rows[1]["tpot_ms"] == ""
    assert rows[1]["error"].startswith("models: vllm-ascend must have kernels of attention ")
    assert "npusim: sweep: 1 of 2 steps were refused\n" in err


def test_a_sweep_writes_a_table_json_and_a_picture(path: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    words = ("sweep", path, "-d", "A2", "-a", "batch={1,2}", "-a", "context=256", "-o", out)
    code, said, _ = npusim_says(*words)

    assert code == 0
    assert "ascend910b2" in said
    assert entries(out) == ["model_sweep.csv", "model_sweep.json", "sweep.html", "sweep.png"]
    record = json.loads((out / "model_sweep.json").read_text())
    assert record["kind"] == "npusim sweep of a model"
    assert [row["batch"] for row in record["rows"]] == ["1", "2"]
    assert npusim_says(*words).code == 1
    assert npusim_says(*words, "--force").code == 0


def test_a_sweep_of_a_model_takes_its_own_variables(path: Path) -> None:
    names = "tp, ep, dp, batch, context, prompt, quant, engine"
    example = "write for example --batch 1,8,64"
    for word in ("rows=3", "batch", "batch=1"):
        message = f"sweep: -a must give each of {names} once at most, not '{word}'; {example}"
        refused(2, message, "sweep", path, "-d", "A2", "-a", "batch=2", "-a", word)
    message = "sweep: a model must be swept by -d and by what npusim model takes, not by --template"
    message = f"{message}; {example}"
    refused(2, message, "sweep", path, "-d", "A2", "--template", "all")


def test_a_sweep_of_a_model_takes_the_options_of_one(path: Path) -> None:
    _, braced, _ = swept(path, "-d", "A2", "-a", "tp={1,2}", "-a", "batch=4")
    for where in (path, path.parent):
        code, rows, _ = swept(where, "-d", "A2", "--tp", "1,2", "--batch", 4)
        assert (code, rows) == (0, braced)
    message = (
        "sweep: --tp must come with the config.json of a model, not with 'matmul'; an attribute of "
        "an operator is swept by -a 'tp={1,2}'"
    )
    refused(2, message, "sweep", "matmul", "-d", "A2", "--tp", "1,2")
