"""Models by their config.json: what a step of decode and one of prefill takes on cards.

::

    model = npusim.models.load("Qwen3-32B/config.json")
    step = model.step(device="Atlas 800I A2", tp=4, batch=16, context=2048, quant="w8a8")
    step.tpot_us, step.decode.parts.gaps, step.memory.fits
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from npusim import devices, engines
from npusim.devices.schema import DeviceSpec
from npusim.engines.schema import Engine
from npusim.models import config
from npusim.models.config import ConfigError
from npusim.models.shapes import Shapes
from npusim.models.step import Asked, ModelError, Step, step_of
from npusim.models.sweep import ModelSweep, sweep

__all__ = ["ConfigError", "Model", "ModelError", "ModelSweep", "Step", "load", "sweep"]


@dataclass(frozen=True, slots=True)
class Model:
    """A decoder, as its config.json describes it."""

    shapes: Shapes

    def step(
        self,
        *,
        device: str | os.PathLike[str] | DeviceSpec,
        tp: int = 1,
        ep: int = 1,
        dp: int = 1,
        batch: int = 1,
        context: int = 1024,
        prompt: int = 512,
        quant: str = "float",
        engine: str | os.PathLike[str] | Engine = "vllm-ascend",
    ) -> Step:
        """Time a step of decode and one of prefill by shapes alone.

        *tp* cards share each layer, *dp* groups of these decode apart, and *ep* is 1 or tp x dp,
        the cards that share the experts. *batch* requests of *context* tokens each are decoded
        together, and a *prompt* of so many tokens is read alone. *quant* is "float", "w8a8",
        "w8a8-static" or "w4a16"; Atlas inference has static scales in any case. *engine* is a name
        or a path, as :func:`npusim.engines.load` takes it.

        Raises ModelError for what cannot be asked of the model or the engine, and what
        :func:`npusim.devices.load` and :func:`npusim.engines.load` raise.
        """
        spec = devices.load(device)
        if spec.series == "Atlas inference" and quant == "w8a8":
            quant = "w8a8-static"
        load = tp, ep, dp, batch, context, prompt, quant
        return step_of(Asked(self.shapes, spec, engines.load(engine), *load))


def load(config_json: str | os.PathLike[str] | Mapping[str, Any]) -> Model:
    """The model that a config.json of transformers describes: its path, its folder, or a dict.

    Raises ConfigError for a file that is none and for a model that is not known, with the keys that
    are missing.
    """
    return Model(config.read(config_json))
