"""Configurations of an op's kernels, measured: those that are right and faster than the rule's.

A candidate is an entry of a table, and is tried in the module that a spec compiles to with that entry. All are built by
processes of their own, for that takes longest; then timed one after another, each kernel where the op launches it. The
fastest are held to the recurrence, until one is right. Whether a kernel of their own makes the scores
(schedule/apart.py) is tried as a whole, with the best configurations of all that it concerns; and so are one kernel for
all gradients (schedule/alone.py), a backward whose kernels share operands (schedule/given.py), walks on chip that are
given theirs, in chunks of 64 steps, which are twice as many where there are gates; one kernel for all gradients in such
chunks, of which a forward stores states and takes halves; and one that takes them by halves and stores none
(schedule/halves.py).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory

import torch

from glagen.bench import Workload
from glagen.bench.workloads import Call
from glagen.candidates import (
    DTYPE,
    Table,
    all_gradients,
    by_half_chunks,
    by_halves,
    called,
    candidates,
    forward_shared,
    given_by_halves,
    operands_shared,
    reads_kept,
    scores_apart,
    tile,
    turned,
    walks_given,
    where_strong,
)
from glagen.configurations import Oracle, forward_time, is_built, is_right, kernel_time, op_time, timed_on
from glagen.errors import Source
from glagen.ir.schedule import Ensemble, Options, Schedule
from glagen.ir.tuned import (
    ALONE_KERNELS,
    BEYOND,
    BOTH,
    CROWDED,
    GIVEN,
    GIVEN_KERNELS,
    HALVED,
    KEPT_KERNELS,
    ON_CHIP,
    STRONG,
    Tuned,
    merged,
)
from glagen.jobs import Ask, answers
from glagen.loader import import_text
from glagen.parse import parse
from glagen.pipeline import compile_spec, plan
from glagen.regimes import Case
from glagen.schedule.tiles import (
    GIVEN_TILES,
    HALVED_TILES,
    NARROW,
    WGMMA_ROWS,
    WIDE,
    differs,
    gated_sides,
    may_be_crowded,
)

GAIN = 0.97  # of the rule's time: what is not faster than that may be noise
CHUNKS = 9  # in the sequences that candidates are checked on, and a bit: more than a program takes in turn
HEADS = 8  # of those: the gradient of a scalar gate is one sum a head, of few of which most may be small by chance

Say = Callable[[str], None]
Timed = Callable[[Source, Table, Call], float]


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
    here = jobs == 1 and device.type != "cuda"  # where a fault would be the end of this process
    with nullcontext(itertools.starmap) if here else answers(jobs) as ask, TemporaryDirectory() as folder:
        for workload in workloads:
            walks = walks_given(planned, workload, device)
            other = _planned(source, walks)
            doubles = bool(other.doubled) and (workload.K > WIDE or gated_sides(planned.program) == "s")
            fits = GIVEN_TILES.bfloat16[0] >= workload.K and GIVEN in {k.name for k in other.kernels}
            case = Case(2, CHUNKS * planned.chunk * (2 if doubles else 1) + 5, HEADS, workload.K, workload.V)
            oracle = Oracle(source, workload, device, case, Path(folder, f"{workload}.pt"))
            say(f"{workload.name}: running the recurrence")
            oracle.run()
            given = timed_on(oracle, "")
            found: Table = ()
            for x in _tuned(planned, oracle, given, ask, say):
                found = merged(found, (x,))
                yield x
            bases = [walks] * (doubles or (fits and not other.doubled))
            bases += [given_by_halves(planned, workload, device)] * (fits and not other.program.gates)
            bases += [by_half_chunks(planned, workload, device)] * (doubles and max(workload.K, workload.V) <= NARROW)
            for base in bases:
                more = tuple(_measured(oracle, given, ask, say, base))
                say(f"{workload.name}: timing the op")
                if _gains(source, found, more, given):
                    found = merged(found, more)
                    yield from more
            yield from _by_halves(found, oracle, given, ask, say)


def _planned(source: Source, table: Table) -> Schedule:
    planned = plan(parse(source), Options(tuned=table))
    assert isinstance(planned, Schedule)
    return planned


def _tuned(planned: Schedule, oracle: Oracle, given: Call, ask: Ask, say: Say) -> Iterator[Tuned]:
    """What is worth keeping for one workload, in chunks of as many steps as the rule says."""
    source, workload, device = oracle.source, oracle.workload, oracle.device
    plain: Table = ()
    for x in _measured(oracle, given, ask, say, ()):
        plain += (x,)
        yield x
    alone = ((all_gradients(planned, name, workload, device),) for name in (*ALONE_KERNELS, BOTH))
    shared = [made(planned, workload, device) for made in (operands_shared, forward_shared, reads_kept)]
    for base in ((scores_apart(planned, workload, device),), *alone, *shared):
        wanted = {x.kernel for x in base}
        if not wanted <= {k.name for k in _planned(source, base).kernels}:
            continue  # of other specs
        more = tuple(_measured(oracle, given, ask, say, base))
        say(f"{workload.name}: timing the op")
        if wanted <= {x.kernel for x in more} and _gains(source, plain, more, given):
            plain = merged(plain, more)
            yield from more


def _by_halves(found: Table, oracle: Oracle, given: Call, ask: Ask, say: Say) -> Iterator[Tuned]:
    """What has a forward take chunks by halves, if such a one is faster than the op is otherwise, forward alone."""
    source, workload = oracle.source, oracle.workload
    base = (by_halves(_planned(source, found), workload, oracle.device),)
    fits = base[0].chunk >= WGMMA_ROWS and HALVED_TILES.bfloat16[0] >= workload.K
    if not fits or HALVED not in {k.name for k in _planned(source, base).kernels}:
        return
    more = tuple(_measured(oracle, given, ask, say, base))
    say(f"{workload.name}: timing the op, forward")
    if _gains(source, found, more, given, forward_time):
        yield from more


def _measured(oracle: Oracle, given: Call, ask: Ask, say: Say, base: Table) -> Iterator[Tuned]:
    """The best for each kernel that is faster than by the rule, or in `base`: of those that it concerns, which are all
    if it has chunks of more steps."""
    source, workload, device = oracle.source, oracle.workload, oracle.device
    planned, based = _planned(source, base), {x.walk for x in base}
    walks = based if based & {*GIVEN_KERNELS} else (*ON_CHIP, HALVED, *ALONE_KERNELS, BOTH, *KEPT_KERNELS)
    kernels = [k for k in planned.kernels if not k.whole or (k.tiles.bfloat16[0] >= workload.K and k.name in walks)]
    if based and (not planned.doubled or based == {HALVED}):
        scored = [k.name for k in kernels if k.ready and not k.late] if based == {"scores"} else []
        kernels = [k for k in kernels if k.name in {*based, *scored}]
    tried = [x for kernel in kernels for x in candidates(planned, kernel, workload, device)]
    roomy = {k.name for k in kernels if may_be_crowded(k)}
    tried += [replace(x, kernel=f"{x.kernel}{CROWDED}") for x in tried if x.kernel in roomy]
    built = _built(oracle, base, tried, ask, say)
    run = [k for k in kernels if k.name != "scores" or based & {k.name, GIVEN}]  # others make none for mild gates
    apart = {k.name: f"{k.name}{STRONG}" for k in kernels if differs(k)}
    hard = timed_on(oracle, STRONG) if apart else given
    gates = {k.name: hard if k.name == BEYOND else given for k in kernels}
    best = _best(oracle, [_Trial(called(k), base, _of(called(k), built), gates[k.name]) for k in run], ask, say)
    turns = _built(oracle, base, [y for k in run for x in _of(called(k), best) for y in turned(k, x)], ask, say)
    again = [
        _Trial(x.kernel, base, (x, *_of(x.kernel, turns)), gates.get(x.kernel, given))
        for x in best
        if _of(x.kernel, turns)
    ]
    best = merged(best, _best(oracle, again, ask, say))
    yield from best
    more = []
    for kernel in kernels:
        kept = _of(called(kernel), best)
        keys, values = (kept[0].block_K, kept[0].block_V) if kept else tile(kernel, workload)
        if kernel.name in roomy:  # with the same tiles, so that one is launched in the place of the other
            crowded = f"{kernel.name}{CROWDED}"
            crowd = [x for x in _of(crowded, built) if (x.block_K, x.block_V) == (keys, values)]
            crowd += _built(oracle, merged(base, kept), [y for x in crowd for y in turned(kernel, x)], ask, say)
            more.append(_Trial(crowded, merged(base, kept), crowd, given))
        if name := apart.get(kernel.name):
            fits = _of(kernel.name, (*built, *turns))
            if kernel.name in planned.by_tiles:
                fits = tuple(x for x in fits if x.block_K == keys)
            strong = [replace(x, kernel=name, workload=where_strong(workload)) for x in fits]
            beside = merged(base, kept)
            more.append(_Trial(name, beside, _built(oracle, beside, strong, ask, say), hard))
    yield from _best(oracle, more, ask, say)


def _of(kernel: str, among: Iterable[Tuned]) -> Table:
    return tuple(x for x in among if x.kernel == kernel)


def _built(oracle: Oracle, base: Table, tried: Sequence[Tuned], ask: Ask, say: Say) -> Table:
    """Those that can be launched, beside what is in the table."""
    if not tried:
        return ()
    found, name = [], oracle.workload.name
    say(f"{name}: building {len(tried)} configurations")
    for n, (x, fine) in enumerate(zip(tried, ask(is_built, [(oracle, base, x) for x in tried]), strict=True), 1):
        say(f"{name}: built {n} of {len(tried)} configurations")
        found += [x] if fine else []
    return tuple(found)


@dataclass(frozen=True, slots=True)
class _Trial:
    """Configurations of a kernel that can be launched, beside a table, and on what they are timed."""

    kernel: str
    base: Table
    among: Sequence[Tuned]
    given: Call


def _best(oracle: Oracle, trials: Sequence[_Trial], ask: Ask, say: Say) -> Table:
    """Of each trial the fastest that is right, if it is faster than the rule's configuration, or if there is to be one.
    Those that are right are found side by side: of all trials the fastest, then, where that is wrong, the next."""
    left: list[tuple[Table, list[Tuned]]] = []
    found: list[Tuned] = []
    for trial in trials:
        say(f"{oracle.workload.name}: timing {trial.kernel}")
        if trial.among:
            left.append((trial.base, _by_time(oracle.source, trial)))
    while left := [(base, queue) for base, queue in left if queue]:
        say(f"{oracle.workload.name}: checking {', '.join(queue[0].kernel for _, queue in left)}")
        verdicts = [*ask(is_right, [(oracle, base, queue[0]) for base, queue in left])]
        found += [queue[0] for (_, queue), right in zip(left, verdicts, strict=True) if right]
        left = [(base, queue[1:]) for (base, queue), right in zip(left, verdicts, strict=True) if not right]
    return merged(found)


def _by_time(source: Source, trial: _Trial) -> list[Tuned]:
    """What may be kept, with the times, the fastest first."""
    rule = kernel_time(source, trial.kernel, trial.base, trial.given)
    most = math.inf if _of(trial.kernel, trial.base) else GAIN * rule
    timed = [(_time(source, trial, x), n, x) for n, x in enumerate(trial.among)]
    return [replace(x, rule=round(rule, 4), measured=round(t, 4)) for t, _, x in sorted(timed) if t < most]


def _time(source: Source, trial: _Trial, candidate: Tuned) -> float:
    """Milliseconds with a candidate: infinite if it cannot be launched, which a process without memory did not see."""
    from triton.errors import TritonError

    try:
        return kernel_time(source, trial.kernel, merged(trial.base, (candidate,)), trial.given)
    except (RuntimeError, TritonError):
        return math.inf


def _gains(source: Source, found: Table, more: Table, given: Call, timed: Timed | None = None) -> bool:
    """Is the op faster with more, forward and backward, or by another clock?"""
    timed = timed or op_time
    return timed(source, merged(found, more), given) < GAIN * timed(source, found, given)
