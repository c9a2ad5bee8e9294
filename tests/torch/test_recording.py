"""What a recording keeps: every kernel of the clock, and in which module it was launched."""

from __future__ import annotations

import re
import warnings
from pathlib import Path
from typing import Any

import pytest
from simulated_card import torch, torch_npu, torchair
from torch.nn.modules.module import _global_forward_hooks, _global_forward_pre_hooks

import npusim.torch
from npusim.data.folders import FolderError
from npusim.torch import card
from npusim.torch.__main__ import main
from npusim.torch.clock import Event, clock
from npusim.trace import model


class Block(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up = torch.nn.Linear(64, 128, bias=False)
        self.down = torch.nn.Linear(128, 64, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(torch.nn.functional.silu(self.up(x)))


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.ModuleList(Block() for _ in range(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x)
        return x


LAYERS = [
    (f"Net.layers.{number}{part}", op)
    for number in (0, 1)
    for part, op in ((".up", "matmul"), ("", "silu"), (".down", "matmul"), ("", "add"))
]
"""What a forward of Net launches."""


@pytest.fixture
def net() -> torch.nn.Module:
    torch.manual_seed(0)
    return Net().half().npu().eval()


@pytest.fixture
def x() -> torch.Tensor:
    return torch.randn(16, 64).half().npu()


def where(recorded: Any) -> list[tuple[str, str]]:
    return [(launch.module, launch.kernel.op) for launch in recorded.run.launches]


# ---- launches ----


def test_a_recording_is_what_the_clock_tells(net: torch.nn.Module, x: torch.Tensor) -> None:
    began_us, launches = clock.now_us, clock.launches
    events = clock.record()
    with torch.no_grad(), npusim.torch.record("net") as recorded:
        net(x)
        x.lgamma()
    clock.stop(events)
    run = recorded.run
    kernels = [event for event in events if event.run is not None]
    assert (run.title, run.device, run.series) == ("net", "Ascend910B2", "Atlas A2")
    assert run.paid_launches == clock.launches - launches == len(run.launches)
    assert [launch.kernel.op for launch in run.launches] == [event.name for event in kernels]
    for launch, event in zip(run.launches, kernels, strict=True):
        assert launch.start_us == pytest.approx(event.start_us - began_us)
        assert (launch.time_us, launch.kernel.launch_us) == (event.time_us, event.launch_us)
        assert event.run is not None
        assert event.run.trace is not None
        assert launch.kernel.cycles == event.run.cycles
        assert launch.kernel.gm_bytes == event.run.trace.gm_bytes
    assert run.time_us == pytest.approx(clock.now_us - began_us)
    assert [(each.operator, each.count) for each in run.not_timed] == [("aten.lgamma.default", 1)]


def test_a_launch_knows_its_module_and_operator(net: torch.nn.Module, x: torch.Tensor) -> None:
    with torch.no_grad(), npusim.torch.record() as recorded:
        net(x)
        x + x
    assert where(recorded) == [*LAYERS, ("", "add")]
    assert [launch.operator for launch in recorded.run.launches[:4]] == [
        *("aten.mm.default", "aten.silu.default", "aten.mm.default", "aten.add.Tensor")
    ]
    assert recorded.run.classes["Net.layers.0.up"] == "Linear"
    assert recorded.run.classes["Net.layers.1"] == "Block"


def test_an_operator_of_torch_npu_keeps_its_name(x: torch.Tensor) -> None:
    with npusim.torch.record() as recorded:
        torch_npu.npu_dynamic_quant(x)
        x.t() + x.t()
    named = [(launch.operator, launch.kernel.op) for launch in recorded.run.launches]
    assert named == [
        ("npu.npu_dynamic_quant.default", "npu_dynamic_quant"),
        # A view is copied before; the copies belong to the operation that needs them.
        ("aten.add.Tensor", "permute"),
        ("aten.add.Tensor", "permute"),
        ("aten.add.Tensor", "add"),
    ]


def test_launches_of_one_call_share_their_kernel(net: torch.nn.Module, x: torch.Tensor) -> None:
    with torch.no_grad(), npusim.torch.record() as recorded:
        net(x)
    run = recorded.run
    assert (len(run.launches), len(run.kernels)) == (8, 4)
    up = run.launches[0].kernel
    assert (up.inputs, up.outputs) == (("float16 16x64", "float16 64x128"), ("float16 16x128",))
    assert up is run.launches[4].kernel
    assert up.written_bytes == 2 * 16 * 128
    assert up.read_bytes >= 2 * (16 * 64 + 64 * 128)
    assert up.bound == "launch and completion"
    assert 0 < up.bound_share <= 1


def test_streams_are_distinguished(net: torch.nn.Module, x: torch.Tensor) -> None:
    side = torch.npu.Stream()
    with torch.no_grad(), npusim.torch.record() as recorded:
        net(x)
        with torch.npu.stream(side):
            net(x)
        x + x
    default = torch.npu.default_stream().stream_id
    found = [launch.stream for launch in recorded.run.launches]
    assert found == [default] * 8 + [side.stream_id] * 8 + [default]


# ---- modules ----


def test_a_second_model_of_a_class_has_a_number(x: torch.Tensor) -> None:
    first, second = (torch.nn.Linear(64, 8, bias=False).half().npu() for _ in range(2))
    with torch.no_grad(), npusim.torch.record() as recorded:
        first(x), second(x), first(x)
    assert [module for module, _ in where(recorded)] == ["Linear", "Linear (2)", "Linear"]


def test_a_module_that_fails_is_left(net: torch.nn.Module, x: torch.Tensor) -> None:
    with torch.no_grad(), npusim.torch.record() as recorded:
        with pytest.raises(RuntimeError):
            net(torch.zeros(3, 5).half().npu())
        x + x
    assert where(recorded)[-1] == ("", "add")
    assert clock.module == ""


def test_hooks_go_with_the_recording(net: torch.nn.Module, x: torch.Tensor) -> None:
    before = len(_global_forward_hooks), len(_global_forward_pre_hooks)
    with npusim.torch.record():
        assert len(_global_forward_hooks) == before[0] + 1
    assert (len(_global_forward_hooks), len(_global_forward_pre_hooks)) == before

    class Inside(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            recorded.__enter__()
            return net(x)

    recorded = npusim.torch.record()
    with torch.no_grad():
        Inside()(x)
        x + x
    recorded.__exit__()
    assert where(recorded) == [*LAYERS, ("", "add")]


def test_a_recording_is_entered_once_at_a_time() -> None:
    message = (
        "npusim.torch.record: a recording must be entered once at a time, but it is open; "
        "make another with npusim.torch.record()"
    )
    with (
        npusim.torch.record() as recorded,
        pytest.raises(RuntimeError, match=f"^{re.escape(message)}$"),
    ):
        recorded.__enter__()


# ---- graphs ----


@pytest.mark.parametrize("is_known", [True, False], ids=["run before", "new"])
def test_graphs_know_their_modules(net: torch.nn.Module, x: torch.Tensor, is_known: bool) -> None:
    torch._dynamo.reset()
    compiled = torch.compile(net, backend=torchair.get_npu_backend(), dynamic=False)
    with (
        torch.no_grad(),
        warnings.catch_warnings(action="error"),
        npusim.torch.record() as recorded,
    ):
        if is_known:
            net(x)
        found = compiled(x)
    assert where(recorded) == [*LAYERS, *LAYERS] if is_known else LAYERS
    inside = recorded.run.launches[-8:]
    assert len({launch.graph for launch in inside}) == 1
    assert inside[0].graph.startswith("graph_")
    assert inside[0].kernel.launch_us > 0
    assert inside[-1].kernel.launch_us == 0
    assert recorded.run.paid_launches == 8 * is_known + 1
    with torch.no_grad():
        assert torch.equal(found, net(x))


def test_a_graph_that_is_replayed_knows_its_modules(net: torch.nn.Module, x: torch.Tensor) -> None:
    graph = torch.npu.NPUGraph()
    with torch.no_grad(), npusim.torch.record() as recorded:
        with torch.npu.graph(graph):
            net(x)
        graph.replay()
    assert where(recorded) == LAYERS
    assert {launch.graph.rpartition("_")[0] for launch in recorded.run.launches} == {"npu_graph"}
    assert recorded.run.paid_launches == 1


# ---- shapes alone ----


def test_shapes_alone_make_the_same_record(net: torch.nn.Module, x: torch.Tensor) -> None:
    with torch.no_grad(), npusim.torch.record() as valued:
        net(x)
    card.insert(card.spec(), values=False)
    try:
        with torch.no_grad(), npusim.torch.record() as shaped:
            Net().half().npu().eval()(torch.empty(16, 64, dtype=torch.float16, device="npu"))
    finally:
        card.insert(card.spec())
    inside = [launch for launch in shaped.run.launches if launch.module]
    assert [(launch.module, launch.kernel) for launch in inside] == [
        (launch.module, launch.kernel) for launch in valued.run.launches
    ]


# ---- what is left ----


def test_a_recording_survives(net: torch.nn.Module, x: torch.Tensor, tmp_path: Path) -> None:
    with torch.no_grad(), npusim.torch.record() as recorded:
        net(x)
    names = recorded.write(tmp_path / "out")
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == sorted(names)
    assert model.read(tmp_path / "out").to_json() == recorded.run.to_json()
    assert recorded.summary().splitlines()[0] == (
        f"{recorded.run.time_us:.1f} us of device time on Ascend910B2 (Atlas A2): "
        f"8 kernels in 8 launches"
    )
    message = (
        f"npusim.torch: the folder {tmp_path / 'out'} must be new or empty, but holds kernels.csv; "
        f"name another, or pass force=True to replace an earlier run"
    )
    with pytest.raises(FolderError, match=f"^{re.escape(message)}$"):
        recorded.write(tmp_path / "out")
    assert recorded.write(tmp_path / "out", force=True) == names
    (tmp_path / "out" / "letter").touch()
    with pytest.raises(FolderError, match=r"holds letter; move that away, or name another$"):
        recorded.write(tmp_path / "out", force=True)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ("--report", "held"),
            "the folder {here}/held must be new or empty, but holds letter; "
            "name another, or add --force to replace an earlier run",
        ),
        (
            ("--report", "held", "--force"),
            "the folder {here}/held must hold a model.json to be replaced, but holds letter; "
            "name another",
        ),
        (
            ("--report", "held/letter"),
            "the folder {here}/held/letter must be one that can be written, but: "
            "Not a directory; name another",
        ),
        (("--report", "."), "the folder {here} must not be the current one; name one below it"),
        (
            ("--report", "out", "--trace", "out/trace"),
            "--trace must name a folder outside that of --report, not {here}/out/trace; "
            "name another",
        ),
    ],
    ids=["held", "foreign", "file", "here", "one in the other"],
)
def test_a_folder_is_refused_before_the_script_runs(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    words: tuple[str, ...],
    message: str,
) -> None:
    (tmp_path / "held").mkdir()
    (tmp_path / "held" / "letter").touch()
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit, match=r"^1$"):
        main([*words, "-c", "print('ran')"])
    told = f"npusim: npusim.torch: {message.format(here=tmp_path)}\n"
    assert capsys.readouterr() == ("", told)
    assert [path.name for path in tmp_path.rglob("*")] == ["held", "letter"]


def test_events_hold_nothing_of_a_recording() -> None:
    """A recording keeps no run: outputs of a long script would fill the memory."""
    with npusim.torch.record() as recorded:
        torch.ones(4, 4).half().npu() + 1
    assert not any(isinstance(value, Event) for value in vars(recorded).values())
    assert [launch.kernel.op for launch in recorded.run.launches] == ["add"]
