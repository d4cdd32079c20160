"""Configurations of an op's kernels, measured: those that are right and faster than the rule's.

Every candidate is first held to the recurrence, in processes of their own, for building kernels takes longest; those
that pass are then timed one after another, each kernel where the op launches it.
"""

from __future__ import annotations

import itertools
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import torch

from glagen.bench import Workload
from glagen.bench.workloads import Call, call
from glagen.errors import Source
from glagen.ir.kernel import Kernel
from glagen.ir.schedule import Ensemble, Options, Schedule
from glagen.ir.tuned import Tuned
from glagen.jobs import KILLED, processes
from glagen.loader import import_text
from glagen.parse import parse
from glagen.pipeline import compile_spec, plan
from glagen.regimes import Case
from glagen.schedule.tiles import gated_sides
from glagen.verify import verify

DTYPE = torch.bfloat16
PRECISION = "bf16"
GAIN = 0.97  # of the rule's time: what is not faster than that may be noise
REPEATS = 9
COLUMNS = (32, 64, 128)
WARPS = (2, 4, 8)
STAGES = (1, 2, 3)
FEWEST, MOST = 4, 128  # numbers of a tile that a thread holds
CHUNKS = 3  # in the sequences that candidates are checked on, and a bit

Row = tuple[int, int, int, int]  # columns of K and of V in a tile, warps, stages
Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Task:
    """A kernel with one configuration."""

    kernel: str
    row: Row


def tune(
    source: Source, device: torch.device, workloads: Sequence[Workload], jobs: int, say: Say = lambda text: None
) -> Iterator[Tuned]:
    """What is worth keeping for a spec's kernels, workload by workload. Raises SpecError; ValueError for a spec of
    several states, whose kernels have products of their own, and where kernels do not run; ChildProcessError if a
    process was killed.
    """
    options = Options(tuned=())
    planned = plan(parse(source), options)
    if isinstance(planned, Ensemble):
        raise ValueError("an op of several states multiplies in float32, for which nothing is tuned")
    text = compile_spec(source, options)
    module = import_text(text)
    if not _on(module, device):
        raise ValueError(f"kernels do not run on {device}")
    for workload in workloads:
        yield from _of_workload(source, text, module, planned, workload, device, jobs, say)


def _on(module: ModuleType, device: torch.device) -> bool:
    """Do kernels run there?"""
    return bool(module._on_triton(torch.empty(0, device=device, dtype=DTYPE)))


def candidates(kernel: Kernel, K: int, V: int) -> tuple[Row, ...]:
    """Configurations worth trying for heads of K by V: tiles no wider than these, that threads can hold."""
    keys, values = (sorted({min(size, _class(extent)) for size in COLUMNS}) for extent in (K, V))
    keys = [_class(K)] if "i" in kernel.whole else keys
    return tuple(
        (key, value, warps, stages)
        for key, value, warps, stages in itertools.product(keys, values, WARPS, STAGES)
        if FEWEST <= key * value / (32 * warps) <= MOST
    )


def _class(extent: int) -> int:
    """The power of two that a table has for an extent."""
    return max(16, 1 << (extent - 1).bit_length())


def _of_workload(
    source: Source,
    text: str,
    module: ModuleType,
    planned: Schedule,
    workload: Workload,
    device: torch.device,
    jobs: int,
    say: Say,
) -> Iterator[Tuned]:
    kernels = [k for k in planned.kernels if not (k.whole and planned.widest_fused < workload.K)]
    tasks = [Task(k.name, row) for k in kernels for row in candidates(k, workload.K, workload.V)]
    say(f"{workload.name}: checking {len(tasks)} configurations")
    right = _right(source, text, tasks, workload, str(device), jobs, say)
    document = parse(source)
    given = call(document, workload, device, DTYPE)
    for kernel in kernels:
        rule = _time(module, document.name, kernel.name, given, None)
        times = {}
        for task in right:
            if task.kernel == kernel.name:
                say(f"{workload.name}: {kernel.name} {task.row}")
                times[task.row] = _time(module, document.name, kernel.name, given, task.row)
        best = min(times, key=lambda row: times[row], default=None)
        if best is not None and times[best] < GAIN * rule:
            yield Tuned(
                architecture=module._capability(),
                gates=gated_sides(planned.program),
                chunk=planned.chunk,
                kernel=kernel.name,
                dtype=str(DTYPE).removeprefix("torch."),
                K=_class(workload.K),
                V=_class(workload.V),
                block_K=best[0],
                block_V=best[1],
                warps=best[2],
                stages=best[3],
                rule=round(rule, 4),
                measured=round(times[best], 4),
                workload=str(workload),
                device=_described(device),
            )


def _described(device: torch.device) -> str:
    import triton

    name = torch.cuda.get_device_name(device) if device.type == "cuda" else str(device)
    return f"{name}, torch {torch.__version__}, Triton {triton.__version__}"


def _right(
    source: Source, text: str, tasks: list[Task], workload: Workload, device: str, jobs: int, say: Say
) -> list[Task]:
    """Those that can be launched, and pass."""
    given = [(source, text, task, workload, device) for task in tasks]
    if jobs == 1:
        return [task for task, fine in zip(tasks, itertools.starmap(_is_right, given), strict=True) if fine]
    found = []
    with processes(jobs) as pool:
        for n, (task, fine) in enumerate(zip(tasks, [pool.submit(_is_right, *x) for x in given], strict=True)):
            say(f"{workload.name}: checked {n} of {len(tasks)} configurations")
            try:
                found += [task] if fine.result() else []
            except BrokenProcessPool:
                raise ChildProcessError(KILLED) from None
    return found


def _is_right(source: Source, text: str, task: Task, workload: Workload, device: str) -> bool:
    """Is the op with this configuration within its budget, in every regime? Builds what the workload launches, too."""
    from triton.errors import TritonError

    document, module = parse(source), import_text(text)
    _configure(module, task.kernel, task.row)
    case = Case(1, CHUNKS * module.CHUNK + 5, 2, workload.K, workload.V)
    try:
        report = verify(document, module, device, cases=[case], precisions=[PRECISION], invariants=False)
        if report.ok:
            _run(module, document.name, call(document, workload, torch.device(device), DTYPE), task.kernel)
    except (RuntimeError, TritonError):  # a tile that this GPU cannot hold, or that Triton cannot compile
        return False
    return report.ok


def _configure(module: ModuleType, kernel: str, row: Row) -> None:
    """Lets a kernel of the module have this configuration, whatever the type of its inputs."""
    key, value, *rest = row
    module.TILES[kernel] = ((key, value),) * 3 + tuple(rest)


def _run(module: ModuleType, name: str, given: Call, kernel: str) -> None:
    """The op, forward and backward, in the mode that launches this kernel."""
    *outputs, _ = getattr(module, name)(**given.arguments, states="recomputed" if kernel == "fused" else "saved")
    torch.autograd.grad(outputs, given.leaves, given.cotangents)


def _time(module: ModuleType, name: str, kernel: str, given: Call, row: Row | None) -> float:
    """Milliseconds of a kernel in one call of the op of that name: the median. The rule's without a row."""
    before, launch, wanted = module.TILES[kernel], module._launch, getattr(module, f"{name}_{kernel}_kernel")
    spans: list[Callable[[], float]] = []

    def launched(called: Any, programs: int, device: torch.device, *arguments: Any, **options: Any) -> None:
        if called is not wanted:
            return launch(called, programs, device, *arguments, **options)
        stop = _stopwatch(device)
        launch(called, programs, device, *arguments, **options)
        spans.append(stop())

    if row is not None:
        _configure(module, kernel, row)
    vars(module)["_launch"] = launched
    try:
        totals = []
        for _ in range(REPEATS):
            spans.clear()
            _run(module, name, given, kernel)
            totals.append(sum(span() for span in spans))
        return statistics.median(totals[2:])
    finally:
        vars(module)["_launch"], module.TILES[kernel] = launch, before


def _stopwatch(device: torch.device) -> Callable[[], Callable[[], float]]:
    """Begins to measure; stops when called, and then tells milliseconds when called."""
    if device.type != "cuda":
        begun = time.perf_counter()

        def stop() -> Callable[[], float]:
            span = 1e3 * (time.perf_counter() - begun)
            return lambda: span

        return stop
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()

    def stop_on_gpu() -> Callable[[], float]:
        end.record()

        def span() -> float:
            end.synchronize()
            return start.elapsed_time(end)

        return span

    return stop_on_gpu
