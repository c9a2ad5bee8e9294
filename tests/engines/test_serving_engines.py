"""Engines: what ships, what a file of one's own may say, and what is refused."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from npusim import engines
from npusim.devices.problems import ends
from npusim.engines.schema import Engine
from npusim.engines.words import WORDS
from npusim.models.step import KNOWN

SHIPPED = ("eager", "mindie", "vllm-ascend", "vllm-ascend-full", "xlite")
OWN = """\
extends = "vllm-ascend-full"
name = "mine"

[decode]
layer_us = { value = 30, source = "our host", confidence = "measured" }
"""


def own(folder: Path, text: str = OWN) -> Engine:
    path = folder / "mine.toml"
    path.write_text(text)
    return engines.load(path)


def test_engines_ship_and_are_found_by_name() -> None:
    assert engines.names() == SHIPPED
    assert [engines.load(name).name for name in SHIPPED] == list(SHIPPED)
    assert engines.load("vLLM Ascend") is engines.load("vllm-ascend")
    assert engines.load(engines.load("xlite")) is engines.load("xlite")


@pytest.mark.parametrize("name", SHIPPED)
def test_every_number_and_list_has_a_source(name: str) -> None:
    engine = engines.load(name)
    stated = {".".join(key) for key, _ in ends(engine.model_dump(exclude={"name", "sources"}))}

    # A table without entries has no source either.
    assert {key for key in stated if key not in engine.sources} == set()
    assert all(source.text.strip() for source in engine.sources.values())


def test_every_word_launches_something() -> None:
    assert set(KNOWN) == set(WORDS)


def test_an_engine_extends_a_shipped_one(tmp_path: Path) -> None:
    engine, base = own(tmp_path), engines.load("vllm-ascend-full")

    assert (engine.name, engine.decode.layer_us) == ("mine", 30)
    assert engine.sources["decode.layer_us"].text == "our host"
    assert engine.kernels == base.kernels
    assert engine.decode.gap_us == base.decode.gap_us


def test_an_engine_extends_a_file_next_to_it(tmp_path: Path) -> None:
    own(tmp_path)
    path = tmp_path / "other.toml"
    path.write_text('extends = "./mine.toml"\nname = "other"\n')

    assert engines.load(path).decode.layer_us == 30


LEAF = '{ value = 1, source = "s", confidence = "measured" }'
WRONG = {
    f"[decode]\nlaunches_us = {LEAF}": "decode.launches_us: must be one of singly, launch_us, "
    "layer_us, is_awaited, gap_us, graph_tokens, not launches_us; did you mean launch_us?",
    "[decode]\nlaunch_us = 3": "decode.launch_us: must have value, source and confidence, not 3 "
    'alone; write { value = ..., source = "...", confidence = "..." }',
    '[kernels]\nbefore = ["embedding"]': "kernels.before: must have value, source and confidence, "
    'not a list alone; write { value = ..., source = "...", confidence = "..." }',
    '[decode]\nlaunch_us = { value = 3, source = "s", confidence = "sure" }': "decode.launch_us: "
    "confidence must be one of vendor file, vendor doc, vendor tool, measured, paper, calibrated, "
    "inferred, assumed, not 'sure'; take the word that fits the source",
    '[kernels]\nbefore = { value = ["embeding"], source = "s", confidence = "inferred" }': (
        "kernels.before.0: must be words that are known, not embeding; see docs/models.md"
    ),
    f"[decode]\nlaunch_us = {LEAF.replace('1', '-1', 1)}": "decode.launch_us: must lie in "
    "[0, 1e7] us (hosts take up to 0.2 s a request), not -1; give a number in this range, in us",
    f"[kernels.mlp]\nw2a2 = {LEAF.replace('1', '[]', 1)}": "kernels.mlp.w2a2: must be 'float', "
    "'w8a8', 'w8a8-static' or 'w4a16', not 'w2a2'; take one of these",
}


@pytest.mark.parametrize("text", WRONG)
def test_what_a_file_must_not_say_is_refused_by_name(tmp_path: Path, text: str) -> None:
    message = re.escape(f"engines: mine.toml: {WRONG[text]}")
    with pytest.raises(engines.EngineError, match=f"^{message}$"):
        own(tmp_path, f'extends = "eager"\nname = "mine"\n{text}\n')


def test_an_unknown_engine_is_refused_with_those_that_there_are() -> None:
    known = ", ".join(SHIPPED)
    more = "for your own file give its path, which ends in .toml"
    for name, hint in (("xlit", "did you mean xlite? "), ("sglang", "")):
        message = f"engines: no engine '{name}'; {hint}known: {known}; {more}"
        with pytest.raises(engines.EngineError, match=f"^{re.escape(message)}$"):
            engines.load(name)
    with pytest.raises(TypeError, match=r"^engines: an engine must be a name, .*, not 3; "):
        engines.load(3)  # type: ignore[arg-type]
