"""A step of decode and one of prefill of a model on cards, and the details of both."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from npusim import engines
from npusim.data.errors import shown
from npusim.data.integers import ceil_div
from npusim.devices.schema import DeviceSpec
from npusim.engines.schema import Engine, Phase
from npusim.models import experts, latent, words
from npusim.models.chain import Chain, Launched, Rank, Word
from npusim.models.memory import Memory, memory_of
from npusim.models.shapes import Heads, Latent, Shapes
from npusim.models.timing import Part, Parts, Section, parts_of

__all__ = ["QUANTS", "Asked", "ModelError", "Phased", "Step", "step_of"]

QUANTS = ("float", "w8a8", "w8a8-static", "w4a16")
KNOWN: dict[str, Word] = {**words.WORDS, **latent.WORDS, **experts.WORDS}
"""Word of an engine's file -> the function that launches its kernels."""


class ModelError(ValueError):
    """A model cannot be run as requested."""


@dataclass(frozen=True, slots=True)
class Asked:
    """A model, the cards and engine it runs on, and its load."""

    shapes: Shapes
    device: DeviceSpec
    engine: Engine
    tp: int
    ep: int
    dp: int
    batch: int
    """Requests that are decoded together, over all cards."""
    context: int
    """Tokens of each of them, including the new one."""
    prompt: int
    """Tokens of a request that is prefilled alone."""
    quant: str

    @property
    def cards(self) -> int:
        """The total number of cards."""
        return self.tp * self.dp

    def __post_init__(self) -> None:
        for name in ("tp", "ep", "dp", "batch", "context", "prompt"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise ModelError(f"models: {name} must be 1 or more, not {shown(value)}")
        if self.quant not in QUANTS:
            raise ModelError(
                f"models: quant must be one of {', '.join(QUANTS)}, not {shown(self.quant)}"
            )
        shapes, heads = self.shapes, self.shapes.attention
        is_plain = isinstance(heads, Heads) and shapes.experts is None
        if self.device.series == "Atlas inference" and not is_plain:
            raise ModelError(
                f"models: {shapes.architecture} must run on Atlas A2 or A3, not on "
                f"{self.device.name}, which has no kernels here for experts and latent attention; "
                f"take another device"
            )
        for name, value in (("context", self.context), ("prompt", self.prompt)):
            if value > shapes.longest:
                raise ModelError(
                    f"models: {name} must be at most max_position_embeddings = {shapes.longest} "
                    f"tokens, not {value}; ask for less"
                )
        if heads.count % self.tp:
            raise ModelError(
                f"models: tp must divide the {heads.count} heads, not be {self.tp}; "
                f"take another number of cards"
            )
        if isinstance(heads, Heads) and max(heads.kv_count, self.tp) % min(heads.kv_count, self.tp):
            raise ModelError(
                f"models: tp must divide the {heads.kv_count} heads of keys, or be a multiple of "
                f"them, not {self.tp}; take another number of cards"
            )
        if self.ep not in (1, self.cards) or (self.ep > 1 and shapes.experts is None):
            experts_of = "a model without experts" if shapes.experts is None else "1 or tp x dp"
            raise ModelError(
                f"models: ep must be {'1 for ' if shapes.experts is None else ''}{experts_of}"
                f"{'' if shapes.experts is None else f' = {self.cards}'}, not {self.ep}; "
                f"vLLM shares experts among all cards or none"
            )


@dataclass(frozen=True, slots=True)
class Total:
    """The totals of the kernels of one word."""

    op: str
    launches: int
    time_us: float


@dataclass(frozen=True, slots=True)
class Phased:
    """A step of decode, or of prefill."""

    parts: Parts
    sections: tuple[Section, ...]
    tokens: int
    """Tokens that the step generates or reads."""

    def __repr__(self) -> str:
        launches = f"{self.parts.launches} launches"
        return f"<{self.time_us / 1e3:.2f} ms for {self.tokens} tokens, {launches}>"

    @property
    def time_us(self) -> float:
        """The time of the whole step."""
        return self.parts.time_us

    @property
    def tokens_per_s(self) -> float:
        """Tokens that are generated or read per second."""
        return 1e6 * self.tokens / self.time_us

    def by_word(self) -> dict[str, Total]:
        """Word of the engine's file -> totals of its kernels, the longest first."""
        found: dict[str, Total] = {}
        for section in self.sections:
            for each in section.launched:
                old = found.get(each.word, Total(each.name, 0, 0.0))
                times = section.times
                time_us = old.time_us + times * each.time_us
                found[each.word] = Total(old.op, old.launches + times, time_us)
        return dict(sorted(found.items(), key=lambda item: (-item[1].time_us, item[0])))

    def stand_ins(self) -> list[str]:
        """Kernels of the card for which npusim times others."""
        every = (each for section in self.sections for each in section.launched)
        return list(dict.fromkeys(each.stands_for for each in every if each.stands_for))

    def to_json(self, key: str) -> dict[str, object]:
        """The same as plain numbers, with the time at *key*."""
        whole = self.time_us
        return {
            key: whole / 1e3,
            "off_ms": self.parts.off_us / 1e3,
            "tokens_per_s": self.tokens_per_s,
            "parts": {name: _part_json(part, whole) for name, part in self.parts.named().items()},
            "launches": self.parts.launches,
            "kernels": [
                {"word": word, "op": own.op, "launches": own.launches, "ms": own.time_us / 1e3}
                for word, own in self.by_word().items()
            ],
            "stand_ins": self.stand_ins(),
        }


def _part_json(part: Part, whole_us: float) -> dict[str, float]:
    return {
        "ms": part.time_us / 1e3,
        "off_ms": part.off_us / 1e3,
        "share": part.time_us / whole_us,
    }


@dataclass(frozen=True, slots=True)
class Step:
    """The times and the memory of a model, for the parameters in *asked*."""

    asked: Asked
    decode: Phased
    prefill: Phased
    memory: Memory

    def __repr__(self) -> str:
        own = self.asked
        head = f"{own.shapes.architecture}, {own.quant}, on {own.cards} x {own.device.name}"
        lines = [f"step of {head}, {own.engine.name}"]
        for name, phase in (("TPOT", self.decode), ("TTFT", self.prefill)):
            shares = (f"{part} {each.time_us / phase.time_us:.0%}"
                      for part, each in phase.parts.named().items())  # fmt: skip
            time = f"{phase.time_us / 1e3:.2f} ms ± {phase.parts.off_us / 1e3:.2f}"
            rate = f"{phase.tokens_per_s:,.0f} tokens a second"
            lines.append(f"  {name} {time}, {rate}: {', '.join(shares)}")
        return "\n".join([*lines, f"  memory: {self.memory}"])

    @property
    def tpot_us(self) -> float:
        """Time per output token (TPOT): a step of decode."""
        return self.decode.time_us

    @property
    def ttft_us(self) -> float:
        """Time to first token (TTFT) of a prompt that is prefilled alone."""
        return self.prefill.time_us

    def served_us(self, new: int) -> float:
        """Time per output token if each request is a prompt and *new* tokens.

        All cards stop decoding while a prompt is prefilled.
        """
        if isinstance(new, bool) or not isinstance(new, int) or new < 1:
            raise ModelError(f"models: new must be 1 token or more, not {shown(new)}")
        read_us = self.ttft_us - self.asked.engine.host.request_us
        return self.tpot_us + self.asked.batch / self.asked.dp * read_us / new

    def to_json(self) -> dict[str, object]:
        """Everything as plain numbers and strings."""
        own = self.asked
        return {
            "architecture": own.shapes.architecture,
            "device": own.device.name,
            "engine": own.engine.name,
            "quant": own.quant,
            "cards": own.cards,
            "tp": own.tp,
            "ep": own.ep,
            "dp": own.dp,
            "batch": own.batch,
            "context": own.context,
            "prompt": own.prompt,
            "decode": self.decode.to_json("tpot_ms"),
            "prefill": self.prefill.to_json("ttft_ms"),
            "memory": self.memory.to_json(),
        }


def step_of(asked: Asked) -> Step:
    """Time a step of decode and one of prefill."""
    requests, spec = ceil_div(asked.batch, asked.dp), asked.device
    memory = memory_of(
        *(asked.shapes, asked.quant, asked.tp, asked.ep, requests),
        *(asked.context, spec.gm.capacity_bytes),
    )
    decode = _phased(asked, "decode", _rank(asked, requests, 1, asked.context), asked.batch)
    prefill = _phased(asked, "prefill", _rank(asked, 1, asked.prompt, asked.prompt), asked.prompt)
    return Step(asked, decode, prefill, memory)


def _rank(asked: Asked, requests: int, new: int, context: int) -> Rank:
    is_310p = asked.device.series == "Atlas inference"
    weights = asked.engine.weights
    return Rank(
        asked.shapes,
        asked.device,
        asked.quant,
        asked.tp,
        asked.ep,
        asked.dp,
        requests,
        new,
        context,
        # 310P stores all weights in FRACTAL_NZ (vllm-ascend, utils.py).
        has_nz_weights=weights.float_layout == "NZ" or is_310p,
        has_nz_head=weights.lm_head_layout == "NZ",
        tokens=requests * new,
    )


def _phased(asked: Asked, name: str, rank: Rank, tokens: int) -> Phased:
    engine = asked.engine
    phase: Phase = engine.decode if name == "decode" else engine.prefill
    graphs = [size for size in phase.graph_tokens if size >= rank.tokens]
    is_in_graph = bool(graphs) or not phase.graph_tokens
    if graphs:
        rank = replace(rank, tokens=min(graphs))
    sections = tuple(_sections(asked, rank, name))
    rest = {"host.before_us": engine.host.before_us}
    if name == "prefill":
        rest["host.request_us"] = engine.host.request_us
    layers = asked.shapes.layers
    parts = parts_of(sections, engine, phase, name, layers, is_in_graph, rest)
    return Phased(parts, sections, tokens)


def _sections(asked: Asked, rank: Rank, phase: str) -> Iterator[Section]:
    shapes, kernels = asked.shapes, asked.engine.kernels
    yield _section("before", kernels.before, 1, rank)
    name = "attention"
    if isinstance(shapes.attention, Latent):
        name = "latent" if phase == "decode" else "latent_prefill"
    for times, own in _windows(shapes, rank):
        yield _section("attention", _words(asked, name), times, own)
    if shapes.dense_layers:
        yield _section("mlp", _words(asked, "mlp"), shapes.dense_layers, rank)
    if shapes.experts is not None:
        method = _method(asked, rank)
        section = _section("experts", _words(asked, method), shapes.experts.layers, rank)
        yield _beside(section) if asked.engine.streams.shared_experts else section
    yield _section("after", kernels.after, 1, rank)


def _windows(shapes: Shapes, rank: Rank) -> Iterator[tuple[int, Rank]]:
    """The number of layers for each length of attention."""
    own = shapes.attention
    short = round(own.window_share * shapes.layers) if isinstance(own, Heads) else 0
    window = own.window if isinstance(own, Heads) else None
    if short and window is not None and window < rank.context and rank.new == 1:
        yield short, replace(rank, context=window)
        if short < shapes.layers:
            yield shapes.layers - short, rank
    else:
        yield shapes.layers, rank


def _method(asked: Asked, rank: Rank) -> str:
    """The way in which tokens are sent to their experts."""
    experts_of = asked.shapes.experts
    assert experts_of is not None
    series = asked.device.series.removeprefix("Atlas ")
    rules = asked.engine.dispatch.items()
    rule = next((each for name, each in rules if name == series), None)
    if asked.ep == 1 or rule is None or asked.ep < rule.least_cards:
        return "experts"
    if experts_of.count / asked.ep > rule.most_local_experts:
        return "experts"
    if rank.tokens <= rule.most_tokens:
        return "dispatch"
    return "exchange" if series == "A3" and asked.engine.kernels.exchange else "experts"


def _words(asked: Asked, section: str) -> tuple[str, ...]:
    lists = getattr(asked.engine.kernels, section)
    if asked.quant not in lists:
        known = ", ".join(lists) or "none"
        what = {
            "latent": "latent attention in decode",
            "latent_prefill": "latent attention in prefill",
            "experts": "experts",
            "dispatch": "experts on other cards",
            "exchange": "experts on other cards",
            "mlp": "dense layers",
        }.get(section, "attention")
        other = f"another quant{_engines_with(asked, section)}"
        raise ModelError(
            f"models: {asked.engine.name} must have kernels of {what} for the weights, but has "
            f"them for {known}, not {asked.quant}; take {other}, or give it "
            f"kernels.{section}.{asked.quant} in a file that extends it"
        )
    found: tuple[str, ...] = lists[asked.quant]
    return found


def _engines_with(asked: Asked, section: str) -> str:
    """The shipped engines that have kernels of *section* for the weights, as alternatives."""
    found = [
        name
        for name in engines.names()
        if asked.quant in getattr(engines.load(name).kernels, section)
    ]
    return f" or the engine {' or '.join(found)}" if found else ""


def _section(name: str, listed: tuple[str, ...], times: int, rank: Rank) -> Section:
    chain = Chain(rank)
    chain["rows"] = chain.spec(rank.tokens, rank.shapes.hidden)
    chain["residual"] = chain.spec(rank.tokens, rank.shapes.hidden)
    for word in listed:
        chain.word = word
        KNOWN[word](chain)
    return Section(name, times, tuple(chain.launched))


def _beside(section: Section) -> Section:
    """The shared expert overlaps with the others, as far as these take longer."""
    shared = [each for each in section.launched if each.word.startswith("shared_")]
    others = [each for each in section.launched if not each.word.startswith("shared_")]
    left_us = max(0.0, _total(shared) - _total(others))
    share = left_us / _total(shared) if shared else 0.0
    return replace(
        section,
        launched=tuple(
            replace(each, time_us=share * each.time_us) if each in shared else each
            for each in section.launched
        ),
    )


def _total(launched: list[Launched]) -> float:
    return sum(each.time_us for each in launched)
