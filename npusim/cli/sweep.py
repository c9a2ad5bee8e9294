"""`npusim sweep`: one operator over shapes, templates, chips and settings."""

from __future__ import annotations

import json
from collections.abc import Sequence
from concurrent.futures import Executor
from contextlib import ExitStack
from pathlib import Path
from time import monotonic
from typing import Any

import typer
from rich.console import Group
from rich.table import Table
from rich.text import Text

import npusim
from npusim.cli.braces import Braces
from npusim.cli.call import UsageError, arguments, options_of, parameters, settings
from npusim.cli.commands.formats import RowFormat
from npusim.cli.progress import Shown
from npusim.cli.progress import shown as shown_progress
from npusim.cli.run import l2_state
from npusim.cli.screen import show, table
from npusim.data import folders
from npusim.data.errors import shown
from npusim.data.files import content
from npusim.data.json import json_text
from npusim.sweeps import Sweep
from npusim.sweeps.crossovers import label_of, leaders
from npusim.sweeps.journal import remove
from npusim.sweeps.page import PAGE
from npusim.sweeps.picture import PICTURE

__all__ = ["refuse_load", "sweep_operator"]

RECORD = "sweep.json"
FILES = (RECORD, "sweep.csv", PICTURE, PAGE)
MAX_BYTES = 1 << 30
MARK = "npusim sweep"
"""The value of `kind` in every record."""


def sweep_operator(
    op: str,
    chips: list[str],
    words: list[str],
    inputs: list[str],
    attributes: list[str],
    *,
    template: str | None,
    settings: list[str],
    output: Path | None,
    force: bool,
    form: RowFormat,
    dask: str | None,
    l2: str,
    **options: Any,
) -> None:
    """Sweep *op* and print what came out; *options* are those of :func:`npusim.sweep`."""
    typed = _Typed(op, words, inputs, attributes, settings)
    if output is not None:
        folders.check(output, force, KIND)
    partial = None if output is None else output.with_name(f"{output.name}.partial")
    with ExitStack() as stack:
        executor = _executor(stack, dask)
        progress = _Relay(stack.enter_context(shown_progress()))
        try:
            found = npusim.sweep(
                *(op, typed.call, typed.braces.variables),
                device=[name for each in chips for name in each.split(",")],
                template=template if template is None or template == "all" else template.split(","),
                settings=typed.settings,
                l2=l2_state(l2),
                executor=executor,
                resume=partial,
                progress=progress,
                **options,
            )
        except BaseException:
            if progress.has_begun:
                _report_partial(partial)
            raise
    written = []
    if output is not None and partial is not None:
        written = folders.write(lambda new: _fill(new, found), output, KIND, force=force)
        remove(partial)
    _show(found, form)
    if output is not None and form is RowFormat.TEXT:
        show(f"\nwrote {', '.join(written)} to {output}")
    _report_refused(found)


def refuse_load(op: str, of_model: Sequence[str]) -> None:
    """Raise UsageError if there is any of what only a model can be swept by."""
    if of_model:
        name, _, values = of_model[0].partition("=")
        raise UsageError(
            f"sweep: --{name} must come with the config.json of a model, not with {shown(op)}; "
            f"an attribute of an operator is swept by -a '{name}={{{values}}}'"
        )


class _Relay:
    """Shows how many cells are done, and knows whether they have begun."""

    def __init__(self, show: Shown) -> None:
        self._show = show
        self._begin: tuple[float, int] | None = None

    @property
    def has_begun(self) -> bool:
        return self._begin is not None

    def __call__(self, done: int, of: int) -> None:
        now = monotonic()
        self._begin = self._begin or (now, done)
        begin, before = self._begin
        pace = f"{(done - before) / (now - begin):.3g} a second" if done > before else ""
        self._show("cells", done / max(of, 1), pace)


def _executor(stack: ExitStack, address: str | None) -> Executor | None:
    if address is None:
        return None
    from npusim.sweeps.cluster import cluster

    return stack.enter_context(cluster(address))


# ---- words ----


class _Typed:
    """The words of the command line: what varies, and the arguments for each value of it."""

    def __init__(
        self,
        op: str,
        words: list[str],
        inputs: list[str],
        attributes: list[str],
        numbers: list[str],
    ) -> None:
        self._op = op
        known = {each.name: options_of(each) for each in parameters(op)}
        more = _more(op, words, inputs + attributes + numbers)
        self.braces = Braces("sweep")
        self._plain: dict[str, list[str]] = {"-i": [], "-a": []}
        self._names: dict[str, str] = {}
        for option, given in (("-i", inputs), ("-a", attributes)):
            for word in given:
                name, equals, value = word.partition("=")
                if not equals or option not in known.get(name, ()):
                    self._plain[option].append(word)  # `arguments` refuses it
                    continue
                self._names[name] = option
                self.braces.read(name, value, *more.pop(name, []))
        self.braces.check()
        self.settings = {
            key: _values([value, *more.pop(key, [])])
            for key, value in settings(numbers, "sweep").items()
        }
        for name, values in more.items():
            raise UsageError(
                f"sweep: {shown(f'{name}={values[0]}')} must go with -i, -a or --set; "
                f"write one of these before it"
            )

    def call(self, **variables: Any) -> dict[str, Any]:
        """The arguments, where the variables have these values."""
        words = {option: list(plain) for option, plain in self._plain.items()}
        for name, value in self.braces.filled(variables):
            words[self._names[name]].append(f"{name}={value}")
        return arguments(self._op, words["-i"], words["-a"], "sweep")


def _more(op: str, words: Sequence[str], options: Sequence[str]) -> dict[str, list[str]]:
    """The words without an option, which a shell made of braces, by name."""
    found: dict[str, list[str]] = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not equals:
            raise UsageError(
                f"sweep: {shown(word)} must be an option, or NAME=VALUE; put braces into quotes, "
                f"or into -d and --template commas alone"
            )
        before = [each for each in options if each.startswith(f"{name}=")]
        if len(before) != 1:
            raise UsageError(
                f"sweep: {shown(word)} must be one more value of what one -i, -a or --set gives; "
                f"put the braces of {op}'s arguments into quotes"
            )
        found.setdefault(name, []).append(value)
    return found


def _values(words: list[str]) -> tuple[str, ...]:
    """What the number of a chip is set to in turn."""
    braces = Braces("sweep")
    braces.read("value", *words)
    braces.check()
    return braces.every()


# ---- files ----


def _made(where: Path) -> frozenset[str]:
    """What an earlier one wrote into *where*; raises ValueError if it wrote none."""
    try:
        facts = json.loads(content(where / RECORD, MAX_BYTES))
    except (OSError, RecursionError):
        facts = None
    if not isinstance(facts, dict) or facts.get("kind") != MARK:
        raise ValueError(f"sweep: {RECORD} must be one of a sweep; write it again")
    return frozenset(FILES)


KIND = folders.Kind("sweep", RECORD, _made)


def _fill(new: Path, found: Sweep) -> list[str]:
    (new / RECORD).write_text(_json(found) + "\n", encoding="utf-8")
    (new / "sweep.csv").write_text(found.to_csv(), encoding="utf-8")
    names = [RECORD, "sweep.csv"]
    if any(row.outcome.time_us is not None for row in found.rows):
        # Loading matplotlib takes longer than a few cells; only pictures need it.
        from npusim.sweeps.page import page
        from npusim.sweeps.picture import write

        (new / PAGE).write_text(page(found), encoding="utf-8")
        names += [write(found, new), PAGE]
    return names


def _json(found: Sweep) -> str:
    return json_text({"kind": MARK} | found.to_json())


# ---- what is printed ----


def _show(found: Sweep, form: RowFormat) -> None:
    match form:
        case RowFormat.CSV:
            typer.echo(found.to_csv(), nl=False)
        case RowFormat.JSON:
            typer.echo(_json(found))
        case RowFormat.TEXT:
            show(Group(_rows(found), *_leaders(found)))


def _rows(found: Sweep) -> Table:
    """A line for each cell: what varies, the time, and the kernel where there are several."""
    names = found.varied or ("device",)
    has_kernels = any(row.outcome.template is not None for row in found.rows)
    named = [label_of(found, name) if name in found.variables else name for name in names]
    listing = table(*named, "time, us", *(("kernel",) if has_kernels else ()))
    listing.columns[len(names)].justify = "right"
    for row in found.rows:
        own, outcome = row.coordinates, row.outcome
        if outcome.error is not None and not row.is_bad:
            continue  # one of all templates that does not take the call
        time = "refused" if outcome.time_us is None else f"{outcome.time_us:.2f}"
        kernel = (outcome.template or "",) if has_kernels else ()
        listing.add_row(*map(Text, (*(str(own[name]) for name in names), time, *kernel)))
    return listing


def _leaders(found: Sweep) -> list[Text]:
    """Which is the fastest where, for those of which another one is so somewhere."""
    crossed = [each for each in leaders(found) if len(each.fastest) > 1]
    return [Text(f"{'' if place else chr(10)}{each}") for place, each in enumerate(crossed)]


def _report_refused(found: Sweep) -> None:
    """Each refused cell on stderr with its message, and exit code 1 if there is one."""
    bad = found.bad
    if not bad:
        return
    typer.echo(f"npusim: sweep: {len(bad)} of {len(found.rows)} cells were refused", err=True)
    for row in bad:
        names = found.varied or ("device",)
        where = ", ".join(f"{name} {row.coordinates[name]}" for name in names)
        typer.echo(f"npusim: {where}: {row.outcome.error}", err=True)
    raise typer.Exit(1)


def _report_partial(partial: Path | None) -> None:
    """Say where an interrupted sweep goes on from."""
    if partial is not None and partial.is_file():
        typer.echo(
            f"npusim: sweep: what is done is in {partial}; the same command goes on", err=True
        )
