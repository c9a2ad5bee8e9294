"""Names of the shipped chips: the names of their files, and the aliases in them.

The table avoids reading every chip's file to find a name.
"""

from __future__ import annotations

__all__ = ["ALIASES"]

ALIASES: dict[str, tuple[str, ...]] = {
    "ascend310p1": ("Ascend310P1",),
    "ascend310p3": (
        "Ascend310P3",
        "Atlas inference",
        "Atlas 推理系列产品",
        "Atlas 300I Pro",
        "Atlas 300V Pro",
        "Atlas 300I Duo",
        "Ascend310P",
    ),
    "ascend310p5": ("Ascend310P5",),
    "ascend310p7": ("Ascend310P7",),
    "ascend910_9362": ("Ascend910_9362",),
    "ascend910_9372": ("Ascend910_9372",),
    "ascend910_9381": ("Ascend910_9381",),
    "ascend910_9382": ("Ascend910_9382",),
    "ascend910_9391": (
        "Ascend910_9391",
        "Atlas A3",
        "Atlas A3 训练系列产品",
        "Atlas A3 推理系列产品",
        "Atlas 800T A3",
        "Atlas 800I A3",
        "CloudMatrix384",
        "Ascend910_93",
        "Ascend910C",
    ),
    "ascend910_9392": ("Ascend910_9392",),
    "ascend910b1": ("Ascend910B1",),
    "ascend910b2": ("Ascend910B2", "Atlas A2", "Atlas A2 训练系列产品", "Ascend910B"),
    "ascend910b2c": ("Ascend910B2C",),
    "ascend910b3": ("Ascend910B3", "Atlas 800T A2"),
    "ascend910b4": (
        "Ascend910B4",
        "Atlas 800I A2",
        "A200I A2 Box",
        "Atlas 800I A2 推理产品",
        "Atlas A2 推理系列产品",
        "A200I A2 Box 异构组件",
    ),
    "ascend910b4_1": ("Ascend910B4-1",),
}
"""Name of each shipped chip -> the aliases in its file, in the same order."""
