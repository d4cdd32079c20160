"""Does a generated module compute what its spec says? Everything is compared to the float64 reference.

For every regime of gates, every case of extents and every precision: outputs, final state and all gradients (of random
cotangents, the final state's included), with chunk states saved and recomputed; on a GPU also as by the kernels that
larger calls take. Then, of the same op: a sequence in two parts with the state carried over, decoding step by step,
whether later inputs can change earlier outputs; and, of the first case (kernels of their own, which take longer to
build than to run), sequences packed into one, if asked for both in segments, and heads that share tensors.

With 16-bit inputs it is as in mixed-precision training: parameters and states are float32, and cotangents are scaled
until all gradients are well within float16's range.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from types import ModuleType
from unittest import mock

import torch
from torch import Tensor

from glagen.ir.document import EXTENT, FEATURES, Document
from glagen.reference import output_names, run_states
from glagen.regimes import REGIMES, Case, Problem, draw
from glagen.report import Report, Row
from glagen.tolerances import PRECISIONS, Precision, budgets, errors
from glagen.variants import final_names, initial_gradients, packed, shared

MODES = ("saved", "recomputed")
SEGMENTS = 3  # of a call that is made in segments
CPU_CASES = (Case(2, 70, 2, 20, 12), Case(1, 1, 2, 16, 16), Case(1, 133, 3, 17, 33, state=False))
CUDA_CASES = (
    Case(2, 500, 4, 128, 128),
    Case(2, 500, 4, 96, 160),
    Case(1, 1, 2, 64, 64),
    Case(1, 77, 3, 20, 40, False),
    Case(2, 333, 6, 128, 128, crowded=True),  # 22 chunks of 32 steps: not a multiple of how many are taken in turn
)
CPU_PRECISIONS = ("fp64", "fp32", "bf16", "fp16")
CUDA_PRECISIONS = ("bf16", "fp16", "tf32", "fp32")

LARGEST_GRADIENT = 2.0**12  # a sixteenth of what float16 holds: heads that share a tensor add theirs

Results = dict[str, Tensor]  # `o`, `final_state`, `d q`, ..., `d initial_state`, by name
Arguments = Mapping[str, Tensor | float | None]
States = tuple[Tensor, ...]


def defaults(device: str | torch.device) -> tuple[tuple[Case, ...], tuple[str, ...]]:
    """The cases and precisions that are verified on a device unless others are asked for."""
    return (CUDA_CASES, CUDA_PRECISIONS) if torch.device(device).type == "cuda" else (CPU_CASES, CPU_PRECISIONS)


def verify(
    document: Document,
    module: ModuleType,
    device: str | torch.device = "cpu",
    *,
    regimes: Sequence[str] = REGIMES,
    cases: Sequence[Case] | None = None,
    precisions: Sequence[str] | None = None,
    modes: Sequence[str] = MODES,
    invariants: bool = True,
    variants: bool = True,
    segments: bool = False,
    reference_device: str | torch.device | None = None,
    expected: Mapping[str, Results] | None = None,
    seed: int = 0,
    progress: Callable[[str], None] = lambda text: None,
) -> Report:
    """Compare the op of `module` to the recurrence that `document` states; wrong results are in the report.

    `device` is where the op runs, and the reference too unless `reference_device` says otherwise. Without `invariants`
    there are no parts, steps and later inputs; without `variants` no packed sequences and shared heads, nor `segments`,
    which are made of gates that reset. `expected` is what the recurrence gives, by regime, where that is known: of one
    case, without invariants. `progress` is told what is being compared.
    """
    device = torch.device(device)
    default_cases, default_precisions = defaults(device)
    chosen = [PRECISIONS[p] for p in precisions or default_precisions]
    rows: list[Row] = []
    oracle = torch.device(reference_device or device)
    chosen_cases = cases or default_cases
    for n, case, regime in ((n, case, regime) for n, case in enumerate(chosen_cases) for regime in regimes):
        with _crowded(module) if case.crowded else nullcontext():
            progress(f"{document.name}: {regime}, {case}")
            problem = draw(document, regime, case, seed)
            known = reference_results(document, problem, oracle) if expected is None else expected[regime]
            problem, wanted = _scaled(problem, known)
            more = invariants and regime in ("mild", "reset")
            otherwise = more and variants and n == 0
            few = shared(document, problem) if otherwise else None
            of_few = few and few.gathered(document, reference_results(document, few.whole, oracle))
            for precision in chosen:
                labels = (regime, str(case), precision.name)
                found = {mode: op_results(document, module, problem, precision, device, mode) for mode in modes}
                for mode, actual in found.items():
                    rows += compare(document, actual, wanted, precision, (*labels, mode))
                if more:
                    other = draw(document, "extreme", case, seed + 1)
                    rows += _invariants(document, module, problem, other, wanted, precision, device, labels, found)
                    if otherwise:
                        ways = [(mode, 1) for mode in modes]
                        if segments and regime == "reset":
                            ways.append(("in segments", SEGMENTS))
                            actual = op_results(document, module, problem, precision, device, segments=SEGMENTS)
                            rows += compare(document, actual, wanted, precision, (*labels, "in segments"))
                        rows += _packed(document, module, problem, wanted, precision, device, labels, ways)
                    if few and of_few:
                        for mode in modes:
                            actual = op_results(document, module, few.call, precision, device, mode)
                            rows += compare(document, actual, of_few, precision, (*labels, f"{mode}, heads shared"))
                        steps = _steps(document, module, few.call, precision, device)
                        rows += compare(document, steps, of_few, precision, (*labels, "step, heads shared"))
    return Report(document.name, str(device), tuple(rows))


def reference_results(document: Document, problem: Problem, device: torch.device) -> Results:
    """What the recurrence gives, and its gradients, in float64 on `device`."""

    def op(arguments: Arguments, states: States) -> tuple[States, States]:
        return run_states(document, arguments, states or [None] * len(document.states))

    return _differentiate(document, op, problem, torch.float64, torch.float64, device)


@contextmanager
def _crowded(module: ModuleType) -> Iterator[None]:
    """Any call fills a GPU, for the module meanwhile: of what it decides by that, nothing stays."""
    with mock.patch.object(module, "_multiprocessors", lambda: 1):
        _forget(module)
        yield
    _forget(module)


def _forget(module: ModuleType) -> None:
    """What calls were like: runs that are repeated, and tiles that go by how many programs there are."""
    module._records.clear()
    for name in vars(module):
        if name.startswith("_configured"):  # one a state
            getattr(module, name).cache_clear()


def op_results(
    document: Document,
    module: ModuleType,
    problem: Problem,
    precision: Precision,
    device: torch.device,
    mode: str = "auto",
    parts: int = 1,
    segments: int = 1,
    cu_seqlens: Tensor | None = None,
) -> Results:
    """What the op gives, and its gradients, for the problem cast to a precision; in `parts` calls one after another, or
    in one that is made in `segments`, if sequences have chunks enough."""
    function = getattr(module, document.name)
    timed = {d.name for d in document.declarations if "t" in d.axes}

    def op(arguments: Arguments, states: States) -> tuple[States, States]:
        length = next(x.shape[1] for n, x in arguments.items() if n in timed and isinstance(x, Tensor))
        bounds = [length * n // parts for n in range(parts + 1)]
        outputs = []
        options: dict[str, Tensor | int] = {} if cu_seqlens is None else {"cu_seqlens": cu_seqlens.to(device)}
        options |= {"segment": -(-length // segments)} if segments > 1 else {}
        state = _argument(states)
        for first, last in itertools.pairwise(bounds):
            part = {n: x[:, first:last] if n in timed and isinstance(x, Tensor) else x for n, x in arguments.items()}
            *out, state = function(**part, **options, initial_state=state, output_final_state=True, states=mode)
            outputs.append(out)
        return tuple(torch.cat(o, dim=1) for o in zip(*outputs, strict=True)), _states(state)

    before = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = precision.tf32
    try:
        return _differentiate(document, op, problem, precision.dtype, wide(precision), device)
    finally:
        torch.backends.cuda.matmul.allow_tf32 = before


def _argument(states: States) -> Tensor | States | None:
    """States as an op takes them: none, one tensor, or a tuple of them."""
    return states if len(states) > 1 else next(iter(states), None)


def _states(returned: Tensor | States | None) -> States:
    """States as an op returns them, one after another."""
    assert returned is not None
    return (returned,) if isinstance(returned, Tensor) else tuple(returned)


def wide(precision: Precision) -> torch.dtype:
    """What states and parameters are."""
    return torch.float64 if precision.dtype == torch.float64 else torch.float32


def _differentiate(
    document: Document,
    op: Callable[[Arguments, States], tuple[States, States]],
    problem: Problem,
    dtype: torch.dtype,
    wide: torch.dtype,
    device: torch.device,
) -> Results:
    arguments = _cast(document, problem, dtype, wide, device)
    differentiable = {d.name for d in document.declarations if d.differentiable}
    wanted = {n: x for n, x in arguments.items() if isinstance(x, Tensor) and n in differentiable}
    leaves = [*wanted.values(), *(x.detach().to(device, wide) for x in problem.initial_states)]
    for x in leaves:
        x.requires_grad_()
    outputs, finals = op(arguments, tuple(leaves[len(wanted) :]))
    cotangents = [c.to(device, dtype) for c in problem.output_cotangents]
    cotangents += [c.to(device, wide) for c in problem.state_cotangents]
    roots = [*outputs, *finals][: len(cotangents)]
    gradients = torch.autograd.grad(roots, leaves, cotangents, allow_unused=True)
    results = dict(zip(output_names(document), (o.detach() for o in outputs), strict=True))
    results |= dict(zip(final_names(document), (x.detach() for x in finals), strict=True))
    names = [*(f"d {n}" for n in wanted), *initial_gradients(document)[: len(problem.initial_states)]]
    for name, x, gradient in zip(names, leaves, gradients, strict=True):
        results[name] = torch.zeros_like(x) if gradient is None else gradient
    return results


def _cast(
    document: Document, problem: Problem, dtype: torch.dtype, wide: torch.dtype, device: torch.device
) -> dict[str, Tensor | float | None]:
    """The arguments on a device, parameters as `wide`; tensors are leaves of their own."""
    kinds = {d.name: d.kind for d in document.declarations}
    return {
        n: x.detach().to(device, wide if kinds[n] == "parameter" else dtype) if isinstance(x, Tensor) else x
        for n, x in problem.arguments.items()
    }


def _scaled(problem: Problem, expected: Results) -> tuple[Problem, Results]:
    """Both with cotangents scaled by a power of two, so that no gradient exceeds LARGEST_GRADIENT."""
    largest = max(float(x.abs().max()) for name, x in expected.items() if name.startswith("d "))
    if largest <= LARGEST_GRADIENT:
        return problem, expected
    factor = 2.0 ** -math.ceil(math.log2(largest / LARGEST_GRADIENT))
    scaled = replace(
        problem,
        output_cotangents=tuple(factor * x for x in problem.output_cotangents),
        state_cotangents=tuple(factor * x for x in problem.state_cotangents),
    )
    return scaled, {n: factor * x if n.startswith("d ") else x for n, x in expected.items()}


def compare(
    document: Document, actual: Results, expected: Results, precision: Precision, labels: tuple[str, str, str, str]
) -> tuple[Row, ...]:
    """One row for each tensor of `actual`; `labels` are the row's regime, case, precision and mode."""
    layouts = {
        f"d {d.name}": ("BT" if "t" in d.axes else "") + "H" + "D" * any(axis in d.axes for axis in FEATURES)
        for d in document.declarations
    }
    layouts |= dict.fromkeys(output_names(document), "BTHD")
    for names in (final_names(document), initial_gradients(document)):
        for name, state in zip(names, document.states, strict=True):
            layouts[name] = "BH" + "".join(EXTENT[axis] for axis in state.axes)
    count = math.prod(expected[output_names(document)[0]].shape[:3])
    rows = []
    for name, x in actual.items():
        error, channel = errors(x, expected[name], layouts[name])
        rows.append(Row(*labels, name, error, channel, *budgets(precision, count)))
    return tuple(rows)


def _invariants(
    document: Document,
    module: ModuleType,
    problem: Problem,
    other: Problem,
    expected: Results,
    precision: Precision,
    device: torch.device,
    labels: tuple[str, str, str],
    found: Mapping[str, Results],
) -> list[Row]:
    """Steps make a whole, two parts make a whole, and the later (that of `other`) changes nothing earlier, bitwise, of
    what each mode `found`."""
    steps = _steps(document, module, problem, precision, device)
    rows = list(compare(document, steps, expected, precision, (*labels, "step")))
    length = expected[output_names(document)[0]].shape[1]
    if length < 2:
        return rows
    halves = op_results(document, module, problem, precision, device, parts=2)
    rows += compare(document, halves, expected, precision, (*labels, "split"))
    cut = length * 2 // 3
    mixed = dict(problem.arguments)
    for declaration in document.declarations:
        if "t" in declaration.axes:
            now, later = problem.arguments[declaration.name], other.arguments[declaration.name]
            assert isinstance(now, Tensor) and isinstance(later, Tensor)
            mixed[declaration.name] = torch.cat([now[:, :cut], later[:, cut:]], dim=1)
    for mode, before in found.items():
        after = op_results(document, module, replace(problem, arguments=mixed), precision, device, mode)
        for name in output_names(document):
            difference = float((before[name][:, :cut].double() - after[name][:, :cut].double()).abs().max())
            rows.append(Row(*labels, f"{mode}, causality", name, difference, difference, 0.0, 0.0))
    return rows


def _packed(
    document: Document,
    module: ModuleType,
    problem: Problem,
    expected: Results,
    precision: Precision,
    device: torch.device,
    labels: tuple[str, str, str],
    ways: Sequence[tuple[str, int]],
) -> list[Row]:
    """The batch packed into one row, with an empty sequence; past the last one everything is zero. In several `ways`:
    what to call them, a mode if a call is not made in segments, and in how many it is."""
    put, results, ends = packed(document, problem, expected)
    end = int(ends[-1])
    timed = [*output_names(document), *(f"d {d.name}" for d in document.declarations if "t" in d.axes)]
    rows: list[Row] = []
    for mode, segments in ways:
        states = mode if segments == 1 else "auto"
        actual = op_results(document, module, put, precision, device, states, segments=segments, cu_seqlens=ends)
        past = {n: float(x[:, end:].abs().max()) for n, x in actual.items() if n in timed}
        actual, wanted = ({n: x[:, :end] if n in timed else x for n, x in r.items()} for r in (actual, results))
        rows += compare(document, actual, wanted, precision, (*labels, f"{mode}, packed"))
        rows += [Row(*labels, f"{mode}, past the end", n, x, x, 0.0, 0.0) for n, x in past.items()]
    return rows


@torch.no_grad()
def _steps(
    document: Document, module: ModuleType, problem: Problem, precision: Precision, device: torch.device
) -> Results:
    """Outputs and final state of the `_step` function, one step after another."""
    function = getattr(module, f"{document.name}_step")
    given = _cast(document, problem, precision.dtype, wide(precision), device)
    timed = [d.name for d in document.declarations if "t" in d.axes]
    outputs = []
    state = _argument(tuple(x.to(device, wide(precision)) for x in problem.initial_states))
    for t in range(problem.case.T):
        now = {n: x[:, t] if n in timed and isinstance(x, Tensor) else x for n, x in given.items()}
        *out, state = function(**now, state=state)
        outputs.append(out)
    columns = (torch.stack(o, dim=1) for o in zip(*outputs, strict=True))
    results = dict(zip(output_names(document), columns, strict=True))
    return results | dict(zip(final_names(document), _states(state), strict=True))
