"""`npusim sweep`: braces, files, going on, and every message."""

from __future__ import annotations

import csv
import json
import os
import signal
import subprocess
import sys
from io import StringIO
from pathlib import Path
from time import monotonic, sleep

import pytest
from commands import entries, npusim_says, refused

import npusim
from npusim import TensorSpec
from npusim.cli import sweep
from npusim.cli.braces import Braces
from npusim.cli.call import UsageError

OP = ("sweep", "npu_quantize")
REST = ("-i", "scales=spec:1:float32", "-a", "dtype=qint8")
ONE = (*OP, "-d", "A2", *REST, "-j", "1")
QUANTIZE = (*ONE, "-i", "input=spec:{m=1..64..x4}x256:float16")
READ = "gm.read_bytes_per_s"


def rows(*words: str) -> list[dict[str, str]]:
    code, out, err = npusim_says(*words, "-f", "csv")
    assert (code, err) == (0, "")
    return list(csv.DictReader(StringIO(out)))


# ---- braces ----


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("{1..4}", (1, 2, 3, 4)),
        ("{4..1}", (4, 3, 2, 1)),
        ("{1..10..4}", (1, 5, 9)),
        ("{9..1..-4}", (9, 5, 1)),
        ("{1..64..x4}", (1, 4, 16, 64)),
        ("{3..5..x2}", (3,)),
        ("{1,2,8}", (1, 2, 8)),
        ("{1..3,8,8,16..64..x2}", (1, 2, 3, 8, 16, 32, 64)),
        ("{float16,bfloat16}", ("float16", "bfloat16")),
        ("{-1..1}", (-1, 0, 1)),
        ("{08..10}", ("08", "09", "10")),
        ("{01,2,+3}", ("01", 2, "+3")),
        ("{../a.npy,b.npy}", ("../a.npy", "b.npy")),
    ],
)
def test_braces_are_ranges_and_lists(text: str, values: tuple[object, ...]) -> None:
    braces = Braces("sweep")
    braces.read("x", text)
    assert braces.variables == {"x": values}


def test_braces_without_a_name_are_called_after_their_parameter() -> None:
    braces = Braces("sweep")
    braces.read("x", "spec:{1,2}x{3,4}:float16")
    braces.read("y", "spec:{m=5..6}x{x_1}")
    braces.check()
    assert braces.variables == {"x_1": (1, 2), "x_2": (3, 4), "m": (5, 6)}
    assert braces.filled({"x_1": 2, "x_2": 3, "m": 6}) == [
        ("x", "spec:2x3:float16"),
        ("y", "spec:6x2"),
    ]


EXAMPLE = "write for example {1..64} or {1,2,4}"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{1..4", f"braces must come in pairs, none in another, not as in '{{1..4'; {EXAMPLE}"),
        (
            "{1,{2,3}}",
            f"braces must come in pairs, none in another, not as in '{{1,{{2,3}}}}'; {EXAMPLE}",
        ),
        ("{1,,2}", f"braces must hold a range or a list, not '1,,2'; {EXAMPLE}"),
        ("{m=}", f"braces must hold a range or a list, not ''; {EXAMPLE}"),
        (
            "{0..8..x2}",
            f"a range by a factor must go up from 1 or more by x2 or more, not as '0..8..x2'; "
            f"{EXAMPLE}",
        ),
        (
            "{1..8..x1}",
            f"a range by a factor must go up from 1 or more by x2 or more, not as '1..8..x1'; "
            f"{EXAMPLE}",
        ),
        (
            "{1..999999999}",
            f"a range must have at most 100000 values, not as '1..999999999'; {EXAMPLE}",
        ),
        *(
            (
                f"{{{text}}}",
                "a range must be of whole numbers of at most 18 digits, as 1..64, 1..64..8 or "
                f"1..64..x2, not '{text}'; {EXAMPLE}",
            )
            for text in ("1..1e9", "1..", "0.5..2", "1..64..8.5", "1..9999999999999999999")
        ),
        (
            "{2m=1,2}",
            f"braces must have their own name, such as {{m=1..64}}, not '2m'; {EXAMPLE}",
        ),
        (
            "{m=1,2}x{m=3,4}",
            f"braces must have their own name, such as {{m=1..64}}, not 'm'; {EXAMPLE}",
        ),
        (
            "{m=1,2}x{n}",
            "braces must hold a range, a list, or a name that has values, not 'n'; write for "
            "example {1..64}",
        ),
        (
            "{rows=1,2}x{row}",
            "braces must hold a range, a list, or a name that has values, not 'row'; did you mean "
            "{rows}?",
        ),
    ],
)
def test_what_is_no_pattern_is_refused(text: str, message: str) -> None:
    braces = Braces("sweep")
    with pytest.raises(UsageError) as caught:
        _read(braces, text)
    assert str(caught.value) == f"sweep: {message}"


def _read(braces: Braces, text: str) -> None:
    braces.read("x", text)
    braces.check()


def written_out(*words: str) -> tuple[dict[str, tuple[object, ...]], list[str]]:
    """What varies in the *words* that a shell made of one, and the words again."""
    braces = Braces("sweep")
    braces.read("x", *words)
    return braces.variables, list(braces.every())


@pytest.mark.parametrize(
    ("words", "variables"),
    [
        (["spec:8x64:int8"], {}),
        ([f"spec:{m}x64:int8" for m in (1, 2, 10)], {"x": (1, 2, 10)}),
        ([f"spec:{m}x{n}" for m in (1, 2) for n in (64, 65)], {"x_1": (1, 2), "x_2": (64, 65)}),
        (["spec:8:float16", "spec:8:bfloat16"], {"x": ("float16", "bfloat16")}),
        (["qint8", "quint8"], {"x": ("qint8", "quint8")}),
        (["0.1", "0.01"], {"x": ("0.1", "0.01")}),
        (["1e-5", "1e-6"], {"x": ("1e-5", "1e-6")}),
        (["-1", "2"], {"x": (-1, 2)}),
        (["in01.npy", "in02.npy"], {"x": ("01", "02")}),
        (["2x4:layout=ND", "2x4:layout=FRACTAL_NZ"], {"x": ("ND", "FRACTAL_NZ")}),
        (["spec:8:half", "spec:8x2:half"], {"x": ("spec:8:half", "spec:8x2:half")}),
        (["1,0,2", "0,1,2"], {"x": ("1,0,2", "0,1,2")}),
        (["1x2", "2x1"], {"x": ("1x2", "2x1")}),
    ],
)
def test_words_of_a_shell_vary(words: list[str], variables: dict[str, tuple[object, ...]]) -> None:
    assert written_out(*words) == (variables, words)


def test_braces_of_which_a_shell_wrote_some_out_are_refused() -> None:
    with pytest.raises(UsageError) as caught:
        written_out("spec:{m=1..4}x8", "spec:{m=1..4}x2x2")
    assert str(caught.value) == (
        f"sweep: braces of which a shell wrote some out must be in quotes, all of 'x'; {EXAMPLE}"
    )


def test_each_tensor_of_a_list_may_have_braces() -> None:
    found = rows(
        *("sweep", "concat", "-d", "A2", "-j", "1"),
        *("-i", "tensors=spec:{m=1..2}x64:float16", "-i", "tensors=spec:{m}x64:float16"),
    )
    assert [(row["m"], row["tensors"]) for row in found] == [
        ("1", "spec:1x64:float16 spec:1x64:float16"),
        ("2", "spec:2x64:float16 spec:2x64:float16"),
    ]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            [f"{READ}=x{{1..100000}}{{1..100000}}"],
            f"a word must have at most 100000 values, not 10000000000; {EXAMPLE}",
        ),
        (
            [f"{READ}=x{{1..100000}}", "gm.write_bytes_per_s=x{1..100000}"],
            "it must have 1 to 100000 cells, not 40000000000; vary less",
        ),
    ],
)
def test_settings_without_end_are_refused_at_once(settings: list[str], message: str) -> None:
    words = [word for each in settings for word in ("--set", each)]
    code, out, err = npusim_says(*QUANTIZE, *words)
    assert (out, err) == ("", f"npusim: sweep: {message}\n")
    assert code > 0


# ---- cells ----


def test_the_rows_are_the_runs_of_the_words() -> None:
    found = rows(*QUANTIZE, "-d", "310P,A2", "--set", f"{READ}=x{{1,0.5}}")
    assert [(row[READ], row["device"], row["m"]) for row in found] == [
        (factor, chip, m)
        for factor in ("x1", "x0.5")
        for chip in ("ascend910b2", "ascend310p3")
        for m in ("1", "4", "16", "64")
    ]
    run = npusim.run(
        "npu_quantize",
        TensorSpec((16, 256), "float16"),
        TensorSpec((1,), "float32"),
        None,
        "qint8",
        device="A2",
    )
    assert float(found[2]["time_us"]) == run.time_us


@pytest.mark.skipif(not Path("/bin/bash").exists(), reason="bash writes braces out")
def test_bash_may_write_the_braces_out(tmp_path: Path) -> None:
    words = "input=spec:{1,2,10}x256:float16"
    command = f'"$0" -m npusim {" ".join(ONE)} --set {READ}=x{{1,2}} -f csv -i '
    answers = [
        subprocess.run(
            ["/bin/bash", "-c", command + word, sys.executable],
            capture_output=True,
            text=True,
            check=True,
            cwd=tmp_path,
            env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        ).stdout
        for word in (words, f"'{words}'")
    ]
    assert answers[0] == answers[1]
    lines = list(csv.DictReader(StringIO(answers[0])))
    assert [(line[READ], line["input"]) for line in lines] == [
        (factor, m) for factor in ("x1", "x2") for m in ("1", "2", "10")
    ]


def test_a_sweep_is_a_table_with_what_crosses() -> None:
    words = ("sweep", "npu_dynamic_quant", "-d", "A2", "-i", "x=spec:{m=64,65}x1024:float16")
    code, out, err = npusim_says(*words, "--template", "db,base", "-j", "1")
    assert (code, err) == (0, "")
    spec = [TensorSpec((m, 1024), "float16") for m in (64, 65)]
    times = {
        (name, x.shape[0]): npusim.run("npu_dynamic_quant", x, template=name, device="A2").time_us
        for name in ("db", "base")
        for x in spec
    }
    assert out.splitlines()[2:6] == [
        f"{name:8}   {m:<2}   {times[name, m]:8.2f}   {name}"
        for name in ("db", "base")
        for m in (64, 65)
    ]


def test_a_bad_cell_is_listed_and_the_others_are_done(tmp_path: Path) -> None:
    words = (*OP, "-d", "A2", "-j", "1", "-i", "input=spec:8x{n=15,16}:float16")
    words += ("-i", "scales=spec:15:float32", "-a", "dtype=qint8")
    out = tmp_path / "out"
    code, answer, err = npusim_says(*words, "-o", str(out))
    with pytest.raises(npusim.OpError) as caught:
        npusim.run(
            *("npu_quantize", TensorSpec((8, 16), "float16"), TensorSpec((15,), "float32")),
            *(None, "qint8"),
            device="A2",
        )
    assert code == 1
    assert err == ("npusim: sweep: 1 of 2 cells were refused\n" + f"npusim: n 16: {caught.value}\n")
    assert answer.splitlines()[3] == "16    refused"
    assert answer.endswith(f"\nwrote sweep.json, sweep.csv, sweep.png, sweep.html to {out}\n")
    facts = json.loads((out / "sweep.json").read_text())
    assert [row["error"] for row in facts["rows"]] == [None, str(caught.value)]
    assert entries(tmp_path) == ["out"]


# ---- files ----


def test_a_folder_has_the_csv_the_json_and_the_picture(tmp_path: Path) -> None:
    out = tmp_path / "out"
    code, _, err = npusim_says(*QUANTIZE, "-o", str(out))
    assert (code, err) == (0, "")
    assert entries(out) == ["sweep.csv", "sweep.html", "sweep.json", "sweep.png"]
    assert (out / "sweep.csv").read_text() == npusim_says(*QUANTIZE, "-f", "csv").out
    assert (out / "sweep.json").read_text() == npusim_says(*QUANTIZE, "--json").out
    # Another one goes there only by force, and gives the same bytes.
    before = {path.name: path.read_bytes() for path in out.iterdir()}
    refused(
        1,
        f"sweep: the folder {out} must be new or empty, but holds sweep.csv; name another, or add "
        f"--force to replace an earlier run",
        *(*QUANTIZE, "-o", str(out)),
    )
    assert npusim_says(*QUANTIZE, "-o", str(out), "--force").code == 0
    assert {path.name: path.read_bytes() for path in out.iterdir()} == before
    assert entries(tmp_path) == ["out"]


AT_ONCE = """
from npusim.cli import main
from npusim.sweeps import playing
playing.ALONE_S = -1.0
main()
"""
"""The command, whose processes start however little there is to do."""


@pytest.mark.sample(1)
@pytest.mark.parametrize(
    ("number", "jobs"), [(signal.SIGINT, "2"), (signal.SIGTERM, "1"), (signal.SIGKILL, "2")]
)
def test_sweeps_are_resumed(tmp_path: Path, number: signal.Signals, jobs: str) -> None:
    words = (*OP, "-d", "A2", *REST, "-i", "input=spec:{1..80}x256:float16", "-o", "out")
    partial = tmp_path / "out.partial"
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    command = [sys.executable, "-c", AT_ONCE, *words, "-j"]
    with subprocess.Popen(
        [*command, jobs], cwd=tmp_path, env=environment, stderr=subprocess.PIPE, text=True
    ) as process:
        begin = monotonic()
        while not partial.exists() or partial.read_bytes().count(b"\n") < 5:
            assert process.poll() is None
            assert monotonic() - begin < 60
            sleep(0.01)
        process.send_signal(number)
        _, err = process.communicate(timeout=60)
    if number != signal.SIGKILL:
        told = f"npusim: sweep: what is done is in {partial.name}; the same command goes on"
        assert told in err.splitlines()
        assert "Traceback" not in err
        assert process.returncode == {signal.SIGINT: 130, signal.SIGTERM: 128 + 15}[number]
    assert entries(tmp_path) == ["out.partial"]
    again = subprocess.run(
        [*command, "1"], cwd=tmp_path, env=environment, capture_output=True, text=True, check=True
    )
    assert entries(tmp_path) == ["out"]
    assert "wrote sweep.json" in again.stdout
    plain = npusim_says(*words[:-2], "-f", "csv", "-j", "1").out
    assert (tmp_path / "out" / "sweep.csv").read_text() == plain


# ---- messages ----


@pytest.mark.parametrize(
    ("code", "message", "words"),
    [
        (
            *(2, "sweep: -i must name a tensor of npu_quantize, one of input, scales, "),
            ("-i", "inputs=spec:8:half"),
        ),
        (2, "inputs: a dtype must be one of float32, ", ("-i", "input=spec:{1,2}x8:flaot16")),
        (1, "devices: no device 'A9'; known: ", ("-d", "A9", "-i", "input=spec:8:half")),
        (
            *(
                1,
                "sweep: template must be left out for npu_quantize, which has one kernel, not be ",
            ),
            ("-i", "input=spec:8:half", "--template", "db"),
        ),
        (
            *(
                1,
                "set: a key must name a number that `npusim devices show` lists for ascend910b2, ",
            ),
            ("-i", "input=spec:8:half", "--set", "gm.red=x2"),
        ),
        (
            *(
                2,
                "sweep: '310P' must be an option, or NAME=VALUE; put braces into quotes, or into ",
            ),
            ("-i", "input=spec:8:half", "310P"),
        ),
        (
            *(2, "sweep: 'inputs=spec:8:half' must be one more value of what one -i, -a or --set "),
            ("-i", "input=spec:8:half", "inputs=spec:8:half"),
        ),
        (
            *(2, "sweep: braces must hold a range, a list, or a name that has values, not 'm'; "),
            ("-i", "input=spec:{m}x8:half"),
        ),
        (
            *(1, "sweep: --dask must be the address of a scheduler, not 'foo'; write for example "),
            ("-i", "input=spec:8x8:half", "--dask", "foo"),
        ),
    ],
)
def test_what_is_typed_wrong_is_one_line(code: int, message: str, words: tuple[str, ...]) -> None:
    if message.startswith("sweep: --dask"):
        pytest.importorskip("distributed")
    chip = () if "-d" in words else ("-d", "A2")
    found = npusim_says(*OP, *chip, *REST, *words)
    assert (found.code, found.out, found.err.count("\n")) == (code, "", 1)
    assert found.err.startswith(f"npusim: {message}")


def test_the_pace_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of cells that are done now, not of those that an earlier sweep has left."""
    shown: list[tuple[object, ...]] = []
    relay = sweep._Relay(lambda *news: shown.append(news))
    for now_s, done in ((100.0, 40), (102.0, 60), (104.0, 100)):
        monkeypatch.setattr(sweep, "monotonic", lambda now_s=now_s: now_s)
        relay(done, 200)
    assert shown == [
        ("cells", 0.2, ""),
        ("cells", 0.3, "10 a second"),
        ("cells", 0.5, "15 a second"),
    ]
