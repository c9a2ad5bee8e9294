"""Models given by their config.json: the time of a decode step and of a prefill step on cards.

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
        """Time a step of decode and one of prefill from shapes alone.

        *tp* cards share each layer, *dp* groups of such cards decode independently, and *ep*, the
        number of cards that share the experts, is 1 or tp x dp. *batch* requests of *context*
        tokens each are decoded together; one *prompt* of this many tokens is prefilled alone.
        *quant* is "float", "w8a8", "w8a8-static" or "w4a16"; Atlas inference always has static
        scales. *engine* is a name or a path, as for :func:`npusim.engines.load`.

        Raises ModelError for a step that the model or the engine does not support, and the errors
        of :func:`npusim.devices.load` and :func:`npusim.engines.load`.
        """
        spec = devices.load(device)
        if spec.series == "Atlas inference" and quant == "w8a8":
            quant = "w8a8-static"
        load = tp, ep, dp, batch, context, prompt, quant
        return step_of(Asked(self.shapes, spec, engines.load(engine), *load))


def load(config_json: str | os.PathLike[str] | Mapping[str, Any]) -> Model:
    """The model that a config.json of transformers describes: its path, its folder, or a dict.

    Raises ConfigError for a file that is not a config and for an unknown model, with the missing
    keys.
    """
    return Model(config.read(config_json))
