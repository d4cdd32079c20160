"""Axes: every name stands with the subscripts it was declared with, and every axis comes from somewhere."""

from __future__ import annotations

from glagen.check.names import STATE_AXES, Scope
from glagen.check.report import Report, shown
from glagen.ir.document import AXES, EXTENT, Equation
from glagen.ir.expr import Along, Expr, Index, Ref, Softmax, Sum, children, free_axes, refs


def check_axes(scope: Scope, report: Report) -> None:
    """Checks subscripts, sums and shifts of every equation.

    Requires: names resolved. Ensures, for equations not broken: references have their declared axes; only the state is
    shifted in time, by -1; sums run over i or j that their bodies have; the right side has no axis the left one lacks.
    """
    for equation in scope.equations.values():
        _target(equation, scope, report)
        _visit(equation.body, equation, frozenset(), scope, report, set())
    if not report.diagnostics:
        _extents(scope, report)


def _extents(scope: Scope, report: Report) -> None:
    """Widths are those of tensors: one must have axis i, and one axis j."""
    span = next(iter(scope.states.values())).span
    used = {x.axis for e in scope.equations.values() for r in refs(e.body) for x in r.indices}
    for axis, extent in EXTENT.items():
        if axis in (used | {"i", "j"}) - {"t"} and not any(
            axis in d.axes and d.default is None for d in scope.declarations.values()
        ):
            helped = f"give an input axis {axis}, which says how wide it is"
            report.fault(f"nothing in `inputs` has axis {axis}: {extent} is unknown", span, helped)


def _target(equation: Equation, scope: Scope, report: Report) -> None:
    target = equation.target
    axes = tuple(index.axis for index in target.indices)
    name = target.name
    if any(index.shift for index in target.indices):
        helped = f"shift the whole equation in time: write `{name}[{','.join(axes)}] = ...`"
        report.fault(f"`{shown(target)}` is of another step than t", target.span, helped, name)
    elif name in scope.states:
        wanted = scope.axes(name)
        if axes != wanted and scope.states[name].axes in STATE_AXES:
            helped = f"write `{shown(_named(name, wanted or ()))} = ...`"
            report.fault(f"state `{name}` is defined as `{shown(target)}`", target.span, helped, name)
    elif axes != tuple(axis for axis in AXES if axis in axes):
        ordered = ",".join(axis for axis in AXES if axis in axes)
        report.fault(f"`{shown(target)}` has its axes out of order", target.span, f"write `{name}[{ordered}]`", name)


def _visit(
    expr: Expr, equation: Equation, bound: frozenset[str], scope: Scope, report: Report, reported: set[str]
) -> None:
    """Checks one node inside sums over `bound`; an axis is reported once an equation."""
    match expr:
        case Ref():
            if _subscripts(expr, equation, scope, report):
                _free(expr, equation, bound, report, reported)
        case Along(axis=axis, body=body):
            name = type(expr).__name__.lower()
            if axis == "t" and isinstance(expr, Softmax):
                helped = "a step knows nothing of later ones; softmax runs over i, s or j"
                report.fault("a softmax cannot run over time", expr.span, helped, equation.target.name)
            elif axis == "t":
                helped = "sums over time are what the state is for: `S[t,i,j] = S[t-1,i,j] + ...`"
                report.fault("a sum cannot run over time", expr.span, helped, equation.target.name)
            elif axis not in free_axes(body):
                message = f"the {name} over {axis} has nothing that depends on {axis}"
                helped = f"remove the {name}, or subscript its terms with {axis}"
                report.fault(message, expr.span, helped, equation.target.name)
            _visit(body, equation, bound | ({axis} if isinstance(expr, Sum) else set()), scope, report, reported)
        case _:
            for child in children(expr):
                _visit(child, equation, bound, scope, report, reported)


def _free(ref: Ref, equation: Equation, bound: frozenset[str], report: Report, reported: set[str]) -> None:
    allowed = bound | {index.axis for index in equation.target.indices}
    for index in ref.indices:
        if index.axis not in allowed | reported:
            reported.add(index.axis)
            message = f"`{shown(ref)}` has axis {index.axis}, which `{shown(equation.target)}` lacks"
            helped = f"sum over it: `sum({index.axis}, ...)`, or give it to the left side"
            if index.axis == "t":
                helped = "give t to the left side"
            report.fault(message, ref.span, helped, equation.target.name)


def _subscripts(ref: Ref, equation: Equation, scope: Scope, report: Report) -> bool:
    """Whether the reference stands as it was declared; reports it where not."""
    axes = scope.axes(ref.name)
    if axes is None:
        return False
    here = tuple(index.axis for index in ref.indices)
    target = equation.target.name
    declared = shown(_named(ref.name, axes))
    if here != axes:
        if ref.name in scope.states and scope.states[ref.name].axes not in STATE_AXES:
            return False
        written = f"write `{declared}`"
        if ref.name in scope.states:
            written += f" or `{shown(_named(ref.name, axes, -1))}`"
        report.fault(f"`{shown(ref)}` does not fit `{declared}`", ref.span, written, target)
        return False
    shift = sum(index.shift for index in ref.indices)
    if ref.name in scope.states:
        return _state_shift(ref, axes, shift, target, report)
    if shift:
        helped = "only the state goes from one step to the next; pass the shifted tensor as another input"
        report.fault(f"`{shown(ref)}` is of another step than t", ref.span, helped, target)
        return False
    return True


def _state_shift(ref: Ref, axes: tuple[str, ...], shift: int, target: str, report: Report) -> bool:
    after, before = shown(_named(ref.name, axes)), shown(_named(ref.name, axes, -1))
    if shift > 0:
        helped = f"read `{after}`, after the write, or `{before}`, before it"
        report.fault(f"`{shown(ref)}` lies in the future", ref.span, helped, target)
    elif shift < -1:
        helped = (
            "a chunkwise form carries one state from chunk to chunk; with two steps back the decay of a state is no "
            f"longer a product of gates. Use `{before}`"
        )
        report.fault(f"`{shown(ref)}` reaches back {-shift} steps", ref.span, helped, target)
    return -1 <= shift <= 0


def _named(name: str, axes: tuple[str, ...], shift: int = 0) -> Ref:
    return Ref(name, tuple(Index(axis, shift if axis == "t" else 0) for axis in axes))
