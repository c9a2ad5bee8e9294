"""An environment with vllm for the tests of vllm-ascend, on the torch and npusim that make it."""

from __future__ import annotations

import importlib
import subprocess
import venv
from contextlib import suppress
from pathlib import Path

__all__ = ["made_environment", "start"]

ALSO = """
numpy scipy pandas numba simpy ml_dtypes threadpoolctl cachetools psutil pillow sentencepiece
requests blake3 py-cpuinfo protobuf fastapi<0.137 openai aiohttp httpx prometheus_client tiktoken
lark==1.2.2 prometheus-fastapi-instrumentator partial-json-parser jsonschema pyzmq msgspec einops
cbor2 ninja gguf opencv-python-headless cloudpickle watchfiles python-json-logger pybase64 ijson
setproctitle anthropic mcp opentelemetry-sdk opentelemetry-api opentelemetry-exporter-otlp uvloop
uvicorn python-multipart email-validator xxhash modelscope pytest pytest-asyncio pytest-mock
"""
"""What vllm imports and that does not want a torch of its own."""
WITHOUT_TORCH = """
compressed-tensors llguidance outlines_core lm-format-enforcer depyf mistral_common openai-harmony
model-hosting-container-standards xgrammar opentelemetry-semantic-conventions-ai interegular astor
dill diskcache pydantic-extra-types pycountry loguru frozendict apache-tvm-ffi torchvision==0.28.0
"""
"""The same of what would bring one along: installed without what it depends on."""


NMS = "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"
"""What torchvision declares of its operators that suppress boxes."""


def start() -> None:
    """Install the card, and import torchvision, in a process of the environment."""
    import npusim.torch

    npusim.torch.install()
    with suppress(ImportError):
        try:
            importlib.import_module("torchvision")
        except RuntimeError:
            # A package index has it for a torch of another card. Its library does not load, and
            # what it declares of these two has to be there for the rest to be imported.
            import torch

            for name in ("nms", "qnms"):
                torch.library.define(f"torchvision::{name}", NMS)
            importlib.import_module("torchvision")


def made_environment(variable: str, folder: Path, vllm: str) -> Path:
    """The Python of an environment with that *vllm*, made in *folder* unless it is there.

    Each of its processes calls :func:`start` if *variable* is set.
    """
    python = folder / "bin" / "python"
    done = folder / "complete"
    if done.is_file():
        return python
    venv.create(folder, with_pip=True)
    packages = next(folder.glob("lib/python*/site-packages"))
    import torch

    import npusim

    others = [str(Path(each.__path__[0]).parent) for each in (torch, npusim)]
    # Processes that tests start run it first, too.
    first = f"import os; {variable!r} in os.environ and __import__('vllm_environment').start()"
    (packages / "world.pth").write_text("\n".join((*others, first)) + "\n")
    pip = [str(python), "-m", "pip", "install", "--quiet"]
    subprocess.run([*pip, *ALSO.split()], check=True)
    subprocess.run([*pip, "--no-deps", *WITHOUT_TORCH.split(), f"vllm=={vllm}"], check=True)
    done.touch()
    return python
