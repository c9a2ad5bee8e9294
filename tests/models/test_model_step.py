"""Steps of models: what they are made of, and what moves each part."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest
from configs import FAMILIES, config

from npusim import engines
from npusim.engines.schema import Engine
from npusim.models import ModelError, Step, load

A2, A3, INFERENCE = "Atlas A2", "Atlas A3", "Atlas 300I Pro"
SMALL = {"batch": 2, "context": 256, "prompt": 64}


def step(architecture: str = "Qwen3ForCausalLM", device: str = A2, **asked: Any) -> Step:
    return load(config(architecture)).step(device=device, **(SMALL | asked))


def changed(name: str, table: str, **numbers: Any) -> Engine:
    """A shipped engine with other *numbers* in one *table*."""
    engine = engines.load(name)
    part = getattr(engine, table).model_copy(update=numbers)
    return engine.model_copy(update={table: part})


def per_layer(found: Step, phase: str = "decode") -> dict[str, int]:
    """Section -> kernels of one layer, collectives apart."""
    sections = getattr(found, phase).sections
    return {
        each.name: sum(one.run is not None for one in each.launched)
        for each in sections
        if each.is_of_layer
    }


# ---- every family, every engine ----


@pytest.mark.parametrize("name", FAMILIES)
def test_every_family_has_a_step(name: str) -> None:
    for quant in ("float", "w8a8"):
        found = step(name, quant=quant)
        for phase in (found.decode, found.prefill):
            parts = phase.parts.named()
            assert phase.time_us == pytest.approx(sum(part.time_us for part in parts.values()))
            assert parts["kernels"].time_us > 0
            assert 0 < phase.parts.off_us < phase.time_us
            assert parts["communication"].time_us == 0


COUNTS = {
    ("eager", "float"): 16,
    ("eager", "w8a8"): 20,
    ("eager", "w8a8-static"): 20,
    ("vllm-ascend", "float"): 11,
    ("vllm-ascend", "w8a8"): 13,
    ("vllm-ascend-full", "float"): 10,
    ("vllm-ascend-full", "w8a8"): 12,
    ("xlite", "float"): 10,
    ("xlite", "w8a8"): 14,
    ("mindie", "float"): 15,
    ("mindie", "w8a8"): 18,
    ("mindie", "w8a8-static"): 16,
    ("mindie", "w4a16"): 15,
}
"""Kernels of a dense layer of Qwen3, as read in the engines' sources."""


@pytest.mark.parametrize(("engine", "quant"), COUNTS)
def test_an_engine_launches_as_many_kernels_a_layer_as_its_source_says(
    engine: str, quant: str
) -> None:
    found = step(engine=engine, quant=quant)
    assert sum(per_layer(found).values()) == COUNTS[engine, quant]


def test_layers_of_experts_have_the_kernels_of_their_source() -> None:
    qwen = {quant: step("Qwen3MoeForCausalLM", quant=quant, engine="vllm-ascend-full")
            for quant in ("float", "w8a8")}  # fmt: skip
    assert sum(per_layer(qwen["float"]).values()) == 18
    assert sum(per_layer(qwen["w8a8"]).values()) == 19


def test_collectives_are_counted_apart() -> None:
    alone, both = step(engine="vllm-ascend-full"), step(engine="vllm-ascend-full", tp=2)
    more = both.decode.parts.launches - alone.decode.parts.launches

    # Two a layer, one of each end, and the kernels of the mask of ids and of logits in one piece.
    assert more == 2 * 3 + 2 + 8 + 1
    assert both.decode.parts.communication.time_us > 0
    assert both.decode.parts.kernels.time_us < alone.decode.parts.kernels.time_us


# ---- what moves each part ----


def test_gaps_follow_what_a_launch_costs() -> None:
    gaps = [
        step(engine=changed("eager", "decode", launch_us=us)).decode.parts.gaps.time_us
        for us in (100.0, 200.0)
    ]
    launches = step(engine="eager").decode.parts.launches
    assert gaps[1] - gaps[0] == pytest.approx(100 * launches)


def test_gaps_of_full_graphs_follow_the_slower_of_card_and_host() -> None:
    fast = step(engine=changed("vllm-ascend-full", "decode", layer_us=0.0)).decode.parts
    slow = step(engine=changed("vllm-ascend-full", "decode", layer_us=5000.0)).decode.parts

    assert fast.gaps.time_us == pytest.approx(fast.launches * 1.0)
    assert slow.gaps.time_us == pytest.approx(3 * 5000 - slow.kernels.time_us)


def test_a_host_that_is_awaited_adds_its_time() -> None:
    numbers = {"layer_us": 300.0, "launch_us": 50.0}
    beside = step(engine=changed("vllm-ascend", "decode", **numbers)).decode
    awaited = step(engine=changed("vllm-ascend", "decode", **numbers, is_awaited=True)).decode

    host_us = 3 * (300 + 3 * 50)
    card_us = beside.parts.kernels.time_us + beside.parts.launches * 1.0
    assert beside.parts.gaps.time_us == pytest.approx(
        max(card_us, host_us) - beside.parts.kernels.time_us
    )
    assert awaited.time_us == pytest.approx(card_us + host_us + 2800)


def test_gaps_between_launched_kernels_count_each() -> None:
    wide = changed("xlite", "decode", gap_us=4.0)
    found, usual = step(engine=wide, batch=64).decode.parts, step(engine="xlite", batch=64)
    assert found.gaps.time_us - usual.decode.parts.gaps.time_us == pytest.approx(
        3.0 * found.launches
    )


def test_the_rest_is_what_the_host_takes_before() -> None:
    own = changed("xlite", "host", before_us=500.0, request_us=7000.0)
    found = step(engine=own)

    assert found.decode.parts.rest.time_us == 500
    assert found.prefill.parts.rest.time_us == 7500


def test_error_bars_come_from_what_is_known_of_each_number() -> None:
    engine = engines.load("xlite")
    sure = {key: one._replace(confidence="vendor file") for key, one in engine.sources.items()}
    found = step(engine=engine.model_copy(update={"sources": sure})).decode.parts

    assert (found.gaps.off_us, found.rest.off_us) == (0, 0)
    assert step(engine="xlite").decode.parts.rest.off_us == pytest.approx(0.3 * 85)


# ---- loads ----


def test_a_step_is_padded_to_the_next_graph() -> None:
    def kernels(batch: int, engine: str) -> float:
        found = step(engine=engine, batch=batch).decode
        own = {word: total.time_us for word, total in found.by_word().items()}
        return own["gate_up"] + own["swiglu"]

    assert kernels(5, "vllm-ascend-full") == kernels(8, "vllm-ascend-full")
    assert kernels(5, "eager") < kernels(8, "eager")


def test_a_prompt_beyond_the_largest_graph_is_launched_kernel_by_kernel() -> None:
    engine = changed("vllm-ascend", "prefill", launch_us=10_000.0, layer_us=0.0)
    inside, beyond = (step(engine=engine, prompt=prompt).prefill for prompt in (512, 513))

    assert inside.time_us < 10_000 * inside.parts.launches < beyond.time_us


def test_layers_with_a_window_look_back_no_further() -> None:
    times = {}
    for window in (256, None):
        model = load(config("MistralForCausalLM", sliding_window=window))
        found = model.step(device=A2, **(SMALL | {"context": 8192, "batch": 16}))
        times[window] = found.decode.by_word()["attention"].time_us
    assert times[256] < times[None] / 4


def test_experts_that_nobody_chose_are_not_read() -> None:
    def experts(batch: int) -> float:
        found = load(config("Qwen3MoeForCausalLM", num_experts=128)).step(
            device=A2, **(SMALL | {"batch": batch})
        )
        return found.decode.by_word()["experts_up"].time_us

    assert experts(1) < experts(64) / 3


def test_the_expert_of_all_tokens_hides_behind_the_others_on_its_own_stream() -> None:
    name, beside = "DeepseekV3ForCausalLM", changed("mindie", "streams", shared_experts=True)
    usual, found = (step(name, quant="w8a8", engine=engine) for engine in ("mindie", beside))

    hidden = [word for word in usual.decode.by_word() if word.startswith("shared_")]
    hidden_us = sum(usual.decode.by_word()[word].time_us for word in hidden)
    assert usual.decode.parts.kernels.time_us - found.decode.parts.kernels.time_us == (
        pytest.approx(hidden_us)
    )


@pytest.mark.parametrize(
    ("device", "batch", "method"), [(A3, 16, "dispatch"), (A2, 16, "all_reduce")]
)
def test_tokens_find_their_experts_as_the_series_has_it(
    device: str, batch: int, method: str
) -> None:
    found = step("Qwen3MoeForCausalLM", device, tp=2, dp=2, ep=4, batch=batch)
    words = found.decode.by_word()

    assert method in words
    assert ("dispatch" in words) == (device == A3)


def test_inference_cards_run_what_fused_kernels_do_in_parts() -> None:
    found = step(device=INFERENCE, quant="w8a8", engine="vllm-ascend-full")

    assert found.asked.quant == "w8a8-static"
    names = {each.name for section in found.decode.sections for each in section.launched}
    assert {"npu_add_rms_norm", "npu_quantize", "narrow"} < names
    assert "npu_add_rms_norm_quant" not in names


def test_a_service_reads_prompts_between_its_steps() -> None:
    found = step()
    read_us = found.ttft_us - found.asked.engine.host.request_us

    assert found.served_us(64) == pytest.approx(found.tpot_us + 2 * read_us / 64)
    with pytest.raises(ModelError, match=r"^models: new must be 1 token or more, not 0$"):
        found.served_us(0)


# ---- memory ----


def test_memory_is_shared_by_the_cards_of_a_layer() -> None:
    one, two = step().memory, step(tp=2).memory

    assert one.weights_bytes == 2 * two.weights_bytes
    # Two requests of two pages, three layers, four heads of keys and of values.
    assert one.cache_bytes == 2 * two.cache_bytes == 2 * 2 * 256 * 3 * 4 * 2 * 128
    assert step(quant="w8a8").memory.weights_bytes < one.weights_bytes


def test_latent_rows_are_on_every_card() -> None:
    own = [step("DeepseekV3ForCausalLM", tp=tp).memory for tp in (1, 2)]
    assert own[0].cache_bytes == own[1].cache_bytes == 2 * 2 * 256 * 3 * (512 + 64)


def test_what_does_not_fit_is_said() -> None:
    small = replace(step().memory, weights_bytes=3_000_000_000, capacity_bytes=2_000_000_000)

    assert not small.fits
    assert str(small) == (
        "3 GB of weights and 3.15 MB of caches on each card, of 2 GB: the weights alone do not "
        "fit; take 2 times as many cards, or less of them"
    )


# ---- refusals ----

WRONG: dict[str, tuple[str, dict[str, Any], str]] = {
    "no batch": ("Qwen3ForCausalLM", {"batch": 0}, "batch must be 1 or more, not 0"),
    "no number": ("Qwen3ForCausalLM", {"tp": "2"}, "tp must be 1 or more, not '2'"),
    "weights": (
        "Qwen3ForCausalLM",
        {"quant": "fp8"},
        "quant must be one of float, w8a8, w8a8-static, w4a16, not 'fp8'",
    ),
    "cards": (
        "Qwen3ForCausalLM",
        {"tp": 3},
        "tp must divide the 8 heads, not be 3; take another number of cards",
    ),
    "tokens": (
        "Qwen3ForCausalLM",
        {"context": 9000},
        "context must be at most max_position_embeddings = 8192 tokens, not 9000; ask for less",
    ),
    "experts of a dense model": (
        "Qwen3ForCausalLM",
        {"ep": 2},
        "ep must be 1 for a model without experts, not 2; vLLM shares experts among all cards or "
        "none",
    ),
    "experts of some cards": (
        "Qwen3MoeForCausalLM",
        {"ep": 2, "tp": 4},
        "ep must be 1 or tp x dp = 4, not 2; vLLM shares experts among all cards or none",
    ),
    "experts on a card without": (
        "MixtralForCausalLM",
        {"device": INFERENCE},
        "MixtralForCausalLM must run on Atlas A2 or A3, not on ascend310p3, which has no kernels "
        "here for experts and latent attention; take another device",
    ),
    "kernels that an engine has not": (
        "Qwen3ForCausalLM",
        {"quant": "w4a16"},
        "vllm-ascend must have kernels of attention for the weights, but has them for float, w8a8, "
        "w8a8-static, not w4a16; take another quant or the engine mindie, or give it "
        "kernels.attention.w4a16 in a file that extends it",
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_cannot_be_asked_is_refused(case: str) -> None:
    name, asked, message = WRONG[case]
    with pytest.raises(ModelError, match=f"^{re.escape(f'models: {message}')}$"):
        step(name, **asked)


def test_a_kernel_that_lacks_what_it_works_on_is_refused() -> None:
    engine = engines.load("eager")
    mlp = {**engine.kernels.mlp, "float": ("shared_quant", "experts_up_swiglu_quant")}
    kernels = engine.kernels.model_copy(update={"mlp": mlp, "attention": {"float": ("q_norm",)}})
    message = (
        "engines: q_norm must come after a kernel that leaves q, but none has; put one before it"
    )
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        step(engine=engine.model_copy(update={"kernels": kernels}))
