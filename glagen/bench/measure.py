"""Times, memory and cold starts, and what they are measured against."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from glagen.bench.peers import Forward, leaves_of, peers
from glagen.bench.workloads import Call, Workload, call
from glagen.ir.document import Document

REPEATS = 20
FLUSHED = 256 * 2**20  # bytes written between two runs: more than any L2 holds
AHEAD = 16  # times, which take a GPU a millisecond: in that a CPU launches all of a forward and backward
COPIED = 2**30


@dataclass(frozen=True, slots=True)
class Measurement:
    """Milliseconds of one contender on one workload, forward and with backward; None where it cannot run.

    `memory`: most bytes in use during both, beyond arguments, outputs and gradients. `cpu`: microseconds until a
    forward call returns. `floor`: milliseconds in which the memory could be read and written once.
    """

    contender: str
    workload: str
    extents: str
    forward: float | None
    both: float | None
    forward_floor: float
    both_floor: float
    memory: int
    cpu: float
    fault: str = ""

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def bench(
    document: Document,
    module: ModuleType,
    workloads: Sequence[Workload],
    device: torch.device,
    dtype: torch.dtype,
    say: Callable[[str], None] = lambda text: None,
    segment: int | None = None,
) -> Iterator[Measurement]:
    """The op of `module`, in segments if these are given, and every peer that is there, on each workload."""
    say("memory bandwidth")
    bandwidth = copy_bandwidth(device)
    op = getattr(module, document.name)
    for workload in workloads:
        given = call(document, workload, device, dtype)
        floors = (1e3 * given.forward_bytes / bandwidth, 1e3 * given.both_bytes / bandwidth)

        def ours(given: Call = given) -> tuple[Tensor, ...]:
            *outputs, _ = op(**given.arguments, segment=segment)
            return tuple(outputs)

        for name, forward in [("glagen", ours), *peers(document.name, given)]:
            say(f"{workload.name}: {name}")
            yield _measured(name, workload, forward, given, floors)
        del given
        _release(device)


def _measured(name: str, workload: Workload, forward: Forward, given: Call, floors: tuple[float, float]) -> Measurement:
    device = given.cotangents[0].device
    result = Measurement(name, workload.name, str(workload), None, None, *floors, memory=0, cpu=0.0)
    try:
        leaves = given.leaves if name == "glagen" else leaves_of(forward)

        def both() -> tuple[Tensor, ...]:
            outputs = forward()
            return torch.autograd.grad(outputs, leaves, given.cotangents[: len(outputs)])

        memory = _memory(both, given, device)
        with torch.no_grad():
            once, cpu = median_time(forward, device), _cpu(forward, device)
        return replace(result, forward=once, both=median_time(both, device), memory=memory, cpu=cpu)
    except (RuntimeError, AssertionError, ValueError, TypeError) as error:  # peers have limits of their own
        fault = f"{type(error).__name__}: {str(error).strip().splitlines()[0][:120] if str(error).strip() else ''}"
        return replace(result, fault=fault)


def median_time(work: Callable[[], Any], device: torch.device) -> float:
    """Milliseconds, of REPEATS runs after three that do not count, each with nothing of its inputs in the cache. A GPU
    is kept busy until all of a run is launched, as in a CUDA graph: how long the CPU takes is measured apart."""
    for _ in range(3):
        work()
    times, occupy = [], occupier(device)
    for _ in range(REPEATS if device.type == "cuda" else 3):
        occupy()
        stop = stopwatch(device)
        work()
        times.append(stop()())
    return statistics.median(times)


def occupier(device: torch.device, milliseconds: int = 1) -> Callable[[], None]:
    """What keeps a GPU busy for so long when called, and leaves nothing of other tensors in its cache."""
    if device.type != "cuda":
        return lambda: None
    flush = torch.empty(FLUSHED, dtype=torch.int8, device=device)

    def occupy() -> None:
        for _ in range(milliseconds * AHEAD):
            flush.zero_()

    return occupy


def stopwatch(device: torch.device) -> Callable[[], Callable[[], float]]:
    """Begins to measure; stops when called, and then tells milliseconds when called: on a GPU, of what was queued
    meanwhile, for which that waits."""
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


def _cpu(work: Callable[[], Any], device: torch.device) -> float:
    """Microseconds until a call returns, which on a GPU is before its work is done."""
    times = []
    for _ in range(REPEATS):
        _wait(device)
        begun = time.perf_counter()
        work()
        times.append(1e6 * (time.perf_counter() - begun))
    _wait(device)
    return statistics.median(times)


def _memory(both: Callable[[], tuple[Tensor, ...]], given: Call, device: torch.device) -> int:
    if device.type != "cuda":
        both()
        return 0
    both()
    torch.cuda.reset_peak_memory_stats(device)
    before = torch.cuda.memory_allocated(device)
    gradients = both()
    kept = sum(x.numel() * x.element_size() for x in (*gradients, *given.cotangents))
    return max(0, torch.cuda.max_memory_allocated(device) - before - kept)


def copy_bandwidth(device: torch.device) -> float:
    """Bytes a second, read and written, of a plain copy."""
    size = COPIED if device.type == "cuda" else COPIED // 64
    source, target = (torch.zeros(size, dtype=torch.int8, device=device) for _ in range(2))
    return 2 * size / (1e-3 * median_time(lambda: target.copy_(source), device))


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()


def _release(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.empty_cache()


COLD = """
import sys, time
import torch
from pathlib import Path
from glagen.bench.workloads import WORKLOADS, call
from glagen.loader import import_path
from glagen.parse import parse, read
document = parse(read(Path(sys.argv[1])))
module = import_path(Path(sys.argv[2]), "cold")
device = torch.device(sys.argv[3])
given = call(document, WORKLOADS["small"], device, torch.bfloat16)
begun = time.perf_counter()
*outputs, _ = getattr(module, document.name)(**given.arguments)
torch.autograd.grad(outputs, given.leaves, given.cotangents)
if device.type == "cuda":
    torch.cuda.synchronize()
print(time.perf_counter() - begun)
"""


def cold_start(spec: Path, module: ModuleType, device: torch.device) -> float:
    """Seconds of a first forward and backward in a new process with an empty kernel cache."""
    assert module.__file__
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-c", COLD, str(spec), module.__file__, str(device)]
        run = subprocess.run(command, capture_output=True, text=True, env=os.environ | {"TRITON_CACHE_DIR": folder})
    if run.returncode:
        raise RuntimeError(run.stderr.strip()[-300:])
    return float(run.stdout.splitlines()[-1])
