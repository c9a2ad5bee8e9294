"""The kernel of a card for each operation of torch, and the rule for its work.

One line for each operation, by the name of its overload packet, in place or not: the kernel's name
in the vendor's profiles, and the rule that gives what it moves and computes. Operations that run on
the AI CPU, or of which nothing is known, are missing here and count as not timed.

Names of kernels: op-plugin@517f2e7, ops-nn@e5c3fa9 and ops-math@c419332, and the Python of CANN
8.1.RC1. The number of instructions of Cos and Sin follows the formula there, of other functions
CANN's formulas where they were read, else the usual formula (assumed).
"""

from __future__ import annotations

from npusim.torch.works import convolutions, indexing, rules, training
from npusim.torch.works.call import Rule
from npusim.torch.works.rules import number_a_row, ranked, stream
from npusim.torch.works.streams import MASK

__all__ = ["KERNELS"]

POLYNOMIAL = ("mul", "add")
ANGLE = ("mul", "add", "mul", "add", "mul", "sub") + ("mul", "sub") * 9
"""The argument reduction of Cos and Sin by multiples of pi."""
WAVE = (*ANGLE, "mul", *POLYNOMIAL * 4, "mul", "mul", "mul", "mul", "add", "min", "max")
RATIONAL = (*POLYNOMIAL * 6, "div")
"""A quotient of two polynomials."""
SIGMOID = ("mul", "exp", "add", "div")
ONE, TWO = ("add",), ("mul", "add")
LOGITS = (
    *("sub", "max", "sub", "exp", "sub", "exp", "add", "ln", "add"),
    *("sub", "mul", "sub", "mul", "add", "mul", "add", "mul"),
)
"""sigmoid_cross_entropy_with_logits_v2.py there."""

_STREAMS: dict[str, tuple[str, tuple[str, ...]]] = {
    "cos": ("Cos", WAVE),
    "sin": ("Sin", WAVE),
    "tan": ("Tan", (*ANGLE, *RATIONAL)),
    "acos": ("Acos", RATIONAL),
    "asin": ("Asin", RATIONAL),
    "atan": ("Atan", RATIONAL),
    "atan2": ("Atan2", ("div", *RATIONAL, MASK, MASK)),
    "cosh": ("Cosh", ("exp", "mul", "div", "add")),
    "sinh": ("Sinh", ("exp", "mul", "div", "sub")),
    "acosh": ("Acosh", ("mul", "sub", "sqrt", "add", "ln")),
    "asinh": ("Asinh", ("mul", "add", "sqrt", "add", "ln")),
    "atanh": ("Atanh", ("add", "sub", "div", "ln", "mul")),
    "erf": ("Erf", ("mul", *RATIONAL)),
    "erfc": ("Erfc", ("mul", *RATIONAL, "sub")),
    "erfinv": ("Erfinv", ("mul", "ln", *RATIONAL)),
    "exp": ("Exp", ("exp",)),
    "exp2": ("Exp2", ("mul", "exp")),
    "expm1": ("Expm1", ("exp", "add")),
    "log": ("Log", ("ln",)),
    "log2": ("Log2", ("ln", "mul")),
    "log10": ("Log10", ("ln", "mul")),
    "log1p": ("Log1p", ("add", "ln")),
    "sqrt": ("Sqrt", ("sqrt",)),
    "rsqrt": ("Rsqrt", ("sqrt", "div")),
    "reciprocal": ("Reciprocal", ("div",)),
    "square": ("Square", ("mul",)),
    "pow": ("Pow", ("ln", "mul", "exp", MASK)),
    "softplus": ("SoftplusV2", ("mul", "exp", "add", "ln", "mul", MASK)),
    "mish": ("Mish", (*SIGMOID, "mul", "mul", "div")),
    "elu": ("Elu", ("exp", "add", "mul", MASK)),
    "leaky_relu": ("LeakyRelu", ("mul", "max")),
    "hardswish": ("HardSwish", ("add", "min", "max", "mul", "mul")),
    "hardsigmoid": ("HardSigmoid", ("mul", "add", "min", "max")),
    "hardtanh": ("ClipByValueV2", ("min", "max")),
    "log_sigmoid_forward": ("LogSigmoid", ("mul", "exp", "add", "ln")),
    "binary_cross_entropy_with_logits": ("SigmoidCrossEntropyWithLogitsV2", LOGITS),
    "softshrink": ("SoftShrink", ("sub", MASK, MASK)),
    "hardshrink": ("HardShrink", (MASK, MASK)),
    "threshold": ("ThresholdV2", (MASK,)),
    "sigmoid": ("Sigmoid", SIGMOID),
    "tanh": ("Tanh", ("exp", "add", "mul", "div")),
    "silu": ("Swish", SIGMOID),
    "gelu": ("Gelu", ("mul", "mul", "add", "mul", "exp", "add", "div")),
    "relu": ("Relu", ("relu",)),
    "abs": ("Abs", ("abs",)),
    "neg": ("Neg", ("mul",)),
    "sign": ("Sign", (MASK, MASK)),
    "sgn": ("Sign", (MASK, MASK)),
    "floor": ("Floor", ONE),
    "ceil": ("Ceil", ONE),
    "round": ("Round", ONE),
    "trunc": ("Trunc", ONE),
    "frac": ("Trunc", ("add", "sub")),
    "logit": ("Logit", ("sub", "div", "ln")),
    "add": ("Add", ONE),
    "sub": ("Sub", ("sub",)),
    "rsub": ("Sub", ("sub",)),
    "mul": ("Mul", ("mul",)),
    "remainder": ("FloorMod", ("div", "add", "mul", "sub")),
    "maximum": ("Maximum", ("max",)),
    "minimum": ("Minimum", ("min",)),
    "fmax": ("Maximum", ("max",)),
    "fmin": ("Minimum", ("min",)),
    "clamp": ("ClipByValueV2", ("min", "max")),
    "clamp_min": ("Maximum", ("max",)),
    "clamp_max": ("Minimum", ("min",)),
    "lerp": ("Lerp", ("sub", "mul", "add")),
    "addcmul": ("Addcmul", ("mul", "mul", "add")),
    "addcdiv": ("Addcdiv", ("div", "mul", "add")),
    "hypot": ("Hypot", ("mul", "mul", "add", "sqrt")),
    "heaviside": ("Heaviside", (MASK, MASK)),
    **{name: (kernel, (MASK,)) for name, kernel in (
        ("lt", "Less"), ("le", "LessEqual"), ("isnan", "NotEqual"), ("isinf", "IsInf"),
        ("isfinite", "IsFinite"), ("isneginf", "Equal"), ("isposinf", "Equal"),
        ("signbit", "Less"), ("where", "SelectV2"), ("masked_fill", "MaskedFill"),
        ("tril", "Tril"), ("triu", "Triu"), ("nan_to_num", "NanToNum"))},
    "logical_and": ("LogicalAnd", ("mul",)),
    "logical_or": ("LogicalOr", ("max",)),
    "logical_xor": ("NotEqual", (MASK,)),
    "logical_not": ("LogicalNot", TWO),
    "bitwise_and": ("BitwiseAnd", ("mul",)),
    "bitwise_or": ("BitwiseOr", ("max",)),
    "bitwise_xor": ("BitwiseXor", ("max", "mul", "sub")),
    "bitwise_not": ("Invert", TWO),
    "bitwise_left_shift": ("LeftShift", ("mul",)),
    "bitwise_right_shift": ("RightShift", ("mul",)),
    "__lshift__": ("LeftShift", ("mul",)),
    "__rshift__": ("RightShift", ("mul",)),
    "__and__": ("BitwiseAnd", ("mul",)),
    "__or__": ("BitwiseOr", ("max",)),
    "__xor__": ("BitwiseXor", ("max", "mul", "sub")),
    "arange": ("Range", ONE),
    "range": ("Range", ONE),
    "linspace": ("LinSpace", TWO),
    "eye": ("Eye", (MASK,)),
    "_to_copy": ("Cast", ()),
    "copy_": ("Cast", ()),
    "_softmax": ("SoftmaxV2", ("max", "sub", "exp", "add", "div")),
    "sigmoid_backward": ("SigmoidGrad", ("mul", "sub", "mul")),
    "tanh_backward": ("TanhGrad", ("mul", "sub", "mul")),
    "threshold_backward": ("ReluGrad", (MASK,)),
    "silu_backward": ("SiluGrad", (*SIGMOID, "sub", "mul", "add", "mul")),
    "mish_backward": ("MishGrad", (*SIGMOID, "mul", "mul", "div", "mul", "mul", "add", "mul")),
    "gelu_backward": ("GeluGrad", ("mul", "mul", "add", "exp", "add", "div", "mul", "mul", "add")),
}  # fmt: skip
"""Elementwise operation -> the kernel, and its instructions on each element."""

KERNELS: dict[str, tuple[str, Rule]] = {
    **{name: (kernel, stream(*steps)) for name, (kernel, steps) in _STREAMS.items()},
    **{name: (kernel, rules.moved) for name, kernel in (
        ("clone", "TensorMove"), ("constant_pad_nd", "PadV3"), ("flip", "ReverseV2"),
        ("roll", "Roll"), ("repeat", "Tile"), ("cat", "ConcatD"))},
    **{name: (kernel, rules.compared(name)) for name, kernel in (
        ("eq", "Equal"), ("ne", "NotEqual"), ("gt", "Greater"), ("ge", "GreaterEqual"))},
    "div": ("RealDiv", rules.divided),
    "floor_divide": ("FloorDiv", rules.floored("div", "add")),
    "fmod": ("Mod", rules.floored("div", "min", "max", "add", "add", "add", "mul", "sub")),
    "fill": ("Fill", rules.written),
    "zero": ("ZerosLike", rules.written),
    "index": ("Index", indexing.indexed),
    "_unsafe_index": ("Index", indexing.indexed),
    "index_put": ("IndexPutV2", indexing.put),
    "_index_put_impl": ("IndexPutV2", indexing.put),
    "index_add": ("InplaceScatterAdd", indexing.index_add),
    "index_select": ("GatherV3", indexing.selected),
    "embedding": ("GatherV2", indexing.looked_up),
    "gather": ("GatherElementsV2", indexing.gathered),
    "scatter": ("ScatterElementsV2", indexing.scattered),
    "scatter_add": ("ScatterElementsV2", indexing.scattered),
    "nonzero": ("NonZero", indexing.places_of),
    "topk": ("TopKV2", ranked(keeps_all=False)),
    "sort": ("Sort", ranked(keeps_all=True)),
    "cumsum": ("Cumsum", rules.running),
    "sum": ("ReduceSum", number_a_row("add")),
    "mean": ("ReduceMean", number_a_row("mul", "add")),
    "prod": ("ReduceProd", number_a_row("mul")),
    "all": ("ReduceAll", number_a_row("min")),
    "any": ("ReduceAny", number_a_row("max")),
    "amax": ("ReduceMax", number_a_row("max")),
    "amin": ("ReduceMin", number_a_row("min")),
    "argmax": ("ArgMaxV2", number_a_row("max", "max", casts=True)),
    "argmin": ("ArgMin", number_a_row("min", "min", casts=True)),
    "max": ("ArgMaxWithValue", number_a_row("max", "max", casts=True)),
    "min": ("ArgMinWithValue", number_a_row("min", "min", casts=True)),
    "linalg_vector_norm": ("LpNormV2", number_a_row("abs", "mul")),
    "norm": ("LpNormV2", number_a_row("abs", "mul")),
    "var": ("ReduceStdV2Update", rules.moment),
    "std": ("ReduceStdWithMean", rules.moment),
    "var_mean": ("ReduceStdV2Update", rules.moment),
    "logsumexp": ("LogSumExp", number_a_row("sub", "exp", passes=2)),
    "histc": ("HistogramV2", indexing.counted),
    "convolution": ("Conv2D", convolutions.forward),
    "convolution_backward": ("Conv2DBackprop", convolutions.backward),
    "native_layer_norm": ("LayerNormV3", rules.layer_norm),
    "native_group_norm": ("GroupNormSilu", rules.statistics),
    "native_batch_norm": ("BNInfer", rules.channels),
    "nll_loss_forward": ("NLLLoss", training.loss),
    "nll_loss_backward": ("NLLLossGrad", training.loss_backward),
    "_softmax_backward_data": ("SoftmaxGrad", training.of_rows(*training.SOFTMAX)),
    "_log_softmax_backward_data": ("LogSoftmaxGrad", training.of_rows(*training.LOG_SOFTMAX)),
    "native_layer_norm_backward": ("LayerNormGradV3", training.of_layer_norm),
    "embedding_dense_backward": ("EmbeddingDenseGradV2", training.of_table),
    "_fused_adamw": ("ApplyAdamWV2", training.adam),
    "_fused_adam": ("ApplyAdamWV2", training.adam),
    "_amp_foreach_non_finite_check_and_unscale": (
        "ForeachNonFiniteCheckAndUnscale",
        training.unscaled,
    ),
    **training.FOREACH,
}  # fmt: skip
"""Operation of aten -> the kernel, and the rule for its work."""
