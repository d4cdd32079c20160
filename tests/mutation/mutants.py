"""Mutants: a chunk program, or the lines of its kernels, with one small thing wrong.

Every mutant differs from what was derived in one place: a Decay or one end of its interval, a sign, a term of a sum, an
order, a path of a gate's gradient. Labels are unique within a spec and say what was changed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from glagen.ir.chunk import (
    END,
    START,
    Carry,
    ChunkProgram,
    Contract,
    Crossing,
    Decay,
    GateGradient,
    Map,
    Point,
    Statement,
)
from glagen.ir.expr import Apply, Expr, Ref, apply, rewrite, show, walk
from glagen.ir.kernel import Assign, Blocks, Dot, Kernel, Load, Loop, RowSum, Scan
from glagen.ir.schedule import Schedule

Variant = tuple[str, Any]  # what was changed, and the changed value
POINTS = (START, END, *(Point(at, before) for at in ("t", "s") for before in (False, True)))


@dataclass(frozen=True, slots=True)
class Mutant:
    """`value` is a ChunkProgram or a Schedule."""

    label: str
    value: Any


# -- statements --------------------------------------------------------------------------------------------------------


def program_mutants(program: ChunkProgram) -> list[Mutant]:
    """Every mutant of the forward, of the backward, and of how gradients are put together."""
    return _numbered(_of_program(program))


def _of_program(program: ChunkProgram) -> Iterator[Mutant]:
    for part in ("forward", "backward"):
        statements = getattr(program, part)
        for n, statement in enumerate(statements):
            for change, mutated in _statement(statement):
                changed = (*statements[:n], mutated, *statements[n + 1 :])
                yield Mutant(f"{statement.out}: {change}", replace(program, **{part: changed}))
    for n, gradient in enumerate(program.gradients):
        for change, parts in _dropped(gradient.parts, "part"):
            changed = (*program.gradients[:n], replace(gradient, parts=parts), *program.gradients[n + 1 :])
            yield Mutant(f"gradient of {gradient.name}: {change}", replace(program, gradients=changed))


def _statement(statement: Statement) -> Iterator[Variant]:
    match statement:
        case Map(expr=expr):
            yield from _field(statement, "expr", signs(expr))
        case Contract(order=order):
            yield from _field(statement, "decays", _decays(statement.decays))
            if order:
                other = "<" if order == "<=" else "<="
                yield f"order {order} becomes {other}", replace(statement, order=other)
        case Carry():
            yield from _field(statement, "decays", _decays(statement.decays))
            yield from _field(statement, "added", _dropped(statement.added, "added"))
            yield "runs the other way", replace(statement, reverse=not statement.reverse)
        case GateGradient():
            yield from _field(statement, "crossings", _crossings(statement.crossings))


def _field(value: Any, name: str, variants: Iterator[Variant]) -> Iterator[Variant]:
    for change, mutated in variants:
        yield change, replace(value, **{name: mutated})


def _dropped(items: Sequence[Any], what: str) -> Iterator[Variant]:
    for n, item in enumerate(items):
        yield f"without {what} {item}", (*items[:n], *items[n + 1 :])


def _each(items: Sequence[Any], variants: Callable[[Any], Iterator[Variant]]) -> Iterator[Variant]:
    for n, item in enumerate(items):
        for change, mutated in variants(item):
            yield change, (*items[:n], mutated, *items[n + 1 :])


def _decays(decays: tuple[Decay, ...]) -> Iterator[Variant]:
    yield from _dropped(decays, "decay")
    yield from _each(decays, _interval)


def _interval(decay: Decay) -> Iterator[Variant]:
    """Both ends moved to every other instant, and the interval turned round."""
    moved = [replace(decay, **{end: point}) for end in ("lower", "upper") for point in POINTS]
    moved.append(replace(decay, lower=decay.upper, upper=decay.lower))
    for mutated in dict.fromkeys(moved):
        if mutated != decay:
            yield f"{decay} becomes {mutated}", mutated


def _crossings(crossings: tuple[Crossing, ...]) -> Iterator[Variant]:
    for n, crossing in enumerate(crossings):
        yield f"without the crossing of {crossing.decay}", (*crossings[:n], *crossings[n + 1 :])
        for change, mutated in _crossing(crossing):
            yield f"crossing of {crossing.decay}: {change}", (*crossings[:n], mutated, *crossings[n + 1 :])


def _crossing(crossing: Crossing) -> Iterator[Variant]:
    yield from _field(crossing, "decay", _interval(crossing.decay))
    for change, factors in _decays(crossing.factors):
        yield f"factor {change}", replace(crossing, factors=factors)
    if crossing.upper != crossing.lower:
        yield "upper and lower swapped", replace(crossing, upper=crossing.lower, lower=crossing.upper)
    for end in ("upper", "lower"):
        if getattr(crossing, end):
            yield f"without its {end} pair", replace(crossing, **{end: None})


# -- expressions -------------------------------------------------------------------------------------------------------


def signs(expr: Expr) -> Iterator[Variant]:
    """The whole negated, each term of a sum negated and dropped, each factor of a product dropped."""
    yield "negated", apply("neg", expr)
    for node in dict.fromkeys(walk(expr)):
        match node:
            case Apply(function="add" | "sub" as f, args=(x, y)):
                other = "sub" if f == "add" else "add"
                yield f"`{show(node)}` becomes `{show(x)}`", _swap(expr, node, x)
                yield f"`{show(node)}` becomes `{show(y)}`", _swap(expr, node, y)
                yield f"`{show(node)}` with the other sign", _swap(expr, node, apply(other, x, y))
            case Apply(function="mul", args=(x, y)):
                yield f"`{show(node)}` becomes `{show(x)}`", _swap(expr, node, x)
                yield f"`{show(node)}` becomes `{show(y)}`", _swap(expr, node, y)
            case Apply(function="neg", args=(x,)):
                yield f"`{show(node)}` becomes `{show(x)}`", _swap(expr, node, x)


def _swap(expr: Expr, node: Expr, by: Expr) -> Expr:
    return rewrite(expr, lambda other: by if other == node else None)


# -- lines -------------------------------------------------------------------------------------------------------------

SELECTS = (
    ("through", "before", "from", "after"),
    ("between", "between_before", "between_T", "between_before_T"),
    ("leaf", "leaf_before", "leaf_T", "leaf_before_T"),
    ("span", "span_before", "span_T", "span_before_T"),
    ("shift", "shift_T"),
)
MASKS = (
    ("causal", "earlier", "diagonal"),
    ("causal_T", "earlier_T", "diagonal"),
    ("upper", "lower"),
)


def kernel_mutants(schedule: Schedule) -> list[Mutant]:
    """Every mutant of a line of a Triton kernel: which steps a sum takes, masks, signs, what is added."""
    return _numbered(_of_kernels(schedule))


def twin_mutants(schedule: Schedule) -> list[Mutant]:
    """The same of the PyTorch form's lines."""
    return _numbered(_of_twin(schedule))


def _numbered(mutants: Iterator[Mutant]) -> list[Mutant]:
    """Labels that occur again, for lines that occur again, get a number."""
    seen: Counter[str] = Counter()
    found = []
    for mutant in mutants:
        seen[mutant.label] += 1
        again = seen[mutant.label]
        found.append(mutant if again == 1 else replace(mutant, label=f"{mutant.label} ({again})"))
    return found


def _of_kernels(schedule: Schedule) -> Iterator[Mutant]:
    for k, kernel in enumerate(schedule.kernels):
        for change, mutated in _kernel(kernel):
            kernels = (*schedule.kernels[:k], mutated, *schedule.kernels[k + 1 :])
            yield Mutant(f"{kernel.name}, {change}", replace(schedule, kernels=kernels))


def _of_twin(schedule: Schedule) -> Iterator[Mutant]:
    for part in ("twin_forward", "twin_backward"):
        lines = getattr(schedule, part)
        for change, mutated in _each(lines, _line):
            yield Mutant(f"{part}, {change}", replace(schedule, **{part: mutated}))


def _kernel(kernel: Kernel) -> Iterator[Variant]:
    yield from _field(kernel, "body", _each(kernel.body, _line))
    yield from _field(kernel, "scans", _each(kernel.scans, _line))


def _line(line: Any) -> Iterator[Variant]:
    match line:
        case Loop() | Blocks():
            where = f"loop over {line.axis}" if isinstance(line, Loop) else f"{line.kind} {line.leaf}"
            for change, body in _each(line.body, _line):
                yield f"{where}, {change}", replace(line, body=body)
            if isinstance(line, Blocks):
                for n, inner in enumerate(line.body):
                    if isinstance(inner, Assign | Dot) and inner.accumulate:
                        body = (*line.body[:n], *line.body[n + 1 :])
                        yield f"{where}, {inner.name}: not added to", replace(line, body=body)
        case RowSum(name=name, select=select):
            for group in SELECTS:
                for other in group if select in group else ():
                    if other != select:
                        yield f"{name}: sums {other}, not {select}", replace(line, select=other)
        case Assign(name=name, expr=expr):
            for change, mutated in (*signs(expr), *_masks(expr)):
                yield f"{name}: {change}", replace(line, expr=mutated)
        case Scan(tile=name, update=update, added=added):
            for change, mutated in signs(update):
                yield f"carry of {name}: {change}", replace(line, update=mutated)
            for n in range(len(added)):
                yield f"carry of {name}: dot {n} not added", replace(line, added=(*added[:n], *added[n + 1 :]))
        case Dot(name=name, mask=mask) if mask:
            yield f"{name}: without mask %{mask}", replace(line, mask="")
            for other in _other_masks(mask):
                yield f"{name}: mask %{other}, not %{mask}", replace(line, mask=other)
        case Dot() | Load():
            pass


def _masks(expr: Expr) -> Iterator[Variant]:
    for node in dict.fromkeys(walk(expr)):
        match node:
            case Apply(function="keep", args=(Ref(name=name) as mask, x)):
                yield f"without mask {name}", _swap(expr, node, x)
                for other in _other_masks(name[1:]):
                    changed = apply("keep", replace(mask, name=f"%{other}"), x)
                    yield f"mask %{other}, not {name}", _swap(expr, node, changed)


def _other_masks(name: str) -> Iterator[str]:
    """Those that one may be mistaken for."""
    for group in MASKS:
        yield from (other for other in group if name in group and other != name)
