"""The command `npusim`: the one part that prints.

Answers go to stdout; progress goes to stderr, and so does what went wrong, as lines that begin with
`npusim: `. The exit code is 0 when all went well, 1 when an operator, a device or a file refused,
and 2 when the command line itself was wrong.
"""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Any, TextIO

import typer
from typer.core import TyperGroup

from npusim.cli.commands import completion
from npusim.cli.commands.compare import compare_files
from npusim.cli.commands.decode_scale import decode_scale
from npusim.cli.commands.devices import app as devices_app
from npusim.cli.commands.explain import explain_operator
from npusim.cli.commands.layout import show_layout
from npusim.cli.commands.model import time_model
from npusim.cli.commands.operators import list_operators
from npusim.cli.commands.profile import profile
from npusim.cli.commands.report import write_report
from npusim.cli.commands.run import run_operator
from npusim.cli.commands.sweep import sweep_operator
from npusim.cli.commands.validate import validate
from npusim.data.files import interruptible, reason
from npusim.data.garbage import collected_seldom
from npusim.data.text import printable

__all__ = ["app", "main"]


WRONG_WORDS: Any = typer.BadParameter.__mro__[1]
"""What typer raises for words that it does not know: of click's, or of typer's copy of click."""


class _Group(TyperGroup):
    """Turns what npusim raises and warns of into lines on stderr, and an exit code."""

    def invoke(self, ctx: Any) -> Any:
        try:
            with _printed_warnings():
                return super().invoke(ctx)
        except WRONG_WORDS as error:
            error.message = printable(error.message)
            raise  # with the usage next to it
        except (typer.Exit, typer.Abort):
            raise
        except BrokenPipeError:
            raise  # a reader such as head has seen enough
        except OSError as error:
            _say(_described(error))
            _drop_answer()
        except MemoryError:
            _say("the arrays must fit into memory; use spec:SHAPE:DTYPE to ask for time only")
        except Exception as error:
            if not _is_refusal(error):
                raise
            _say(str(error))
            if _is_usage(error):
                raise typer.Exit(2) from None
        raise typer.Exit(1)


def _is_refusal(error: Exception) -> bool:
    """Whether an operator, a device or a file refused, and npusim did not fail."""
    # These two load much, and a command that refuses nothing does without.
    from npusim.check.hazards import HazardError
    from npusim.data.errors import OpError

    return isinstance(error, OpError | HazardError | ValueError | TypeError)


def _is_usage(error: Exception) -> bool:
    """Whether the command line itself was wrong."""
    from npusim.cli.call import UsageError
    from npusim.run.inputs import InputError

    return isinstance(error, InputError | UsageError)


def _described(error: OSError) -> str:
    what = "the answer" if error.filename is None else f"{error.filename}"
    return (
        f"files: {what} must be one that can be read or written, but: {reason(error)}; "
        f"check where it goes"
    )


def _drop_answer() -> None:
    """Forget what stdout did not take, or Python would try once more when it ends."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


@contextmanager
def _printed_warnings() -> Iterator[None]:
    """Warnings of npusim's own are lines like others, each once; the rest is Python's."""
    # Loads numpy, as each command does.
    from npusim.data.errors import DocumentWarning, HazardWarning, SlowEngineWarning

    own = DocumentWarning, HazardWarning, SlowEngineWarning
    with warnings.catch_warnings():
        for each in own:
            warnings.simplefilter("default", each)
        usual = warnings.showwarning

        def show(
            message: Warning | str,
            category: type[Warning],
            filename: str,
            lineno: int,
            file: TextIO | None = None,
            line: str | None = None,
        ) -> None:
            if issubclass(category, own):
                _say(f"warning: {message}")
            else:
                usual(message, category, filename, lineno, file, line)

        warnings.showwarning = show
        yield


def _say(message: str) -> None:
    for line in message.splitlines():
        typer.echo(f"npusim: {printable(line)}", err=True)


def _show_version(asked: bool) -> None:
    if asked:
        from importlib.metadata import version

        from npusim.timing.engines import EngineError, engine_named

        try:
            with _printed_warnings():
                engine = engine_named()
        except EngineError as error:
            _say(str(error))
            raise typer.Exit(1) from None
        typer.echo(f"npusim {version('npusim')}, times by engine {engine}")
        raise typer.Exit


app = typer.Typer(
    cls=_Group,
    name="npusim",
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


FIRST_STEPS = """\
npusim simulates Huawei Ascend AI cores: which bits come out, how long it takes,
and why. Five things to try:

  How long does a product take, what bounds it, and what would help?
    npusim run npu_quant_matmul -d "Atlas A2" --advice \\
      -i x1=spec:16x5120:int8 -i x2=spec:5120x25600:int8 \\
      -i scale=spec:25600:float32 -a output_dtype=float16

  Which bits come out?
    npusim run npu_quantize -d "Atlas 300I Pro" -o out/quantize \\
      -i input=randn:8x16 -i scales=full:1:value=20 -a dtype=qint8

  What does a page show of that run?
    npusim report out/quantize -o out/quantize.html

  From how many rows on is another chip faster?
    npusim sweep npu_dynamic_quant -d A2,310P \\
      -i 'x=spec:{1..64..x2}x4096:float16'

  Where in FRACTAL_NZ does an element of a matrix lie?
    npusim layout where 20x40 int8 FRACTAL_NZ --index 17,33

npusim --help lists all commands, and npusim COMMAND --help explains one.
"""
"""What `npusim` alone prints."""


@app.callback(invoke_without_command=True)
def _options(
    context: typer.Context,
    _version: Annotated[
        bool,
        typer.Option(
            "--version",
            callback=_show_version,
            is_eager=True,
            help="Print the version and the engine.",
        ),
    ] = False,
) -> None:
    """Huawei Ascend AI cores: which bits come out, how long it takes, and why."""
    if context.invoked_subcommand is None:
        typer.echo(FIRST_STEPS, nl=False)


app.command("run", no_args_is_help=True)(run_operator)
app.command("sweep", no_args_is_help=True)(sweep_operator)
app.command("ops")(list_operators)
app.command("report", no_args_is_help=True)(write_report)
app.command("validate")(validate)
app.command("profile", no_args_is_help=True)(profile)
app.command("model", no_args_is_help=True)(time_model)
app.command("layout", no_args_is_help=True)(show_layout)
app.command("decode-scale", no_args_is_help=True)(decode_scale)
app.command("explain", no_args_is_help=True)(explain_operator)
app.command("compare", no_args_is_help=True)(compare_files)
app.add_typer(devices_app, name="devices")


def main() -> None:
    """Run the command line of this process."""
    with interruptible(), collected_seldom(), completion.whole_words():
        app(prog_name="npusim")
