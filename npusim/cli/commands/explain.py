"""`npusim explain`, as it is typed."""

from __future__ import annotations

from npusim.cli.commands.run import Attributes, Device, Inputs, Json, Operator, Settings

__all__ = ["explain_operator"]


def explain_operator(
    op: Operator,
    device: Device = "Atlas A2",
    inputs: Inputs = None,
    attributes: Attributes = None,
    setting: Settings = None,
    as_json: Json = False,
) -> None:
    """Explain which chips take a call, and which kernel runs.

    \b
    For example:
      npusim explain npu_quantize -d "Atlas A2" -i input=spec:8x64:float16 \\
        -i scales=spec:1:float16 -a dtype=qint8 -a axis=-1 -a div_mode=false
    """
    from npusim.cli.explain import explain_operator

    explain_operator(op, device, inputs or (), attributes or (), setting or (), as_json)
