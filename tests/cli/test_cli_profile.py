"""The command `npusim profile`: its table, its folder, its rows, and what it refuses."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest
from commands import entries, npusim_says, refused
from profile_files import kernel, swiglu, write

import npusim
from npusim import validation

FINDINGS = """\
5 kernels on ascend910b2: 62.0 us in 75.0 us
known: 32.0 us measured, 19.2 us predicted
slower than they should be: 1 kind of kernels, 9.59 us lost
gaps: 13.0 us, 17 % of the time; most between SwiGlu and Sort: 7.00 us
communication: 10.0 us, 16 % of all kernels
not known: 1 kernel, 20.0 us, 32 % of all kernels
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Three launches of SwiGlu, one of which takes twice its time, and others."""
    where = tmp_path / "prof"
    where.mkdir()
    collective = kernel("hcom_allReduce_", 65, 10, cores="COMMUNICATION")
    slow = swiglu(0, 16, blocks="N/A")
    rows = [slow, kernel("Sort", 23, 20), swiglu(43, 8, name="a"), swiglu(55, 8), collective]
    write(where / "kernel_details.csv", rows)
    return where


def test_the_slow_one_is_first(folder: Path) -> None:
    code, out, err = npusim_says("profile", folder, "-d", "910B2", "-j", "1")
    lines = out.splitlines()

    assert (code, err) == (0, "")
    assert "\n".join(lines[:6]) + "\n" == FINDINGS
    first, *rest = (line.split() for line in lines[9::2])
    assert (*first[:2], *first[4:]) == ("1", "16.00", "2.50", "9.6", "SwiGlu")
    assert lines[10].startswith("    64,2048  ND  ")
    assert [line[-1] for line in rest] == ["Sort", "SwiGlu", "hcom_allReduce_"]
    assert lines[12].endswith("  not known: npusim has no kernel Sort")


def test_json_has_a_ratio_for_each_kernel(folder: Path) -> None:
    code, out, err = npusim_says("profile", folder, "-d", "910B2", "-j", "1", "--json")
    found = json.loads(out)

    assert (code, err) == (0, "")
    ratios = [each["ratio"] for each in found["kernels"]]
    cold_us = found["kernels"][0]["cold_us"]
    assert ratios == [16 / cold_us, None, 8 / cold_us, 8 / cold_us, None]
    assert found["not_known"] == {"kernels": 1, "time_us": 20.0, "share": 20 / 62}
    assert found["groups"][0]["is_slow"]
    assert found["groups"][0]["call"] == "npu_swiglu"


def test_a_folder_has_a_page_and_tables(folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    words = "profile", folder, "-d", "910B2", "-j", "1", "-o", out
    answer = npusim_says(*words)

    assert answer.out.endswith(f"\nwrote profile.html, kernels.csv, profile.json to {out}\n")
    assert entries(out) == ["kernels.csv", "profile.html", "profile.json"]
    page = (out / "profile.html").read_text()
    assert page.count("<h2>") == 6
    assert "<svg" not in page
    assert "http" not in page.replace("http-equiv", "")
    with (out / "kernels.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["measured_us"] for row in rows] == ["16.0", "20.0", "8.0", "8.0", "10.0"]
    assert npusim_says(*words, "--json").out == ""
    whole = npusim_says(*words, "--json", "--force").out
    assert (out / "profile.json").read_text() == whole


def test_names_do_not_get_into_the_page_as_markup(tmp_path: Path) -> None:
    write(tmp_path / "kernel_details.csv", [kernel("<script>x</script>", 0, 5), swiglu(9, 50)])
    npusim_says("profile", tmp_path, "-d", "910B2", "-j", "1", "-o", tmp_path / "out")
    page = (tmp_path / "out" / "profile.html").read_text()
    assert "&lt;script&gt;x" in page
    assert "<script>x" not in page


def test_rows_are_added_to_a_file_that_validate_reads(folder: Path, tmp_path: Path) -> None:
    rows = tmp_path / "mine.csv"
    words = "profile", folder, "-d", "910B2", "-j", "1", "--rows", rows
    once = npusim_says(*words).out
    twice = npusim_says(*words).out

    assert once.endswith(f"\nadded 2 of 2 kinds of kernels to {rows}\n")
    assert twice.endswith(f"\nadded 2 of 2 kinds of kernels to {rows}\n")
    found = validation.read(rows)
    assert [row.id for row in found] == ["profile1", "profile2", "profile3", "profile4"]
    assert [row.latency_us for row in found] == [16.0, 8.0, 16.0, 8.0]
    assert (found[1].latency_min_us, found[1].device) == (8.0, "910B2")
    code, out, err = npusim_says("validate", rows, "-j", "1")
    assert (code, err) == (0, "")
    assert out.splitlines()[2].split()[:3] == ["profile", "4", "4"]


# ---- refusals ----


def test_no_profile(tmp_path: Path) -> None:
    message = (
        f"profile: {tmp_path} must hold kernel_details.csv, op_summary*.csv, msprof*.db or "
        f"ascend_pytorch_profiler*.db, but has none of them; name the folder that torch_npu's "
        f"profiler or msprof left"
    )
    refused(1, message, "profile", tmp_path, "-d", "910B2")


def test_a_folder_that_is_taken(folder: Path, tmp_path: Path) -> None:
    message = (
        f"profile: the folder {folder} must be new or empty, but holds kernel_details.csv; name "
        f"another, or add --force to replace an earlier run"
    )
    refused(1, message, "profile", folder, "-d", "910B2", "-o", folder)
    assert entries(tmp_path) == ["prof"]


def test_rows_that_are_none_stay_as_they_are(folder: Path, tmp_path: Path) -> None:
    rows = tmp_path / "mine.csv"
    rows.write_text("id,family\n")
    message = (
        "validate: mine.csv: line 1: columns must hold id, family, op, device, latency_us, but op "
        "is missing; add it"
    )
    refused(1, message, "profile", folder, "-d", "910B2", "--rows", rows)
    assert rows.read_text() == "id,family\n"


def test_an_unknown_chip(folder: Path) -> None:
    code, out, err = npusim_says("profile", folder, "-d", "Ascend1")
    assert (code, out) == (1, "")
    with pytest.raises(ValueError, match="Ascend1") as caught:
        npusim.devices.load("Ascend1")
    assert err == f"npusim: {caught.value}\n"
