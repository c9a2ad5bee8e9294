"""Sweeps in Python: the same rows in any process, refusals as rows, going on."""

from __future__ import annotations

import csv
import json
import os
import signal
from collections.abc import Iterator
from concurrent.futures import BrokenExecutor, Executor, Future, ThreadPoolExecutor
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sweeping import CHIPS, OP, SIZES, call

import npusim
from npusim import Tensor, TensorSpec, devices
from npusim.run.disk_cache import StoreError
from npusim.run.inputs import parse
from npusim.run.processes import processes
from npusim.sweeps import Outcome, SweepError, journal, playing
from npusim.sweeps.cells import word
from npusim.sweeps.playing import timed
from npusim.sweeps.table import VENDOR

pytestmark = pytest.mark.usefixtures("nothing_kept")

OVER = {"m": SIZES}


def swept(**more: Any) -> npusim.sweeps.Sweep:  # type: ignore[name-defined]
    options = {"device": CHIPS, "jobs": 1} | more
    return npusim.sweep(OP, call, OVER, **options)


# ---- what comes out ----


def test_each_cell_is_the_run_that_it_stands_for() -> None:
    found = swept(settings={"gm.read_bytes_per_s": ["x1", "x0.1"]})
    assert [
        (row.cell.settings["gm.read_bytes_per_s"], row.cell.device, row.cell.variables["m"])
        for row in found.rows
    ] == [(factor, chip, m) for factor in ("x1", "x0.1") for chip in CHIPS for m in SIZES]
    for row in found.rows:
        spec = devices.changed(devices.load(row.cell.device), row.cell.settings)
        run = npusim.run(OP, **call(row.cell.variables["m"]), device=spec)
        assert run.trace is not None
        assert run.plan is not None
        assert row.outcome == Outcome(
            time_us=run.time_us,
            launch_us=run.launch_us,
            cycles=run.cycles,
            block_dim=run.plan.block_dim,
            gm_bytes=run.trace.gm_bytes,
            l2_bytes=run.trace.l2_bytes,
            why=row.outcome.why,
        )
    assert repr(found) == "<sweep of npu_quantize over device, gm.read_bytes_per_s, m: 20 cells>"


def test_a_narrower_link_costs_time_where_it_is_used() -> None:
    def large(m: int) -> dict[str, Any]:
        return call(m) | {"input": TensorSpec((m, 8192), "float16")}

    setting = {"gm.read_bytes_per_s": ["x1", "x0.25"]}
    found = npusim.sweep(OP, large, {"m": [1024]}, device="A2", settings=setting, jobs=1)
    plain, narrow = (row.outcome for row in found.rows)
    assert plain.time_us is not None
    assert narrow.time_us is not None
    assert narrow.time_us > plain.time_us
    assert narrow.launch_us == plain.launch_us
    assert narrow.why is not None
    assert narrow.why.startswith("bound by the bandwidth of global memory: ")


def test_all_templates_are_the_vendors_choice_and_those_that_take_the_call() -> None:
    x = {"x": TensorSpec((64, 1024), "float16")}
    found = npusim.sweep("npu_dynamic_quant", x, device=CHIPS, template="all", jobs=1)
    names = npusim.ops.load("npu_dynamic_quant").templates
    assert [row.cell.asked for row in found.rows] == [None, *names] * 2
    vendor = found.rows[0].outcome
    same = next(row.outcome for row in found.rows if row.cell.asked == vendor.template)
    assert (same.time_us, same.reason) == (vendor.time_us, "asked for")
    assert [row.outcome.error for row in found.rows if row.cell.asked == "moe"] == [
        "npu_dynamic_quant: template 'moe' can run only if group_index is given; leave it out to "
        "get the vendor's choice [161002]",
        "npu_dynamic_quant: template must be None on Atlas inference, where the rows decide, not "
        "'moe'; leave it out [161002]",
    ]
    # A template that is merely tried is not a cell that went wrong; one that is named is.
    assert found.bad == ()
    named = npusim.sweep("npu_dynamic_quant", x, device=CHIPS, template=["db", "moe"], jobs=1)
    assert [row.cell.asked for row in named.bad] == ["moe", "db", "moe"]


def test_the_csv_says_all_that_was_asked_and_found() -> None:
    found = swept(device="A2")
    lines = list(csv.DictReader(StringIO(found.to_csv())))
    assert list(lines[0]) == [
        *("op", "device", "asked", "m", "input", "scales", "zero_points", "dtype"),
        *("time_us", "launch_us", "cycles", "template", "reason", "block_dim"),
        *("gm_bytes", "l2_bytes", "why", "error"),
    ]
    assert [float(line["time_us"]) for line in lines] == [row.outcome.time_us for row in found.rows]
    assert {line["zero_points"] for line in lines} == {"none"}
    assert lines[2]["input"] == "spec:4x256:float16"
    facts = json.loads(json.dumps(found.to_json()))
    assert [row["time_us"] for row in facts["rows"]] == [row.outcome.time_us for row in found.rows]
    assert facts["rows"][2]["variables"] == {"m": 4}


def test_an_argument_that_bears_the_name_of_a_variable_keeps_a_column() -> None:
    found = npusim.sweep(
        OP, lambda **of: call(*of.values()), {"input": [1, 2]}, device="A2", jobs=1
    )
    lines = list(csv.DictReader(StringIO(found.to_csv())))
    assert [(line["input"], line["input_word"]) for line in lines] == [
        ("1", "spec:1x256:float16"),
        ("2", "spec:2x256:float16"),
    ]


@pytest.mark.parametrize(
    "value",
    [
        TensorSpec((8, 16), "float16"),
        TensorSpec((), "float32"),
        TensorSpec((32, 64), "int8", "FRACTAL_NZ"),
        TensorSpec((32, 64), "int8", "ND", True),
        None,
    ],
)
def test_an_argument_in_words_is_that_argument(value: TensorSpec | None) -> None:
    assert parse(word(value)) == value


def test_values_are_left_out_of_words() -> None:
    tensor = Tensor.of(np.zeros((32, 32), np.int8), "FRACTAL_NZ")
    assert word([np.ones(3, np.float32), tensor]) == (
        "spec:3:float32 spec:32x32:int8:layout=FRACTAL_NZ"
    )


# ---- in any process ----


class Late(Executor):
    """Answers in the other order: the last call of a batch first."""

    def __init__(self) -> None:
        self._left: list[tuple[Future[Any], Any, tuple[Any, ...]]] = []

    def submit(self, function: Any, /, *args: Any, **_: Any) -> Future[Any]:
        future: Future[Any] = Future()
        self._left.append((future, function, args))
        if len(self._left) == len(SIZES) * len(CHIPS):
            for each, of, given in reversed(self._left):
                each.set_result(of(*given))
        return future


@pytest.fixture(scope="module")
def expected() -> str:
    return swept().to_csv()


def test_threads_give_the_same_bytes(expected: str) -> None:
    with ThreadPoolExecutor(3) as pool:
        assert swept(executor=pool).to_csv() == expected


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Processes start however little there is to do."""
    monkeypatch.setattr(playing, "ALONE_S", -1.0)


@pytest.mark.usefixtures("at_once")
def test_processes_give_the_same_bytes(expected: str) -> None:
    assert swept(jobs=2).to_csv() == expected
    with processes(1) as pool:
        assert swept(executor=pool).to_csv() == expected


def test_short_work_starts_no_process(monkeypatch: pytest.MonkeyPatch, expected: str) -> None:
    monkeypatch.setattr(playing, "ALONE_S", 1000.0)
    monkeypatch.setattr(playing, "processes", None)
    assert swept(jobs=2).to_csv() == expected


def test_answers_in_any_order_give_the_same_bytes(expected: str) -> None:
    assert swept(executor=Late()).to_csv() == expected


@pytest.mark.usefixtures("at_once")
def test_a_killed_process_of_this_machine_is_replaced(expected: str) -> None:
    from multiprocessing import active_children

    killed: list[int] = []

    def progress(done: int, _: int) -> None:
        if done and not killed:
            pid = active_children()[0].pid
            assert pid is not None
            killed.append(pid)
            os.kill(pid, signal.SIGKILL)

    assert swept(jobs=2, progress=progress).to_csv() == expected
    assert len(killed) == 1


@pytest.mark.parametrize("task_s", [-1.0, 100.0])
def test_tasks_of_several_calls_give_the_same_bytes(
    task_s: float, monkeypatch: pytest.MonkeyPatch, expected: str
) -> None:
    """Whether they do all of them, or each time the first one alone."""
    monkeypatch.setattr(playing, "IN_FLIGHT", 2)
    monkeypatch.setattr(playing, "TASK_S", task_s)
    with ThreadPoolExecutor(2) as pool:
        assert swept(executor=pool).to_csv() == expected


class KilledError(Exception):
    """The worker that had a task was killed."""


def test_a_call_that_kills_its_worker_does_not_take_others_along(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def deadly(key: str, call: Any) -> Outcome:
        if call.spec.name == CHIPS[0] and call.arguments["input"].shape[0] == 4:
            raise KilledError
        return timed(key, call)

    monkeypatch.setattr(playing, "IN_FLIGHT", 2)
    monkeypatch.setattr(playing, "timed", deadly)
    monkeypatch.setattr(playing, "_is_lost", lambda error: isinstance(error, KilledError))
    with ThreadPoolExecutor(2) as pool:
        found = swept(executor=pool)
    assert {(row.cell.device, row.cell.variables["m"]): row.outcome.error for row in found.bad} == {
        (CHIPS[0], 4): "sweep: a worker must live until its call is done, but each that had this "
        "one was killed, perhaps for want of memory; give workers more, or take fewer a machine"
    }


class Broken(Executor):
    """One whose workers are gone."""

    def submit(self, function: Any, /, *args: Any, **kwargs: Any) -> Future[Any]:  # noqa: ARG002
        raise BrokenExecutor("its workers are gone")


def test_an_executor_that_breaks_is_reported() -> None:
    with pytest.raises(SweepError) as caught:
        swept(executor=Broken())
    assert str(caught.value) == (
        "sweep: the executor must last until all calls are done, but: its workers are gone; start "
        "it anew"
    )


@pytest.mark.usefixtures("at_once")
def test_dying_processes_are_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    class Dying(Broken):
        def __enter__(self) -> Dying:
            return self

    monkeypatch.setattr(playing, "processes", lambda _: Dying())
    with pytest.raises(SweepError) as caught:
        swept(jobs=2)
    assert str(caught.value) == (
        "sweep: processes must live until their calls are done, but 3 times one was killed with "
        "10 calls left, perhaps for want of memory; take fewer jobs, and keep calls of a script "
        'below if __name__ == "__main__"'
    )


def test_other_workers_are_refused() -> None:
    class Other(Executor):
        def submit(self, function: Any, /, *args: Any, **_: Any) -> Future[Any]:
            future: Future[Any] = Future()
            future.set_result((b"another", function(*args)[1]))
            return future

    with pytest.raises(SweepError) as caught:
        swept(executor=Other())
    assert str(caught.value) == (
        "sweep: workers must run this very npusim, but one runs another; install the same there"
    )


def test_equal_cells_are_computed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[Any] = []
    monkeypatch.setattr(playing, "timed", lambda *work: calls.append(work) or timed(*work))
    settings = {"l2.capacity_bytes": ["x1", "192MiB"]}
    assert devices.load("A2").l2.capacity_bytes == 192 << 20
    found = swept(device=["A2", "910B2"], settings=settings)
    assert (len(found.rows), len(calls)) == (2 * len(SIZES), len(SIZES))


# ---- rows in a folder ----


@pytest.fixture
def simulated(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The calls that are simulated, each time."""
    found: list[Any] = []
    usual = playing._timed
    monkeypatch.setattr(playing, "_timed", lambda call: found.append(call) or usual(call))
    return found


def test_rows_outlive_the_process(tmp_path: Path, simulated: list[Any], expected: str) -> None:
    for _ in range(2):
        assert swept(cache=tmp_path).to_csv() == expected
    assert len(simulated) == len(list(tmp_path.iterdir())) == len(SIZES) * len(CHIPS)
    with ThreadPoolExecutor(2) as pool:
        assert swept(cache=tmp_path, executor=pool).to_csv() == expected
    # Another sweep needs what it shares with this one no more.
    npusim.sweep(OP, call, {"m": [3, 4]}, device=CHIPS, jobs=1, cache=tmp_path)
    assert len(simulated) == len(SIZES) * len(CHIPS) + 2


def test_what_is_no_row_of_ours_is_done_again(
    tmp_path: Path, simulated: list[Any], expected: str
) -> None:
    swept(cache=tmp_path)
    foreign, damaged, exchanged, _, *_ = sorted(tmp_path.iterdir())
    own = foreign.read_bytes()
    damaged.write_bytes(damaged.read_bytes().replace(b"time_us", b"time"))
    exchanged.write_bytes(own)
    foreign.write_bytes(b"mine")
    assert swept(cache=tmp_path).to_csv() == expected
    assert len(simulated) == len(SIZES) * len(CHIPS) + 3
    assert foreign.read_bytes() == b"mine"
    assert swept(cache=tmp_path).to_csv() == expected
    assert len(simulated) == len(SIZES) * len(CHIPS) + 4


def test_what_another_machine_may_do_is_not_stored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def play(*_: Any) -> None:
        raise MemoryError

    monkeypatch.setattr(playing, "play", play)
    (row,) = npusim.sweep(OP, call(4), device="A2", jobs=1, cache=tmp_path).rows
    assert row.outcome.error == "sweep: a call must fit into memory; give it fewer elements"
    assert list(tmp_path.iterdir()) == []


def test_rows_of_custom_kernels_are_not_stored(tmp_path: Path, simulated: list[Any]) -> None:
    kernel = tmp_path / "mine.py"
    kernel.write_text(
        "from npusim.kernel import FLOAT32, VectorCore\n"
        "from npusim import TensorSpec\n"
        "def double(spec, x):\n    raise ValueError('not today')\n"
    )
    for _ in range(2):
        npusim.sweep(
            *(f"{kernel}:double", {"x": TensorSpec((64,), "float32")}),
            device="A2",
            jobs=1,
            cache=tmp_path / "rows",
        )
    assert len(simulated) == 2
    assert not (tmp_path / "rows").exists()


def test_a_folder_that_is_none_is_refused_before_anything_is_done(tmp_path: Path) -> None:
    taken = tmp_path / "taken"
    taken.write_text("mine")
    with pytest.raises(StoreError) as caught:
        swept(cache=taken)
    assert str(caught.value) == (
        f"run: cache must be a folder, not {taken}: File exists; name another"
    )


# ---- refusals ----


def test_a_bad_cell_is_a_row_and_the_others_are_done() -> None:
    def grouped(rows: int, dtype: str) -> dict[str, Any]:
        return {"x": TensorSpec((rows, 64), "float16"), "dst_type": dtype}

    found = npusim.sweep(
        *("npu_dynamic_quant", grouped, {"rows": [8, 16], "dtype": ["int8", "int9"]}),
        device="A2",
        jobs=1,
    )
    assert [row.outcome.time_us is None for row in found.rows] == [False, True, False, True]
    assert {row.outcome.error for row in found.bad} == {
        next(row.outcome.error for row in found.bad)
    }
    assert repr(found) == "<sweep of npu_dynamic_quant over rows, dtype: 4 cells, 2 refused>"
    line = found.to_csv().splitlines()[2]
    assert line.startswith("npu_dynamic_quant,ascend910b2,,8,int9,spec:8x64:float16,int9,,,,,,,,,,")


def test_a_cell_that_no_call_can_be_made_of_is_one_too() -> None:
    def even(m: int) -> dict[str, Any]:
        if m % 2:
            raise ValueError(f"m must be even, not {m}; add one")
        return call(m)

    found = npusim.sweep(OP, even, {"m": [1, 2]}, device="A2", jobs=1)
    assert [row.outcome.error for row in found.rows] == ["m must be even, not 1; add one", None]
    with pytest.raises(ValueError, match=r"^m must be even, not 1; add one$"):
        npusim.sweep(OP, even, {"m": [1, 3]}, device="A2", jobs=1)


def test_a_setting_that_one_chip_lacks_is_its_refusal_alone() -> None:
    found = swept(settings={"cores.aiv.clock_hz": "x0.5"})
    assert [row.cell.device for row in found.bad] == ["ascend310p3"] * len(SIZES)
    assert {row.outcome.error for row in found.bad} == {
        "set: a key must name a number that `npusim devices show` lists for ascend310p3, not "
        "'cores.aiv.clock_hz'; did you mean cores.ai_core.clock_hz or cores.vector_core.clock_hz?"
    }
    with pytest.raises(devices.SettingError):
        swept(device="310P", settings={"cores.aiv.clock_hz": "x0.5"})


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (
            {"template": "db"},
            "sweep: template must be left out for npu_quantize, which has one kernel, not be 'db'; "
            "leave it out",
        ),
        ({"device": []}, "sweep: it must have 1 to 100000 cells, not 0; vary over one value at "
         "least"),
        ({"jobs": 0}, "sweep: jobs must be 1 or more, not 0; leave it out"),
        ({"jobs": True}, "sweep: jobs must be 1 or more, not True; leave it out"),
    ],
)  # fmt: skip
def test_what_is_no_sweep_is_refused(more: dict[str, Any], message: str) -> None:
    with pytest.raises(SweepError) as caught:
        swept(**more)
    assert str(caught.value) == message


def test_too_many_cells_are_a_slip() -> None:
    with pytest.raises(SweepError) as caught:
        npusim.sweep(OP, call, {"m": range(1, 100_002)}, device="A2")
    assert str(caught.value) == "sweep: it must have 1 to 100000 cells, not 100001; vary less"


@pytest.mark.parametrize("name", ["time_us", "device", "gm.x", "2m"])
def test_a_variable_has_its_own_name(name: str) -> None:
    with pytest.raises(SweepError) as caught:
        npusim.sweep(OP, call, {name: [1]}, device="A2")
    assert str(caught.value) == (
        f"sweep: a variable must have its own name, such as m, not {name!r}; rename it"
    )


def test_an_unknown_template_is_named_with_what_is_meant() -> None:
    x = {"x": TensorSpec((64, 1024), "float16")}
    with pytest.raises(SweepError) as caught:
        npusim.sweep("npu_dynamic_quant", x, device="A2", template="larg")
    assert str(caught.value) == (
        "sweep: a template of npu_dynamic_quant must be one of single_row, multi_row, db, base, "
        "large, moe, moe_large, not 'larg'; did you mean large?"
    )


def test_two_chips_of_one_name_are_refused(tmp_path: Path) -> None:
    files = [tmp_path / f"{name}.toml" for name in ("one", "two")]
    for number, file in enumerate(files, 1):
        file.write_text(
            'extends = "ascend910b2"\nname = "mine"\n\n[gm.read_latency_ns]\n'
            f'value = {100 * number}\nsource = "x"\nconfidence = "assumed"\n'
        )
    with pytest.raises(SweepError) as caught:
        swept(device=files)
    assert str(caught.value) == (
        "sweep: chips must have different names, but two are called mine; rename one in its file"
    )


# ---- going on ----


def some(count: int, path: Path) -> Iterator[None]:
    """Interrupt a sweep once *count* cells are done."""

    def progress(done: int, _: int) -> None:
        if done == count:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        swept(resume=path, progress=progress)
    yield


def test_sweeps_are_resumed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, expected: str) -> None:
    path = tmp_path / "sweep.partial"
    next(some(4, path))
    assert len(path.read_bytes().splitlines()) == 1 + 4
    # KilledError while it wrote a line.
    with path.open("ab") as file:
        file.write(b'{"key":"ab')
    calls: list[Any] = []
    heard: list[tuple[int, int]] = []
    monkeypatch.setattr(playing, "timed", lambda *work: calls.append(work) or timed(*work))
    found = swept(resume=path, progress=lambda *news: heard.append(news))
    assert found.to_csv() == expected
    assert len(calls) == len(SIZES) * len(CHIPS) - 4
    assert heard == [(done, 10) for done in range(4, 11)]
    # All is there, and nothing is left to do.
    calls.clear()
    assert swept(resume=path).to_csv() == expected
    assert calls == []


def held(path: Path, message: str, **more: Any) -> None:
    before = path.read_bytes()
    with pytest.raises(SweepError) as caught:
        swept(resume=path, **more)
    assert str(caught.value) == f"sweep: {path} {message}"
    assert path.read_bytes() == before


def test_the_file_of_something_else_is_left_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "sweep.partial"
    for text in (b"", b"time,us\n", b'{"file":"npusim sweep 1","npusim":"a","sweep":"b"}\n'):
        path.write_bytes(text)
        held(
            path,
            "must be what an interrupted sweep has left, but is something else; move it away, or "
            "name another folder",
        )


def test_another_sweep_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "sweep.partial"
    next(some(2, path))
    held(
        path,
        "must be of this very sweep to go on from, but is of another one; give the same words as "
        "then, name another folder, or remove it",
        device="A2",
    )
    monkeypatch.setattr(journal, "own_digest", lambda: b"of tomorrow")
    held(
        path,
        "must be of this npusim to go on from, but another one, whose times may differ, has begun "
        "it; go on with that one, name another folder, or remove it",
    )


@pytest.mark.parametrize("change", [(b"time_us", b"time"), (b'time_us":', b'time_us":1')])
def test_a_damaged_line_is_named(tmp_path: Path, change: tuple[bytes, bytes]) -> None:
    """Also a line whose time was changed, which is still one that could be read."""
    path = tmp_path / "sweep.partial"
    next(some(3, path))
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join([*lines[:2], lines[2].replace(*change), lines[3]]))
    before = path.read_bytes()
    with pytest.raises(SweepError) as caught:
        swept(resume=path)
    assert str(caught.value) == (
        f"sweep: {path}: line 3 must be a call that is done, but is damaged; remove the line, and "
        f"it is done again"
    )
    assert path.read_bytes() == before


def test_one_process_at_a_time_writes_the_file(tmp_path: Path) -> None:
    path = tmp_path / "sweep.partial"

    def progress(done: int, _: int) -> None:
        if not done:
            with pytest.raises(SweepError) as caught:
                swept(resume=path)
            assert str(caught.value) == (
                f"sweep: {path} must be written by one process at a time, but another one is at "
                f"it; wait for it, or name another folder"
            )

    swept(resume=path, progress=progress)


def test_a_file_that_is_none_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    with pytest.raises(SweepError) as caught:
        swept(resume=folder)
    assert str(caught.value) == (
        f"sweep: {folder} must be a file that can be read and written, but: Is a directory; check "
        f"where it goes"
    )


def test_values_decide_only_where_a_kernel_sees_them() -> None:
    """A sweep of arrays is one of their shapes."""
    plain = npusim.sweep(OP, call(8), device="A2", jobs=1)
    arrays = call(8) | {"input": np.ones((8, 256), np.float16), "scales": np.ones(1, np.float32)}
    assert npusim.sweep(OP, arrays, device="A2", jobs=1).to_csv() == plain.to_csv()
    assert plain.rows[0].coordinates == {"device": "ascend910b2", "template": VENDOR}
