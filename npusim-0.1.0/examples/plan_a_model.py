"""Which card, and which weights, for a model: tokens a second of a 7B and of a 32B model.

A decode step and the prefill of a prompt, layer by layer of `decoder_layer.py`, with weights of
bf16 (fp16 on Atlas inference), int8 (W8A8) and int4 (W4A16), by shapes alone: a table, and a
picture of what the time goes into.

    python examples/plan_a_model.py [--batch N] [--context N] [--prompt N] [--device NAME] [-o DIR]

What is outside: communication between cards, the host and the gaps between kernels, choosing the
next token, and biases. One card holds the whole model here. Where its weights and caches do not
fit, the table says how many cards they need at least, and the times are those of a card with more
memory. Atlas inference has separate kernels for attention, which are not simulated: in their
place stand two products with a softmax between them. Of Atlas A3 it is one die of two.
"""

import argparse
from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import ceil
from pathlib import Path
from typing import Any

from decoder_layer import (
    EPSILON,
    GROUP,
    QWEN_7B,
    REALS,
    WORK,
    Kernel,
    Layer,
    Size,
    described,
    total_us,
)
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

import npusim
from npusim.devices import DeviceError
from npusim.reports import style

DEVICES = ("Atlas A2", "Atlas A3", "Atlas 300I Pro")
GIB = 1 << 30
KNOWN: dict[str, tuple[Kernel, Any]] = {}
"""A call -> its kernel and outputs."""


@dataclass(frozen=True)
class Model:
    """A decoder: its layers, and what stands before and behind them."""

    name: str
    layer: Size
    layers: int
    words: int
    has_head_norms: bool
    """Whether queries and keys of each head are divided by their root mean square."""
    longest: int
    """Tokens of a request."""

    def weight_bytes(self, kind: str) -> int:
        """Of all layers in that *kind*; the tables of words stay in two bytes a number."""
        numbers = sum(rows * columns for rows, columns in self.layer.products.values())
        columns = sum(columns for _, columns in self.layer.products.values())
        layer = {"W8A8": numbers + 4 * columns, "W4A16": numbers // 2 + 2 * numbers // GROUP}
        return self.layers * layer.get(kind, 2 * numbers) + 4 * self.words * self.layer.hidden

    def cache_bytes(self, requests: int, context: int) -> int:
        """Keys and values of all layers, two bytes a number, in whole pages."""
        pages = replace(self.layer, context=context).pages * self.layer.page
        return 2 * 2 * self.layers * requests * pages * self.layer.widths[1]


QWEN3_32B = Size(5120, heads=64, kv_heads=8, intermediate=25600, tokens=16, context=1024)
MODELS = (
    Model("Qwen2.5-7B", QWEN_7B, layers=28, words=152064, has_head_norms=False, longest=32768),
    Model("Qwen3-32B", QWEN3_32B, layers=64, words=151936, has_head_norms=True, longest=40960),
)
"""As their config.json says, each with two tables of words."""


class Step(Layer):
    """A layer of a step of *model*, by shapes alone."""

    model: Model

    def kernel(self, work: str, op: str, *args: Any, **options: Any) -> Any:
        """Weights of another kind change products alone: what was timed before is known."""
        call = repr((self.device, op, args, options))
        if call not in KNOWN:
            outputs = super().kernel(work, op, *args, **options)
            KNOWN[call] = self.kernels.pop(), outputs
        kernel, outputs = KNOWN[call]
        self.kernels.append(kernel)
        return outputs

    def heads(self, name: str, part: Any) -> Any:
        if name == "values" or not self.model.has_head_norms:
            return part
        weight = npusim.TensorSpec((self.size.head,), self.real)
        return self.kernel("norms", "npu_rms_norm", part, weight, EPSILON, fresh="x")[0]

    def attention(self, query: Any, keys: Any, values: Any) -> Any:
        """On Atlas inference as products and a softmax, with each request's caches in one piece."""
        if not self.is_inference:
            return super().attention(query, keys, values)
        size, spec = self.size, npusim.TensorSpec
        groups, rows = size.requests * size.kv_heads, size.heads // size.kv_heads * size.new
        left = spec((groups, rows, size.head), self.real)
        right = spec((groups, size.head, size.context), self.real, transposed=True)
        scores = self.kernel("attention", "matmul", left, right, fresh="x1")
        scores = self.kernel("attention", "mul", scores, size.head**-0.5, fresh="x")
        if size.new > 1:
            shape = groups, rows // size.new, size.new, size.context
            later = spec((1, 1, size.new, size.context), self.real)
            scores = spec(shape, self.real)
            scores = self.kernel("attention", "add", scores, later, fresh="x")
            scores = spec((groups, rows, size.context), self.real)
        scores = self.kernel("attention", "softmax", scores, -1, fresh="x")
        right = spec((groups, size.context, size.head), self.real)
        self.kernel("attention", "matmul", scores, right, fresh="x1")
        return query

    def ends(self) -> list[Kernel]:
        """The kernels before the first layer and behind the last one, where the last token of each
        request goes on."""
        size, spec, count = self.size, npusim.TensorSpec, len(self.kernels)
        words = spec((self.model.words, size.hidden), self.real)
        self.kernel("copies", "embedding", words, spec((size.tokens,), "int64"))
        last = spec((size.requests, size.hidden), self.real)
        norm = spec((size.hidden,), self.real)
        last = self.kernel("norms", "npu_rms_norm", last, norm, EPSILON, fresh="x")[0]
        self.kernel("products", "matmul", last, words.T, fresh="x1")
        found = self.kernels[count:]
        del self.kernels[count:]
        return found


# ---- what is planned ----


@dataclass(frozen=True)
class Load:
    """What a card is asked for."""

    batch: int
    """Requests that are decoded together."""
    context: int
    """Tokens of each of them, the new one included."""
    prompt: int
    """Tokens of a request that is read alone."""

    def sizes(self, model: Model) -> dict[str, Size]:
        """Name of a step -> its layer."""
        decode = replace(model.layer, tokens=self.batch, context=self.context)
        prompt = {"tokens": self.prompt, "new": self.prompt, "context": self.prompt}
        return {"decode": decode, "prefill": replace(model.layer, **prompt)}


@dataclass(frozen=True)
class Plan:
    """A model with weights of one kind on a device: what each of its steps takes."""

    model: Model
    device: str
    kind: str
    load: Load
    works_us: dict[str, dict[str, float]]
    """Step -> kind of work -> time."""

    def per_s(self, step: str) -> float:
        """Tokens a second: those that are made, or those that are read."""
        tokens = self.load.sizes(self.model)[step].tokens
        return 1e6 * tokens / sum(self.works_us[step].values())

    def cards(self) -> int:
        """How many cards have the memory, at least."""
        capacity = npusim.devices.load(self.device).gm.capacity_bytes
        return ceil(sum(self.memory_bytes()) / capacity)

    def memory_bytes(self) -> tuple[int, int]:
        """Of the weights, and of the caches of all requests."""
        caches = self.model.cache_bytes(self.load.batch, self.load.context)
        return self.model.weight_bytes(self.kind), caches


def planned(model: Model, device: str, kind: str, load: Load) -> Plan:
    """Every kernel of a layer, as often as there are layers, and those of both ends.

    Raises OpError where the device has no kernel for weights of that kind.
    """
    works: dict[str, dict[str, float]] = {}
    for name, size in load.sizes(model).items():
        real = REALS["fp16" if is_inference(device) else "bf16"]
        step = Step(device, kind, size, described(size, real))
        step.model = model
        ends = step.ends()
        step.output()
        works[name] = {
            work: model.layers * total_us([each for each in step.kernels if each.work == work])
            + total_us([each for each in ends if each.work == work])
            for work in WORK
        }
    return Plan(model, device, kind, load, works)


def is_inference(device: str) -> bool:
    """Whether *device* has fp16 in place of bf16."""
    return npusim.devices.load(device).series == "Atlas inference"


def plans(load: Load, devices: list[str]) -> Iterator[Plan | str]:
    """All there are; in the place of one that a card has no kernel for, what it says to that."""
    for model in MODELS:
        for device in devices:
            for kind in ("fp16" if is_inference(device) else "bf16", "W8A8", "W4A16"):
                try:
                    yield planned(model, device, kind, load)
                except npusim.OpError as refusal:
                    yield f"{model.name}, {device}, {kind}: {refusal}"


# ---- what is printed ----


def table(found: list[Plan]) -> Iterator[str]:
    """A line for each plan."""
    row = "{:10} {:14} {:7} {:>9} {:>9} {:>10}  {:>12}   {}"
    yield row.format(
        *("model", "device", "weights", "decode", "products", "attention", "prefill"),
        "weights + caches, GiB",
    )
    for plan in found:
        works = plan.works_us["decode"]
        shares = (style.percent(works[work] / sum(works.values())) for work in FIRST_WORKS)
        weights, caches = (f"{each / GIB:.1f}" for each in plan.memory_bytes())
        fits = "" if plan.cards() == 1 else f", {plan.cards()} cards at least"
        line = row.format(
            *(plan.model.name, plan.device, plan.kind, f"{plan.per_s('decode'):,.0f} /s"),
            *(*shares, f"{plan.per_s('prefill'):,.0f} /s", f"{weights} + {caches}{fits}"),
        )
        yield line.rstrip()


FIRST_WORKS = ("products", "attention")
"""Those whose shares of a decode step are printed; the picture has all."""


def draw(found: list[Plan], folder: Path) -> Path:
    """A row for each model; for each step, tokens a second and what the time goes into."""
    models = list(dict.fromkeys(plan.model for plan in found))
    lines = len(found) // len(models)
    figure = Figure((14, 1.2 + len(models) * (0.9 + 0.3 * lines)), layout="constrained")
    figure.suptitle(f"{load_named(found[0].load)}:\n{finding(found)}", size=style.TITLE_POINTS)
    grid = figure.subplots(len(models), 4, width_ratios=(3, 4, 3, 4), squeeze=False)
    for model, axes in zip(models, grid, strict=True):
        plans = [plan for plan in found if plan.model is model]
        for step, (left, right) in (("decode", axes[:2]), ("prefill", axes[2:])):
            rates(left, plans, step)
            shares(right, plans, step)
        axes[0].set_yticks(range(len(plans)), [f"{plan.device}  {plan.kind}" for plan in plans])
        style.title(axes[0], model.name)
    seen = {work for plan in found for us in plan.works_us.values() for work in us if us[work]}
    marks = [Patch(color=WORK[work], label=work) for work in WORK if work in seen]
    marks.append(Patch(facecolor=RATE, hatch="///", edgecolor="white", label="more than one card"))
    figure.legend(
        handles=marks, loc="outside lower center", ncols=len(marks), frameon=False, handlelength=1
    )
    folder.mkdir(parents=True, exist_ok=True)
    figure.savefig(folder / "plan_a_model.png", dpi=100)
    return folder / "plan_a_model.png"


def finding(found: list[Plan]) -> str:
    """What int8 is good for, on the device that was named first."""
    per_s: dict[Model, dict[str, float]] = {}
    for plan in found:
        if plan.device == found[0].device:
            per_s.setdefault(plan.model, {})[plan.kind] = plan.per_s("decode")
    real = found[0].kind
    ratios = (f"{each['W8A8'] / each[real]:.2f} x ({model.name})" for model, each in per_s.items())
    return f"on {found[0].device}, W8A8 decodes {' and '.join(ratios)} as many tokens as {real}"


RATE = "#0072B2"
"""The colour of tokens a second."""


def load_named(load: Load) -> str:
    """What is decoded and read, for the title."""
    decode = f"{load.batch} requests of {load.context} tokens"
    return f"{decode} decoded together, a prompt of {load.prompt} read alone"


def rates(ax: Axes, plans: list[Plan], step: str) -> None:
    """Tokens a second of each; hatched where one card has not the memory."""
    for place, plan in enumerate(plans):
        rate = plan.per_s(step)
        hatch = "" if plan.cards() == 1 else "///"
        ax.barh(place, rate, 0.7, color=RATE, hatch=hatch, edgecolor="white", linewidth=0)
        ax.text(rate, place, f" {rate:,.0f}", va="center", size=style.TEXT_POINTS, color=style.INK)
    ax.set_xlim(0, 1.25 * max(plan.per_s(step) for plan in plans))
    ax.set_xticks([])
    finish(ax, plans, f"{step}, tokens a second")


def shares(ax: Axes, plans: list[Plan], step: str) -> None:
    """What the time of each goes into."""
    for place, plan in enumerate(plans):
        works, start = plan.works_us[step], 0.0
        for work, us in works.items():
            width = us / sum(works.values())
            ax.barh(place, width, 0.7, left=start, color=WORK[work], edgecolor="white")
            start += width
    ax.set_xlim(0, 1)
    ax.set_xticks([0, 0.25, 0.5, 0.75], ["0", "25 %", "50 %", "75 %"])
    finish(ax, plans, f"{step}, shares of the time")


def finish(ax: Axes, plans: list[Plan], label: str) -> None:
    """The first plan on top; names of plans stand at the left of the row alone."""
    style.bare(ax)
    ax.set_yticks([])
    ax.set_ylim(len(plans) - 0.4, -0.6)
    ax.set_xlabel(label, size=style.TEXT_POINTS, color=style.INK, loc="left")


# ---- what is asked for ----


def arguments(words: list[str] | None = None) -> argparse.Namespace:
    """What the command line says; it ends the script where that cannot be."""
    parser = argparse.ArgumentParser(description="Plan which card a model runs on.")
    parser.add_argument("--batch", type=int, default=16, help="requests decoded together")
    parser.add_argument("--context", type=int, default=1024, help="tokens of each request")
    parser.add_argument("--prompt", type=int, default=512, help="tokens of a prompt read alone")
    parser.add_argument("--device", action="append", help="a chip or product line; may be repeated")
    parser.add_argument("-o", "--out", type=Path, default=Path("out"), help="folder of the picture")
    found = parser.parse_args(words)
    longest = min(model.longest for model in MODELS)
    limits = {"batch": MOST_REQUESTS, "context": longest, "prompt": longest}
    for name, most in limits.items():
        value = getattr(found, name)
        if not 1 <= value <= most:
            parser.error(f"--{name} must be from 1 to {most}, not {value}; pass a number of these")
    found.device = found.device or list(DEVICES)
    for device in found.device:
        try:
            npusim.devices.load(device)
        except DeviceError as error:
            parser.error(str(error))
    if found.out.exists() and not found.out.is_dir():
        parser.error(f"--out must be a folder, not the file {found.out}; name another one")
    return found


MOST_REQUESTS = 256
"""Of a step; what a server decodes together by default (vLLM's max_num_seqs)."""


def main(words: list[str] | None = None) -> None:
    """Plan, print and draw."""
    asked = arguments(words)
    load = Load(asked.batch, asked.context, asked.prompt)
    every = list(plans(load, asked.device))
    found = [plan for plan in every if isinstance(plan, Plan)]
    print(load_named(load))
    print("\n".join(table(found)))
    for refusal in every:
        if isinstance(refusal, str):
            print(refusal)
    print(f"picture: {draw(found, asked.out)}")


if __name__ == "__main__":
    main()
