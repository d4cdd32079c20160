"""Configurations of an op's kernels, measured: those that are right and faster than the rule's.

A candidate is an entry of a table, and is tried in the module that a spec compiles to with that entry. Every one is
first held to the recurrence, in processes of their own, for building kernels takes longest; those that pass are then
timed one after another, each kernel where the op launches it. Whether a kernel of their own makes the scores
(schedule/apart.py) is tried as a whole, with the best configurations of all that it concerns; and so are one kernel for
all gradients (schedule/alone.py), a backward whose kernels share operands (schedule/given.py), and walks on chip that
are given theirs, in chunks of 64 steps, which are twice as many where there are gates.
"""

from __future__ import annotations

import functools
import itertools
import statistics
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from types import ModuleType
from typing import Any

import torch

from glagen.bench import Workload
from glagen.bench.measure import occupier, stopwatch
from glagen.bench.workloads import Call, call
from glagen.candidates import (
    DTYPE,
    Table,
    all_gradients,
    candidates,
    operands_shared,
    scores_apart,
    tile,
    turned,
    walks_given,
)
from glagen.errors import Source
from glagen.ir.kernel import Kernel
from glagen.ir.schedule import Ensemble, Options, Schedule
from glagen.ir.tuned import ALONE, CROWDED, GIVEN, GIVEN_KERNELS, STRONG, Tuned, merged
from glagen.jobs import answers
from glagen.loader import import_text
from glagen.parse import parse
from glagen.pipeline import compile_spec, plan
from glagen.regimes import REGIMES, Case, draw
from glagen.schedule.tiles import GIVEN_TILES, ON_CHIP, WIDE, differs, gated_sides, has_room
from glagen.verify import Results, reference_results, verify

PRECISION = "bf16"
HARD = "neighbours"  # a regime of which all chunks are for the run for strong gates
GAIN = 0.97  # of the rule's time: what is not faster than that may be noise
REPEATS, WARM = 9, 2
BUSY = 3  # milliseconds that a GPU has work for before the op: in those a CPU launches it, and notes when kernels begin
CHUNKS = 9  # in the sequences that candidates are checked on, and a bit: more than a program takes in turn
HEADS = 8  # of those: the gradient of a scalar gate is one sum a head, of few of which most may be small by chance

Say = Callable[[str], None]


def tune(
    source: Source, device: torch.device, workloads: Sequence[Workload], jobs: int, say: Say = lambda text: None
) -> Iterator[Tuned]:
    """What is worth keeping for a spec's kernels, workload by workload.

    Raises SpecError; ValueError for a spec of several states, whose kernels have products of their own, and where
    kernels do not run; ChildProcessError if a process was killed.
    """
    planned = plan(parse(source), Options(tuned=()))
    if isinstance(planned, Ensemble):
        raise ValueError("an op of several states multiplies in float32, for which nothing is tuned")
    if not import_text(compile_spec(source, Options(tuned=())))._on_triton(torch.empty(0, device=device, dtype=DTYPE)):
        raise ValueError(f"kernels do not run on {device}")
    for workload in workloads:
        walks = walks_given(planned, workload, device)
        other = _planned(source, walks)
        doubles = bool(other.doubled) and (workload.K > WIDE or gated_sides(planned.program) == "s")
        fits = GIVEN_TILES.bfloat16[0] >= workload.K and GIVEN in {k.name for k in other.kernels}
        with TemporaryDirectory() as folder:
            case = Case(2, CHUNKS * planned.chunk * (2 if doubles else 1) + 5, HEADS, workload.K, workload.V)
            oracle = Oracle(source, workload, device, case, Path(folder, "expected.pt"))
            say(f"{workload.name}: running the recurrence")
            oracle.run()
            given = call(parse(source), workload, device, DTYPE)
            found: Table = ()
            for x in _tuned(planned, oracle, given, jobs, say):
                found = merged(found, (x,))
                yield x
            if doubles or (fits and not other.doubled):
                more = tuple(_measured(oracle, given, jobs, say, walks))
                say(f"{workload.name}: timing the op")
                if _gains(source, found, more, given):
                    yield from more


def _planned(source: Source, table: Table) -> Schedule:
    planned = plan(parse(source), Options(tuned=table))
    assert isinstance(planned, Schedule)
    return planned


def _tuned(planned: Schedule, oracle: Oracle, given: Call, jobs: int, say: Say) -> Iterator[Tuned]:
    """What is worth keeping for one workload, in chunks of as many steps as the rule says."""
    source, workload, device = oracle.source, oracle.workload, oracle.device
    plain: Table = ()
    for x in _measured(oracle, given, jobs, say, ()):
        plain += (x,)
        yield x
    one_each = ((scores_apart(planned, workload, device),), (all_gradients(planned, workload, device),))
    for base in (*one_each, operands_shared(planned, workload, device)):
        wanted = {x.kernel for x in base}
        if not wanted <= {k.name for k in _planned(source, base).kernels}:
            continue  # of other specs
        more = tuple(_measured(oracle, given, jobs, say, base))
        say(f"{workload.name}: timing the op")
        if wanted <= {x.kernel for x in more} and _gains(source, plain, more, given):
            plain = merged(plain, more)
            yield from more


def _measured(oracle: Oracle, given: Call, jobs: int, say: Say, base: Table) -> Iterator[Tuned]:
    """The best for each kernel that is faster than by the rule, or in `base`: of those that it concerns, which are all
    if it has chunks of more steps."""
    source, workload, device = oracle.source, oracle.workload, oracle.device
    planned, based = _planned(source, base), {x.kernel for x in base}
    walks = GIVEN_KERNELS if based & {*GIVEN_KERNELS} else (*ON_CHIP, ALONE)
    kernels = [k for k in planned.kernels if not k.whole or (k.tiles.bfloat16[0] >= workload.K and k.name in walks)]
    if based and not planned.doubled:
        kernels = [k for k in kernels if k.name in based or (k.ready and based == {"scores"})]
    tried = [x for kernel in kernels for x in candidates(planned, kernel, workload, device)]
    roomy = {k.name for k in kernels if has_room(k)}
    crowded = [replace(x, kernel=CROWDED) for x in tried if x.kernel in roomy]
    right = _right(oracle, base, tried + crowded, jobs, say)

    def best_of(kernel: Kernel, among: Sequence[Tuned]) -> Table:
        say(f"{workload.name}: timing {kernel.name}")
        return tuple(_best(source, base, kernel.name, [x for x in among if x.kernel == kernel.name], given))

    hard = call(parse(source), workload, device, DTYPE, HARD) if any(map(differs, kernels)) else None
    found = [best_of(kernel, right) for kernel in kernels]
    more = [y for kernel, best in zip(kernels, found, strict=True) for x in best for y in turned(kernel, x)]
    more = _right(oracle, base, more, jobs, say) if more else []
    for kernel, first in zip(kernels, found, strict=True):
        others = [x for x in more if x.kernel == kernel.name]
        best = best_of(kernel, (*first, *others)) if others else first
        yield from best
        if kernel.name in roomy:  # with the same tiles, so that one is launched in the place of the other
            same = (best[0].block_K, best[0].block_V) if best else tile(kernel, workload)
            alike = [x for x in right if x.kernel == CROWDED and (x.block_K, x.block_V) == same]
            yield from _best(source, merged(base, best), CROWDED, alike, given)
        if hard and differs(kernel):  # what is right takes gates of any strength
            name, where = f"{kernel.name}{STRONG}", f"{workload}, strong gates"
            say(f"{workload.name}: timing {kernel.name} for strong gates")
            keys = best[0].block_K if best else tile(kernel, workload)[0]
            alike = [x for x in (*right, *others) if x.kernel == kernel.name]
            alike = [x for x in alike if kernel.name not in planned.by_tiles or x.block_K == keys]
            alike = [replace(x, kernel=name, workload=where) for x in alike]
            yield from _best(source, merged(base, best), name, alike, hard)


# -- what is right -----------------------------------------------------------------------------------------------------


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


def _right(oracle: Oracle, base: Table, tried: Sequence[Tuned], jobs: int, say: Say) -> list[Tuned]:
    """Those that can be launched, and pass, beside what is in the table."""
    given = [(oracle, base, x) for x in tried]
    say(f"{oracle.workload.name}: checking {len(tried)} configurations")
    here = jobs == 1 and oracle.device.type != "cuda"  # where a fault would be the end of this process
    verdicts = itertools.starmap(_is_right, given) if here else answers(jobs, _is_right, given)
    found = []
    for n, (x, fine) in enumerate(zip(tried, verdicts, strict=True), 1):
        say(f"{oracle.workload.name}: checked {n} of {len(tried)} configurations")
        found += [x] if fine else []
    return found


def _is_right(oracle: Oracle, base: Table, candidate: Tuned) -> bool | None:
    """Is the op with this configuration within its budget, in every regime? Builds what the workload launches, too.
    None: it is not, and the GPU refuses all that this process may ask of it later."""
    from triton.errors import TritonError

    document = parse(oracle.source)
    module = import_text(compile_spec(oracle.source, Options(tuned=merged(base, (candidate,)))))
    with ExitStack() as changes:
        if _function(candidate.kernel) in (*ON_CHIP, *GIVEN_KERNELS, ALONE):
            changes.enter_context(_changed(module, **_on_chip(module, candidate.kernel)))
        try:
            with _changed(module, _multiprocessors=lambda: 0):  # so that small extents take it as it is
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
            with suppress(torch.OutOfMemoryError):  # beside other processes: then it is built where it is timed
                if right:
                    _run(module, document.name, candidate.kernel, call(document, oracle.workload, oracle.device, DTYPE))
        except (RuntimeError, TritonError):  # a tile that this GPU cannot hold, or that Triton cannot compile
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


@contextmanager
def _changed(module: ModuleType, **names: Any) -> Iterator[None]:
    """A module with other functions in the place of its own, for a while: the same text is the same module. Meanwhile
    no call repeats what an earlier one launched, as it would on a GPU, past these functions."""
    names |= {"_alike_in": lambda *_: None}
    before = {name: vars(module)[name] for name in names}
    vars(module).update(names)
    try:
        yield
    finally:
        vars(module).update(before)


# -- what is fast ------------------------------------------------------------------------------------------------------


def _best(source: Source, base: Table, kernel: str, right: Sequence[Tuned], given: Call) -> Iterator[Tuned]:
    """The fastest, if it is faster than the rule's configuration, or if there is to be one."""
    rule = _time(source, kernel, base, given)
    times = [_time(source, kernel, merged(base, (x,)), given) for x in right]
    if times and (min(times) < GAIN * rule or kernel in {x.kernel for x in base}):
        yield replace(right[times.index(min(times))], rule=round(rule, 4), measured=round(min(times), 4))


def _gains(source: Source, found: Table, more: Table, given: Call) -> bool:
    """Is the op faster with more?"""
    return _whole(source, merged(found, more), given) < GAIN * _whole(source, found, given)


def _whole(source: Source, table: Table, given: Call) -> float:
    """Milliseconds of the op, forward and backward: the median."""
    name, module = parse(source).name, import_text(compile_spec(source, Options(tuned=table)))
    device = given.cotangents[0].device
    totals, occupy = [], occupier(device, BUSY)
    for _ in range(WARM + REPEATS):
        occupy()
        stop = stopwatch(device)
        _run(module, name, "", given)
        totals.append(stop()())
    return statistics.median(totals[WARM:])


def _time(source: Source, kernel: str, table: Table, given: Call) -> float:
    """Milliseconds of a kernel in one call of the op, all its launches together: the median."""
    name, module = parse(source).name, import_text(compile_spec(source, Options(tuned=table)))
    launch, wanted = module._launch, getattr(module, f"{name}_{_function(kernel)}_kernel")
    spans: list[Callable[[], float]] = []
    occupy = occupier(given.cotangents[0].device, BUSY)

    def launched(called: Any, programs: int, device: torch.device, *arguments: Any, **options: Any) -> None:
        stop = stopwatch(device)
        launch(called, programs, device, *arguments, **options)
        if called is wanted:
            spans.append(stop())

    totals = []
    with _changed(module, _launch=launched, **_on_chip(module, kernel)):
        for _ in range(WARM + REPEATS):
            spans.clear()
            occupy()
            _run(module, name, kernel, given)
            assert spans, f"{kernel} was not launched"
            totals.append(sum(span() for span in spans))
    return statistics.median(totals[WARM:])


def _function(kernel: str) -> str:
    """The kernel that an entry is for."""
    return "fused" if kernel == CROWDED else kernel.removesuffix(STRONG)


def _on_chip(module: ModuleType, kernel: str) -> dict[str, Callable[..., bool]]:
    """In the place of a module's own functions: this kernel alone keeps the state on chip."""
    functions = [name for name in ("_stays_on_chip", "_is_given", "_is_alone") if hasattr(module, name)]
    return dict.fromkeys(functions, lambda name, *_: name == _function(kernel))


def _run(module: ModuleType, name: str, kernel: str, given: Call) -> None:
    """The op, forward and backward, in the mode that launches this kernel: what walks on chip stores states as well, if
    it ever does for keys of so many columns."""
    keys = [x for n, x in given.arguments.items() if module._LAYOUT.get(n, "").endswith("K")]
    K = max((x.shape[-1] for x in keys if isinstance(x, torch.Tensor)), default=0)
    widest = min(WIDE, getattr(module, "WIDEST", {}).get("fused", 0))  # of more columns that depends on what is tried
    stores = kernel != CROWDED and (kernel != "fused" or widest >= K)
    *outputs, _ = getattr(module, name)(**given.arguments, states="saved" if stores else "recomputed")
    torch.autograd.grad(outputs, given.leaves, given.cotangents)
