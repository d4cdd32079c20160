"""A configuration of an op's kernels at work: can it be launched, is it right, how long does it take?

It is an entry of a table, and works in the module that a spec compiles to with that table. Modules that differ by their
rows alone are one, so that a process loads kernels once.
"""

from __future__ import annotations

import functools
import re
import statistics
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from glagen.bench import Workload
from glagen.bench.measure import median_time, occupier, stopwatch
from glagen.bench.workloads import Call, call
from glagen.candidates import DTYPE, Table
from glagen.errors import Source
from glagen.ir.schedule import Options
from glagen.ir.tuned import (
    ALONE_KERNELS,
    BEYOND,
    CROWDED,
    GIVEN,
    GIVEN_KERNELS,
    HALVED,
    IN_HALVES,
    KEPT_KERNELS,
    ON_CHIP,
    OPERANDS,
    STRONG,
    Tuned,
    merged,
)
from glagen.loader import import_text
from glagen.parse import parse
from glagen.pipeline import compile_spec
from glagen.regimes import REGIMES, Case, draw
from glagen.schedule.tiles import WIDE
from glagen.verify import Results, reference_results, verify

PRECISION = "bf16"
HARD = "neighbours"  # a regime of which all chunks are for the run for strong gates
REPEATS, WARM = 9, 2
BUSY = 3  # milliseconds that a GPU has work for before the op: in those a CPU launches it, and notes when kernels begin


@dataclass(frozen=True, slots=True)
class Oracle:
    """What candidates for a workload are held to: a spec's recurrence, in one case, on a device.

    What it gives is kept in a file, in float64: for wide heads it takes longer than to build a kernel, and some hundred
    MB a regime.
    """

    source: Source
    workload: Workload
    device: torch.device
    case: Case
    file: Path

    def run(self) -> None:
        """Write the file: once for all candidates, before processes share the device."""
        document, given = parse(self.source), {}
        for regime in REGIMES:
            found = reference_results(document, draw(document, regime, self.case), self.device)
            given[regime] = {name: x.cpu() for name, x in found.items()}
        torch.save(given, self.file)


@functools.lru_cache(maxsize=1)
def _expected(file: Path) -> dict[str, Results]:
    """What is in an oracle's file, by regime; once for all that a process checks."""
    return torch.load(file, mmap=True)


def is_built(oracle: Oracle, base: Table, candidate: Tuned) -> bool | None:
    """Can the op be launched on the workload with this configuration, beside a table, by gates that it is for? None: it
    cannot, and the GPU refuses all that this process may ask of it later. What is built lies in Triton's cache, for
    other processes."""
    from triton.errors import TritonError

    document = parse(oracle.source)
    module, rows = _module(oracle.source, merged(base, (candidate,)))
    try:
        with _changed(module, **rows, **_on_chip(module, candidate.kernel)):
            _run(module, document.name, candidate.kernel, timed_on(oracle, candidate.kernel))
        built = True
    except torch.OutOfMemoryError:  # beside other processes: then it is built where it is timed
        built = True
    except (RuntimeError, TritonError):  # a tile that this GPU cannot hold, or that Triton cannot compile
        built = False
    if not _answers(oracle.device):
        return None
    if oracle.device.type == "cuda":
        torch.cuda.empty_cache()
    return built


def is_right(oracle: Oracle, base: Table, candidate: Tuned) -> bool | None:
    """Is the op with this configuration, beside a table, within its budget in every regime? None as in `is_built`."""
    from triton.errors import TritonError

    document, name = parse(oracle.source), _function(candidate.kernel)
    module = import_text(compile_spec(oracle.source, Options(tuned=merged(base, (candidate,)))))
    on_chip = *ON_CHIP, *GIVEN_KERNELS, HALVED, *ALONE_KERNELS, BEYOND, *KEPT_KERNELS
    changes = _on_chip(module, name) if name in on_chip else {}
    changes["_multiprocessors"] = lambda: 0  # so that small extents take it as it is
    try:
        with _changed(module, **changes):
            report = verify(
                document,
                module,
                oracle.device,
                cases=[oracle.case],
                precisions=[PRECISION],
                invariants=False,
                expected=_expected(oracle.file),
            )
        right = report.ok
    except (RuntimeError, TritonError):
        right = False
    return right if _answers(oracle.device) else None


def _answers(device: torch.device) -> bool:
    """Is the GPU done with all it was asked, and without a fault? (H200, Triton 3.6.0: some kernels of 8 warps have a
    misaligned address.) After one it refuses all that this process asks."""
    try:
        if device.type == "cuda":
            torch.cuda.synchronize(device)
    except RuntimeError:
        return False
    return True


def timed_on(oracle: Oracle, kernel: str) -> Call:
    """Tensors for the op: with strong gates for the run that is for these, else with mild ones."""
    regime = HARD if kernel.endswith(STRONG) or kernel == BEYOND else "mild"
    return call(parse(oracle.source), oracle.workload, oracle.device, DTYPE, regime)


def kernel_time(source: Source, kernel: str, table: Table, given: Call) -> float:
    """Milliseconds of a kernel in one call of the op, all its launches together: the median."""
    name, (module, rows) = parse(source).name, _module(source, table)
    launch, wanted = module._launch, getattr(module, f"{name}_{_function(kernel)}_kernel")
    spans: list[Callable[[], float]] = []
    occupy = occupier(given.cotangents[0].device, BUSY)

    def launched(called: Any, programs: int, device: torch.device, *arguments: Any, **options: Any) -> None:
        stop = stopwatch(device)
        launch(called, programs, device, *arguments, **options)
        if called is wanted:
            spans.append(stop())

    totals = []
    with _changed(module, _launch=launched, **rows, **_on_chip(module, kernel)):
        for _ in range(WARM + REPEATS):
            spans.clear()
            occupy()
            _run(module, name, kernel, given)
            assert spans, f"{kernel} was not launched"
            totals.append(sum(span() for span in spans))
    return statistics.median(totals[WARM:])


def op_time(source: Source, table: Table, given: Call) -> float:
    """Milliseconds of the op, forward and backward: the median."""
    name, module = parse(source).name, import_text(compile_spec(source, Options(tuned=table)))
    return median_time(lambda: _run(module, name, "", given), given.cotangents[0].device)


def forward_time(source: Source, table: Table, given: Call) -> float:
    """Milliseconds of the op where no gradient is asked for: the median."""
    op = getattr(import_text(compile_spec(source, Options(tuned=table))), parse(source).name)
    with torch.no_grad():
        return median_time(lambda: op(**given.arguments), given.cotangents[0].device)


# -- modules -----------------------------------------------------------------------------------------------------------

_texts: dict[tuple[str, str], str] = {}  # of modules, by what stands before and after their rows
_CHECKSUM = re.compile(r"(?<=checksum of all else: )\w+|(?<=_)[0-9a-f]{8}(?=\")")  # of what rows are part of, too


def _module(source: Source, table: Table) -> tuple[ModuleType, dict[str, Any]]:
    """A module whose kernels are those of a spec with this table, and the rows that it is to have for that."""
    text = compile_spec(source, Options(tuned=table))
    before, begin, rest = text.partition("\nTUNED = {\n")
    rows, _, after = rest.partition("\n}\n")
    beside = _CHECKSUM.sub("", before), _CHECKSUM.sub("", after)
    module = import_text(_texts.setdefault(beside, text))
    return module, {"TUNED": eval(f"{{{rows}}}", {"torch": torch})} if begin else {}


@contextmanager
def _changed(module: ModuleType, **names: Any) -> Iterator[None]:
    """A module with other functions and tables in the place of its own, for a while: the same text is the same module.
    Meanwhile no call repeats what an earlier one launched, as it would on a GPU, past these functions."""
    names |= {"_alike_in": lambda *_: None}
    before = {name: vars(module)[name] for name in names}
    vars(module).update(names)
    try:
        yield
    finally:
        vars(module).update(before)


def _function(kernel: str) -> str:
    """The kernel that an entry is for."""
    return kernel.removesuffix(CROWDED).removesuffix(STRONG).removesuffix(IN_HALVES)


def _on_chip(module: ModuleType, kernel: str) -> dict[str, Callable[..., Any]]:
    """In the place of a module's own functions: this kernel alone keeps the state on chip; or the forward, if it makes
    scores, or operands, for that alone, adds what that leaves out, or goes with what that keeps."""
    functions = [name for name in ("_stays_on_chip", "_takes_over", "_is_alone") if hasattr(module, name)]
    walk = GIVEN if kernel == f"scores{IN_HALVES}" or _function(kernel) == OPERANDS else _function(kernel)
    if walk in (BEYOND, *KEPT_KERNELS) or (walk == "scores" and not hasattr(module, "_scores_triton")):
        walk = "fused"
    return dict.fromkeys(functions, lambda name, *_: name == walk)


def _run(module: ModuleType, name: str, kernel: str, given: Call) -> None:
    """The op, forward and backward, in the mode that launches this kernel: what walks on chip stores states as well, if
    it ever does for keys of so many columns."""
    keys = [x for n, x in given.arguments.items() if module._LAYOUT.get(n, "").endswith("K")]
    K = max((x.shape[-1] for x in keys if isinstance(x, torch.Tensor)), default=0)
    widest = min(WIDE, getattr(module, "WIDEST", {}).get("fused", 0))  # of more columns that depends on what is tried
    stores = not kernel.endswith((CROWDED, HALVED)) and (kernel != "fused" or widest >= K)
    *outputs, _ = getattr(module, name)(**given.arguments, states="saved" if stores else "recomputed")
    torch.autograd.grad(outputs, given.leaves, given.cotangents)
