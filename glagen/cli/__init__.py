"""The command line. Exit codes: 0 fine, 1 a check failed, 2 a bad spec or bad usage."""

from __future__ import annotations

import json
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import click
from rich.console import Console

from glagen import __version__
from glagen.cli.options import (
    COVER,
    DEVICE,
    JOBS,
    SPEC,
    SPECS,
    WORKLOAD,
    device_of,
    each,
    progress,
    table_of,
    text_of,
    workloads_of,
)
from glagen.emit import is_of, is_ours
from glagen.errors import SpecError
from glagen.files import write_text
from glagen.ir.document import Document
from glagen.ir.schedule import Options
from glagen.ir.tuned import merged, write_table
from glagen.parse import parse, read
from glagen.pipeline import compile_spec, plan
from glagen.schedule.tiles import shipped


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__, prog_name="glagen")
def main() -> None:
    """Compile specs of gated linear recurrences to Triton kernels with autograd."""


@main.command("compile")
@SPECS
@click.option("-o", "--output", type=click.Path(path_type=Path, file_okay=False), default=Path("generated"),
              show_default=True, help="Folder for the modules.")  # fmt: skip
@click.option("--check", "only_check", is_flag=True, help="Write nothing; exit 1 unless the modules are fresh.")
@click.option("--force", is_flag=True, help="Overwrite files that were edited or are not glagen's.")
@click.option("--target", "targets", multiple=True, help="Also build the kernels ahead of time: sm_80, sm_90, ...")
@click.option("--tuned", type=click.Path(path_type=Path, exists=True, dir_okay=False),
              help="A table by `glagen tune`, beside the one that glagen comes with.")  # fmt: skip
@COVER
def compile_command(
    specs: tuple[Path, ...],
    output: Path,
    only_check: bool,
    force: bool,
    targets: tuple[str, ...],
    tuned: Path | None,
    cover: str,
) -> None:
    """Write the module of each SPEC."""
    options = Options(cover, merged(shipped(), table_of(tuned)) if tuned else None)
    _check_targets(targets)
    made: dict[Path, Path] = {}  # modules, and the specs they are of

    def work(path: Path) -> bool:
        source = read(path)
        text = compile_spec(source, options)
        name = parse(source).name
        place = output / f"{name}.py"
        if made.setdefault(place, path) != path:
            click.echo(f"{path}: its name is `{name}`, like that of {made[place]}: both would be {place}", err=True)
            return False
        present = text_of(place)
        if only_check:
            state = "fresh" if present == text else "missing" if present is None else "stale"
            click.echo(f"{place}: {state}")
            return state == "fresh"
        if present is not None and present != text and not is_ours(present) and not force:
            click.echo(f"{place}: not as glagen wrote it; move it away, or overwrite it with --force", err=True)
            return False
        if present != text:
            write_text(place, text)
        click.echo(f"{path} -> {place}")
        return _build(text, parse(source), targets)

    each(specs, work)


def _check_targets(targets: tuple[str, ...]) -> None:
    if not targets:
        return
    try:
        from glagen.targets import parse_target

        for target in targets:
            parse_target(target)
    except ImportError:
        raise click.UsageError("--target needs triton, which is not installed") from None
    except ValueError as error:
        raise click.UsageError(str(error)) from None


def _build(text: str, document: Document, targets: tuple[str, ...]) -> bool:
    """Build kernels for head sizes of 128 in bfloat16 and say what they cost; do all fit?"""
    import torch

    from glagen.loader import import_text
    from glagen.targets import build

    fits = True
    for target in targets:
        for b in build(import_text(text), document, target, torch.bfloat16, 128, 128):
            click.echo(
                f"  {target} {b.kernel} {b.dtype} K{b.K} V{b.V}: {b.shared} of {b.shared_limit} bytes shared, "
                f"{b.registers} registers, {b.spills} bytes spilled, {' '.join(b.mma) or 'no tensor cores'}"
                f"{'' if b.fits else ': DOES NOT FIT'}"
            )
            fits = fits and b.fits
    return fits


@main.command()
@SPEC
@click.option("--format", "form", type=click.Choice(("text", "latex")), default="text", show_default=True)
@COVER
def explain(spec: Path, form: str, cover: str) -> None:
    """Say how SPEC was understood, derived and scheduled."""

    def work(path: Path) -> bool:
        from glagen.explain import explain as explained

        document = parse(read(path))
        click.echo(explained(document, plan(document, Options(cover=cover)), form), nl=False)
        return True

    each((spec,), work)


@main.command()
@SPECS
@DEVICE
@click.option("--json", "as_json", is_flag=True, help="Print every comparison as JSON, a line for each SPEC.")
@click.option("--regime", "regimes", multiple=True, help="Gates to draw (may be repeated); all unless given.")
@JOBS
@COVER
def check(
    specs: tuple[Path, ...], device: str | None, as_json: bool, regimes: tuple[str, ...], jobs: int | None, cover: str
) -> None:
    """Verify the op of each SPEC against the float64 recurrence, here and now."""
    from glagen.jobs import default_jobs, workers
    from glagen.regimes import REGIMES

    for regime in regimes:
        if regime not in REGIMES:
            raise click.UsageError(f"unknown regime {regime!r}: expected one of {', '.join(REGIMES)}")
    place = device_of(device)
    options = Options(cover=cover)

    with workers(jobs or default_jobs(place)) as start:

        def begin(path: Path) -> Any:
            return start(read(path), options, place, regimes or REGIMES)

        begun = {}
        for path in specs:
            with suppress(SpecError, OSError):  # told in its turn
                begun[path] = begin(path)

        def work(path: Path) -> bool:
            finish = begun.get(path) or begin(path)
            with progress(as_json) as say:
                report = finish(say)
            if as_json:
                click.echo(json.dumps(report.to_dict()))
            else:
                Console(width=None if sys.stdout.isatty() else 120).print(report.table())
            return report.ok

        each(specs, work)


@main.command()
@SPEC
@DEVICE
@click.option("-o", "--output", type=click.Path(path_type=Path, file_okay=False), default=Path("generated"),
              show_default=True, help="Folder of the module.")  # fmt: skip
def run(spec: Path, device: str | None, output: Path) -> None:
    """Run the compiled module of SPEC forward and backward on random tensors, and say what happened."""
    place = device_of(device)

    def work(path: Path) -> bool:
        from glagen.trial import trial

        source = read(path)
        document = parse(source)
        module = output / f"{document.name}.py"
        found = text_of(module)
        if found is None or not is_of(found, source):
            state = "no such file" if found is None else f"not compiled from {path} as it is now"
            click.echo(f"{module}: {state}; `glagen compile {path} -o {output}` writes it", err=True)
            return False
        lines, ok = trial(document, module, place)
        click.echo("\n".join(lines))
        return ok

    each((spec,), work)


@main.command()
@click.option("--count", type=click.IntRange(1), default=10_000, show_default=True, help="Specs to try in all.")
@click.option("--seed", type=int, default=0, show_default=True, help="Other specs for another seed.")
@click.option("--log", type=click.Path(path_type=Path, dir_okay=False), default=Path("fuzz.jsonl"), show_default=True,
              help="What was tried; a run goes on where this ends.")  # fmt: skip
def fuzz(count: int, seed: int, log: Path) -> None:
    """Compile random specs and compare them with their recurrences, until COUNT are done."""
    from glagen.fuzz import fuzz as tried

    def told(done: int, faults: int) -> None:
        click.echo(f"{done} of {count} tried, {faults} with a fault")

    try:
        found = tried(seed, count, log, told)
    except OSError as error:
        raise click.UsageError(f"{log}: {error.strerror or error}") from None
    except ValueError as error:
        raise click.UsageError(str(error)) from None
    for entry in found:
        click.echo(
            f"\nnumber {entry['number']}, {entry['case']}, gates {entry['regime']}: {entry['fault']}\n{entry['spec']}"
        )
    sys.exit(1 if found else 0)


@main.command()
@SPEC
@DEVICE
@WORKLOAD
@click.option("--figure", is_flag=True, help="Instead, time against T as in the GLA paper's Figure 2, with a plot.")
@click.option("--cold", is_flag=True, help="Also a first call in a new process with an empty kernel cache.")
@click.option("--segment", type=click.IntRange(min=1), help="Steps of a sequence at a time, for less memory.")
@click.option("-o", "--output", type=click.Path(path_type=Path, file_okay=False), default=Path("bench"),
              show_default=True, help="Folder for NAME.json and NAME.png.")  # fmt: skip
def bench(spec: Path, device: str | None, names: tuple[str, ...], figure: bool, cold: bool, segment: int | None,
          output: Path) -> None:  # fmt: skip
    """Time the op of SPEC in bfloat16, next to the memory's floor and to peers that are installed."""
    from glagen.bench import FIGURE_2

    named = workloads_of(names)
    place = device_of(device)
    workloads = FIGURE_2 if figure else named

    def work(path: Path) -> bool:
        import torch

        from glagen import bench as benching
        from glagen.loader import load

        source = read(path)
        document, module, where = parse(source), load(source), torch.device(place)
        results, partial = (output / f"{document.name}{end}" for end in (".json", ".partial.json"))
        for file in (results, partial):
            if not benching.may_replace(file):
                click.echo(f"{file}: not written by `glagen bench`; move it away, or name another folder", err=True)
                return False
        name = torch.cuda.get_device_name(where) if where.type == "cuda" else place
        rows: list[benching.Measurement] = []

        def keep(file: Path, first: float | None = None) -> None:
            kept = {"device": name, "torch": torch.__version__, "cold": first, "segment": segment}
            write_text(file, json.dumps(kept | {"rows": [row.to_dict() for row in rows]}, indent=1))

        with progress(False) as say:
            for row in benching.bench(document, module, workloads, where, torch.bfloat16, say, segment):
                rows.append(row)
                keep(partial)  # a peer may tune for minutes: what is cut short has what was measured
            try:
                first = benching.cold_start(path, module, where) if cold else None
            except RuntimeError as error:
                click.echo(f"{path}: a first call in a new process failed: {error}", err=True)
                return False
        Console(width=None if sys.stdout.isatty() else 140).print(benching.table(document.name, rows))
        if first is not None:
            click.echo(f"first forward and backward in a new process, on `small`: {first:.1f} s")
        keep(results, first)
        partial.unlink(missing_ok=True)
        if figure and not benching.plot(document.name, rows, [w.T for w in workloads], output / f"{document.name}.png"):
            click.echo("no plot: matplotlib is not installed", err=True)
        return all(row.forward is not None for row in rows if row.contender == "glagen")

    each((spec,), work)


@main.command()
@SPECS
@DEVICE
@WORKLOAD
@JOBS
@click.option("-o", "--output", type=click.Path(path_type=Path, dir_okay=False), default=Path("tuned.json"),
              show_default=True, help="The table; what it has for other kernels stays.")  # fmt: skip
def tune(specs: tuple[Path, ...], device: str | None, names: tuple[str, ...], jobs: int | None, output: Path) -> None:
    """Measure configurations of the kernels of each SPEC, and keep those that are right and faster than the rule's."""
    workloads = workloads_of(names)
    table = table_of(output) if output.exists() else ()
    place = device_of(device)

    def work(path: Path) -> bool:
        nonlocal table
        import torch

        from glagen.jobs import default_jobs
        from glagen.tune import tune as tuning

        try:
            with progress(False) as say:
                for x in tuning(read(path), torch.device(place), workloads, jobs or default_jobs(place), say):
                    table = merged(table, [x])
                    write_table(output, table)
                    times = f"{x.measured:.3f} ms, the rule's {x.rule:.3f}"
                    click.echo(f"{path} {x.workload} {x.kernel}: {x.configuration}: {times}")
        except ValueError as error:
            click.echo(f"{path}: {error}", err=True)
            return False
        click.echo(f"{path}: done")
        return True

    each(specs, work)
