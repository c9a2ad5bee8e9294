"""A dense decoder layer as a chain of kernels, with weights of bf16, int8 (W8A8) and int4 (W4A16).

First each chain runs at a small size, and its output is compared with the same layer in float64.
Then each is timed as one layer of a model of seven billion parameters that decodes a token for each
of 16 requests: a table of all kernels, and a picture of where the time goes.

    python examples/decoder_layer.py [DEVICE] [FOLDER]

Atlas inference has fp16 in place of bf16, one scale for all tokens, and no int4 weights. Operations
for which a chip has no kernel are computed on the host and shown as not timed.
"""

import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.patches import Patch

import npusim
from npusim.reports import style

REALS = {"bf16": "bfloat16", "fp16": "float16"}
WORK = {
    "products": "#D55E00",
    "attention": "#CC79A7",
    "norms": "#E69F00",
    "activation": "#56B4E9",
    "quantisation": "#F0E442",
    "rotary and cache": "#009E73",
    "copies": "#999999",
}
"""What kernels do -> its colour in the picture: Okabe and Ito's, as in all pictures."""
EPSILON = 1e-6
GROUP = 128
"""Rows of an int4 weight that share a scale."""
MASK = 2048
"""Rows and columns of the mask that hides later tokens, whatever the lengths are."""


@dataclass(frozen=True)
class Size:
    """A layer, and the tokens that it is given: one for each request, if it decodes."""

    hidden: int
    heads: int
    kv_heads: int
    intermediate: int
    tokens: int
    context: int
    """Tokens of each request, the new one included."""
    head: int = 128
    page: int = 128
    new: int = 1
    """Tokens of each request that the layer is given; the others are in the caches."""

    @property
    def widths(self) -> tuple[int, int, int]:
        """Columns of queries, keys and values."""
        return self.heads * self.head, self.kv_heads * self.head, self.kv_heads * self.head

    @property
    def products(self) -> dict[str, tuple[int, int]]:
        """Product -> rows and columns of its weight."""
        return {
            "QKV": (self.hidden, sum(self.widths)),
            "O": (self.widths[0], self.hidden),
            "gate and up": (self.hidden, 2 * self.intermediate),
            "down": (self.intermediate, self.hidden),
        }

    @property
    def requests(self) -> int:
        return self.tokens // self.new

    @property
    def pages(self) -> int:
        """Of each request."""
        return -(-self.context // self.page)


SMALL = Size(hidden=512, heads=4, kv_heads=2, intermediate=768, tokens=4, context=40)
QWEN_7B = Size(hidden=3584, heads=28, kv_heads=4, intermediate=18944, tokens=16, context=1024)
"""Qwen2.5-7B (its config.json)."""


# ---- what a layer is given ----


def described(size: Size, real: str) -> dict[str, npusim.TensorSpec]:
    """Weights, tokens and caches of a layer in the type *real*, without values."""
    blocks, rows = size.requests * size.pages, (size.tokens, size.hidden)
    cache = blocks, size.page, size.kv_heads, size.head
    reals = {
        **dict.fromkeys(("x", "residual"), rows),
        **dict.fromkeys(("first norm", "second norm"), (size.hidden,)),
        **dict.fromkeys(("cos", "sin"), (size.tokens, 1, size.head)),
        **dict.fromkeys(("keys", "values"), cache),
        **size.products,
    }
    return {name: npusim.TensorSpec(shape, real) for name, shape in reals.items()} | {
        "slots": npusim.TensorSpec((size.tokens,), "int32"),
        "table": npusim.TensorSpec((size.requests, size.pages), "int32"),
        "mask": npusim.TensorSpec((MASK, MASK), "int8"),
    }


def drawn(size: Size, real: str) -> dict[str, Any]:
    """The same with values: normal ones, weights such that products of these are alike again."""
    rng = np.random.default_rng(0)
    found: dict[str, Any] = {
        name: rng.standard_normal(spec.shape).astype(spec.element.numpy)
        for name, spec in described(size, real).items()
    }
    for name, (rows, _) in size.products.items():
        found[name] = (found[name] * rows**-0.5).astype(found[name].dtype)
    angles = size.context / 10000 ** (np.arange(0, size.head, 2) / size.head)
    for name, values in (("cos", np.cos(angles)), ("sin", np.sin(angles))):
        found[name][:] = np.tile(values, 2)
    page, place = divmod(size.context - 1, size.page)
    found["table"] = np.arange(size.tokens * size.pages, dtype=np.int32)
    found["table"] = rng.permutation(found["table"]).reshape(size.tokens, size.pages)
    found["slots"] = found["table"][:, page] * np.int32(size.page) + np.int32(place)
    found["mask"] = np.triu(np.ones((MASK, MASK), np.int8), 1)
    return found


# ---- the chain ----


@dataclass(frozen=True)
class Kernel:
    """A kernel of the chain: what it is for, its name, and its time, if it is timed."""

    work: str
    name: str
    time_us: float | None = None
    off: float | None = None
    """How far npusim is off on measured kernels of its kind: half of them are within that share."""


@dataclass
class Layer:
    """A decoder layer with weights of one *kind* on *device*; it keeps the kernels that it runs."""

    device: str
    kind: str
    size: Size
    given: dict[str, Any]
    kernels: list[Kernel] = field(default_factory=list)

    @property
    def real(self) -> str:
        return str(self.given["x"].dtype)

    @property
    def is_inference(self) -> bool:
        return npusim.devices.load(self.device).series == "Atlas inference"

    def kernel(self, work: str, op: str, *args: Any, fresh: str = "", **options: Any) -> Any:
        """Outputs of a kernel; the L2 holds its inputs named in *fresh*, which were just made."""
        l2 = tuple(fresh.split())
        run = npusim.run(op, *args, device=self.device, l2=l2 or "cold", **options)
        self.kernels.append(Kernel(work, op, run.time_us, run.accuracy.median))
        outputs = tuple(run.outputs.values())
        return outputs if len(outputs) > 1 else outputs[0]

    def output(self) -> Any:
        """What the layer adds to its residual, and the residual."""
        rows, residual = self.norm(self.given["x"], self.given["residual"], "first norm")
        rows = self.product(self.attended(self.product(rows, "QKV")), "O")
        rows, residual = self.norm(rows, residual, "second norm")
        both = self.product(rows, "gate and up")
        rows = self.kernel("activation", "npu_swiglu", both, fresh="x")
        return self.product(rows, "down"), residual

    def norm(self, x: Any, residual: Any, weight: str) -> tuple[Any, Any]:
        """Rows of the sum over their root mean square, and the sum."""
        y, _, total = self.kernel(
            "norms", "npu_add_rms_norm", x, residual, self.given[weight], EPSILON, fresh="x1 x2"
        )
        return y, total

    def attended(self, qkv: Any) -> Any:
        """What each head of queries takes from the cache, which gets the new keys and values."""
        size, heads, start = self.size, [], 0
        for name, width in zip(("queries", "keys", "values"), size.widths, strict=True):
            part = self.kernel("copies", "narrow", qkv, 1, start, width, fresh="x")
            heads.append(
                self.heads(name, shaped(part, (size.tokens, width // size.head, size.head)))
            )
            start += width
        turn = self.given["cos"], self.given["sin"], "TND"
        query, key = self.kernel(
            *("rotary and cache", "npu_apply_rotary_pos_emb", *heads[:2], *turn), fresh="query key"
        )
        caches = self.given["keys"], self.given["values"], self.given["slots"]
        writer, mode = "npu_scatter_pa_kv_cache", {"cache_mode": "Norm"}
        if self.is_inference:
            writer, mode = "npu_reshape_and_cache", {}
        caches = self.kernel(
            "rotary and cache", writer, key, heads[2], *caches, **mode, fresh="key value"
        )
        return shaped(self.attention(query, *caches), (size.tokens, size.widths[0]))

    def heads(self, name: str, part: Any) -> Any:
        """Heads of *name*, which are queries, keys or values, as attention takes them."""
        assert name in ("queries", "keys", "values")
        return part

    def attention(self, query: Any, keys: Any, values: Any) -> Any:
        """Softmax of queries times keys, times values: `(tokens, heads, head)`."""
        size = self.size
        pages = size.requests * size.pages, size.page, size.widths[1]
        op = "npu_fused_infer_attention_score"
        if self.is_inference:
            # No kernel here computes it: its time is missing, and said to be.
            self.kernels.append(Kernel("attention", op))
            if isinstance(query, npusim.TensorSpec):
                return query
            found = attention(size, wide(query), wide(keys), wide(values), self.given["table"])
            return found.astype(query.dtype)
        return self.kernel(
            *("attention", op, query, shaped(keys, pages), shaped(values, pages)),
            atten_mask=self.given["mask"],
            block_table=self.given["table"],
            actual_seq_lengths=[*range(size.new, size.tokens + 1, size.new)],
            actual_seq_lengths_kv=[size.context] * size.requests,
            num_heads=size.heads,
            num_key_value_heads=size.kv_heads,
            scale=size.head**-0.5,
            input_layout="TND",
            block_size=size.page,
            sparse_mode=3,
            fresh="query",
        )[0]

    def product(self, x: Any, name: str) -> Any:
        """*x* times the weight called *name*, as the kind of the weights has it."""
        weight = self.given[name]
        if self.kind in REALS:
            return self.kernel("products", "matmul", x, turned(weight), fresh="x1")
        if self.kind == "W8A8":
            return self.product_int8(x, *int8_of(weight))
        packed, scale = int4_of(weight, self.device)
        op = "npu_weight_quant_batchmatmul"
        return self.kernel("products", op, x, packed, scale, antiquant_group_size=GROUP, fresh="x")

    def product_int8(self, x: Any, weight: Any, scale: Any) -> Any:
        """*x* as int8, with a scale for each token or, on Atlas inference, one, times *weight*."""
        op, kind = "npu_quant_matmul", self.real
        if not self.is_inference:
            x, rows = self.kernel("quantisation", "npu_dynamic_quant", x, fresh="x")
            options = {"pertoken_scale": rows, "output_dtype": kind, "fresh": "x1 pertoken_scale"}
            return self.kernel("products", op, x, in_fractals(weight), scale, **options)
        # Scales are fixed beforehand: those of the weight hold that of x, and lie packed.
        one, packed = npusim.TensorSpec((1,), kind), npusim.TensorSpec(scale.shape, "int64")
        if not isinstance(x, npusim.TensorSpec):
            one = np.array([127 / wide(np.abs(x)).max()], x.dtype)
            whole = (scale / wide(one)).astype(np.float32)
            packed = npusim.run("npu_trans_quant_param", whole, device=self.device).output
        options = {"dtype": "qint8", "axis": -1, "div_mode": False, "fresh": "input"}
        x = self.kernel("quantisation", "npu_quantize", x, one, None, **options)
        factors = x, in_fractals(weight.T).T, packed
        return self.kernel("products", op, *factors, output_dtype=kind, fresh="x1")


def in_fractals(weight: Any) -> Any:
    """*weight* in FRACTAL_NZ."""
    if isinstance(weight, npusim.TensorSpec):
        return npusim.TensorSpec(weight.shape, weight.dtype, "FRACTAL_NZ")
    return npusim.Tensor.of(np.ascontiguousarray(weight), "FRACTAL_NZ")


def shaped(x: Any, shape: tuple[int, ...]) -> Any:
    """*x* with another shape, with values or without."""
    is_spec = isinstance(x, npusim.TensorSpec)
    return npusim.TensorSpec(shape, x.dtype) if is_spec else x.reshape(shape)


def turned(weight: Any) -> Any:
    """The same matrix `(k, n)` as models keep it: the transposed view of `(n, k)`."""
    if isinstance(weight, npusim.TensorSpec):
        return npusim.TensorSpec(weight.shape[::-1], weight.dtype).T
    return np.ascontiguousarray(weight.T).T


def int8_of(weight: Any) -> tuple[Any, Any]:
    """*weight* as int8, and a scale for each column."""
    if isinstance(weight, npusim.TensorSpec):
        scale = npusim.TensorSpec(weight.shape[1:], "float32")
        return npusim.TensorSpec(weight.shape, "int8"), scale
    scale = (np.abs(wide(weight)).max(axis=0) / 127).astype(np.float32)
    return np.rint(wide(weight) / scale).astype(np.int8), scale


def int4_of(weight: Any, device: str) -> tuple[Any, Any]:
    """*weight* as int4 packed eight to an int32, and a scale for each group of rows."""
    rows, columns = weight.shape
    if isinstance(weight, npusim.TensorSpec):
        scale = npusim.TensorSpec((rows // GROUP, columns), weight.dtype)
        return npusim.TensorSpec((rows, columns // 8), "int32"), scale
    groups = wide(weight).reshape(-1, GROUP, columns)
    scale = (np.abs(groups).max(axis=1, keepdims=True) / 7).astype(weight.dtype)
    numbers = np.rint(groups / wide(scale)).clip(-8, 7).astype(np.int32).reshape(rows, columns)
    packed = npusim.run("npu_convert_weight_to_int4pack", numbers, device=device).output
    return packed, scale[:, 0]


# ---- the same in float64 ----


def wide(x: Any) -> Any:
    """*x* in float64."""
    return np.asarray(x).astype(np.float64)


def exact(size: Size, given: dict[str, Any]) -> Any:
    """What the layer adds to its residual, together with it, without any rounding between."""
    reals = {name: wide(x) for name, x in given.items() if x.dtype.kind != "i"}

    def norm(x: Any, weight: str) -> Any:
        return x / np.sqrt((x * x).mean(axis=-1, keepdims=True) + EPSILON) * reals[weight]

    total = reals["x"] + reals["residual"]
    ends = np.cumsum(size.widths)
    parts = np.split(norm(total, "first norm") @ reals["QKV"], ends[:2], axis=1)
    query, key, value = (part.reshape(size.tokens, -1, size.head) for part in parts)
    query, key = (rotated(part, reals["cos"], reals["sin"]) for part in (query, key))
    for cache, new in (("keys", key), ("values", value)):
        reals[cache].reshape(-1, size.kv_heads, size.head)[given["slots"]] = new
    heads = attention(size, query, reals["keys"], reals["values"], given["table"])
    total = total + heads.reshape(size.tokens, -1) @ reals["O"]
    gate, up = np.split(norm(total, "second norm") @ reals["gate and up"], 2, axis=1)
    return total + (gate / (1 + np.exp(-gate)) * up) @ reals["down"]


def rotated(x: Any, cos: Any, sin: Any) -> Any:
    """Halves of each head turned by an angle for each pair of numbers."""
    low, high = np.split(x, 2, axis=-1)
    return x * cos + np.concatenate([-high, low], axis=-1) * sin


def attention(size: Size, query: Any, keys: Any, values: Any, table: Any) -> Any:
    """Each request's heads of *query* over its pages of the caches."""
    shape = size.tokens, size.pages * size.page, size.kv_heads, 1, size.head
    keys, values = (cache[table].reshape(shape)[:, : size.context] for cache in (keys, values))
    query = query.reshape(size.tokens, 1, size.kv_heads, -1, size.head)
    scores = (query * keys).sum(axis=-1, keepdims=True) * size.head**-0.5
    weights = np.exp(scores - scores.max(axis=1, keepdims=True))
    found = (weights * values).sum(axis=1) / weights.sum(axis=1)
    return found.reshape(size.tokens, size.heads, size.head)


def error_of(layer: Layer) -> float:
    """How far the layer's output is from the exact one: root mean squares of both, divided."""
    expected = exact(layer.size, layer.given)
    added, residual = layer.output()
    off = wide(added) + wide(residual) - expected
    return float(np.sqrt((off * off).mean() / (expected * expected).mean()))


# ---- what is printed ----


def total_us(kernels: list[Kernel]) -> float:
    """Of those that are timed."""
    return sum(kernel.time_us or 0.0 for kernel in kernels)


def table(kernels: list[Kernel]) -> Iterator[str]:
    """A line for each kernel, and one for each kind of work with its share of the total.

    *off by* is what npusim is off at most on half of the measured kernels of the same kind.
    """
    total = total_us(kernels)
    timed = sum(kernel.time_us is not None for kernel in kernels)
    rows = [("kernel", "time", "work", "off by")]
    for kernel in kernels:
        time = "not timed" if kernel.time_us is None else f"{kernel.time_us:.1f} us"
        off = "none measured" if kernel.off is None else style.percent(kernel.off)
        rows.append((kernel.name, time, kernel.work, off))
    rows.append(("total", f"{total:.1f} us", f"{timed} of {len(kernels)} kernels timed", ""))
    for work in WORK:
        time_us = total_us([kernel for kernel in kernels if kernel.work == work])
        if time_us:
            rows.append((f"  {work}", f"{time_us:.1f} us", style.percent(time_us / total), ""))
    for name, time, work, off in rows:
        yield f"{name:32} {time:>9}  {work:17} {off}".rstrip()


def draw(layers: list[Layer], folder: Path) -> Path:
    """A bar for each layer, kernel after kernel, coloured by what they do."""
    figure = Figure((10, 1.3 + 0.6 * len(layers)), layout="constrained")
    ax = figure.subplots()
    totals = [total_us(layer.kernels) for layer in layers]
    for place, layer in enumerate(layers):
        start = 0.0
        for kernel in layer.kernels:
            width, color = kernel.time_us or 0.0, WORK[kernel.work]
            ax.barh(place, width, 0.64, left=start, color=color, edgecolor="white", zorder=2)
            start += width
        time = f"  {style.time_named(start)}"
        ax.text(start, place, time, va="center", size=style.TEXT_POINTS, color=style.INK)
    ax.set_yticks(range(len(layers)), [layer.kind for layer in layers])
    ax.set_ylim(len(layers) - 0.5, -0.5)
    ax.set_xlim(0, 1.12 * max(totals))
    style.bare(ax)
    size, best = layers[0].size, totals.index(min(totals))
    finding = f"{layers[best].kind} takes {style.time_named(totals[best])}"
    if any(kernel.time_us is None for kernel in layers[best].kernels):
        finding += " without attention"
    what = f"A decoder layer of a 7B model on {layers[0].device}, {size.tokens} requests of"
    style.title(ax, f"{what} {size.context} tokens: {finding}")
    seen = {kernel.work for layer in layers for kernel in layer.kernels if kernel.time_us}
    marks = [Patch(color=color, label=work) for work, color in WORK.items() if work in seen]
    style.legend_below(ax, marks, "time (us)")
    folder.mkdir(parents=True, exist_ok=True)
    figure.savefig(folder / "decoder_layer.png", dpi=100)
    return folder / "decoder_layer.png"


def main(device: str, folder: Path) -> None:
    """Compute with small numbers, then time a layer of a large model and draw it."""
    short = "fp16" if npusim.devices.load(device).series == "Atlas inference" else "bf16"
    real, layers = REALS[short], []
    for kind in (short, "W8A8", "W4A16"):
        try:
            error = error_of(Layer(device, kind, SMALL, drawn(SMALL, real)))
        except npusim.OpError as refusal:
            print(f"{kind}: {refusal}\n")
            continue
        layer = Layer(device, kind, QWEN_7B, described(QWEN_7B, real))
        layer.output()
        print(f"{kind} on {device}: {error:.1e} from float64 when small; at full size")
        print("\n".join(table(layer.kernels)), end="\n\n")
        layers.append(layer)
    print(f"where the time goes: {draw(layers, folder)}")


if __name__ == "__main__":
    words = sys.argv[1:]
    main(words[0] if words else "Atlas A2", Path(words[1] if len(words) > 1 else "out"))
