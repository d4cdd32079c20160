"""What commands share: arguments and options, and how faults and progress are shown."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
from rich.console import Console

from glagen.errors import SpecError
from glagen.ir.schedule import COVERS
from glagen.ir.tuned import Tuned, read_table

SELDOM = 30.0  # seconds between lines of progress in a log
SPECS = click.argument("specs", nargs=-1, required=True, type=click.Path(path_type=Path))
SPEC = click.argument("spec", type=click.Path(path_type=Path))
COVER = click.option("--cover", type=click.Choice(COVERS), default="auto", help="How vector gates are tiled.")
DEVICE = click.option("--device", help="cuda, cpu, ...; the GPU if there is one.")
JOBS = click.option(
    "--jobs",
    type=click.IntRange(1),
    help="Processes; for a GPU, where building kernels takes longest, as many as processors, up to 16.",
)
WORKLOAD = click.option(
    "--workload", "names", multiple=True, help="Extents to measure (may be repeated); all unless given."
)


def each(specs: tuple[Path, ...], work: Callable[[Path], bool]) -> None:
    """Do `work` for every spec; every bad one is reported before the exit code is chosen."""
    worst = 0
    for path in specs:
        try:
            worst = max(worst, 0 if work(path) else 1)
        except SpecError as error:
            click.echo(error.render(), err=True)
            worst = 2
        except ChildProcessError as error:
            click.echo(f"{path}: {error}", err=True)
            worst = max(worst, 1)
        except OSError as error:
            click.echo(f"{error.filename or path}: {error.strerror or error}", err=True)
            worst = 2
    sys.exit(worst)


def progress(quiet: bool) -> Any:
    """A context whose value takes lines of progress: on a terminal the last shows, elsewhere some (`SELDOM`)."""
    from contextlib import contextmanager

    @contextmanager
    def shown() -> Any:
        console = Console(stderr=True)
        if quiet:
            yield lambda text: None
        elif console.is_terminal:
            with console.status("starting") as status:
                yield status.update
        else:
            yield _seldom()

    return shown()


def _seldom() -> Callable[[str], None]:
    last = time.monotonic()

    def say(text: str) -> None:
        nonlocal last
        if time.monotonic() - last >= SELDOM:
            last = time.monotonic()
            click.echo(text, err=True)

    return say


def text_of(path: Path) -> str | None:
    """What is in a file, if there is one; what is no text comes out as something that glagen did not write."""
    return path.read_text(encoding="utf-8", errors="replace") if path.is_file() else None


def table_of(path: Path) -> tuple[Tuned, ...]:
    try:
        return read_table(path)
    except (ValueError, OSError) as error:
        raise click.UsageError(str(error)) from None


def workloads_of(names: tuple[str, ...]) -> list[Any]:
    """Those of these names, or all."""
    from glagen.bench import WORKLOADS

    for name in names:
        if name not in WORKLOADS:
            raise click.UsageError(f"unknown workload {name!r}: expected one of {', '.join(WORKLOADS)}")
    return [WORKLOADS[n] for n in names or WORKLOADS]


def device_of(name: str | None) -> str:
    import torch

    if name is None:
        return "cuda" if torch.cuda.is_available() else "cpu"
    try:
        torch.empty(0, device=name).sum().item()
    except (RuntimeError, AssertionError) as error:
        raise click.UsageError(f"device {name!r} is not to be had: {str(error).splitlines()[0]}") from None
    return name
