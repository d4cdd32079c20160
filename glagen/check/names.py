"""Names: what each one stands for, which are unknown, unused, or defined by themselves."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass

from glagen.check.report import Report
from glagen.errors import did_you_mean
from glagen.ir.document import AXES, FEATURES, Declaration, Document, Equation, StateDeclaration
from glagen.ir.expr import ALONG, FUNCTIONS, Expr, Ref, refs, walk

EXTENTS = ("K", "V", "H", "T")
STATE_AXES = tuple(axes for n in (2, 1, 0) for axes in itertools.combinations(FEATURES, n))


@dataclass(frozen=True, slots=True)
class Scope:
    """The names of a spec. `order`: equations' targets, each after those it uses; `outputs`: targets nothing uses."""

    declarations: dict[str, Declaration]
    states: dict[str, StateDeclaration]
    equations: dict[str, Equation]
    order: tuple[str, ...]
    outputs: tuple[str, ...]

    def axes(self, name: str) -> tuple[str, ...] | None:
        """The axes a name has when it stands in an equation; None for an unknown one."""
        if name in self.states:
            return ("t", *self.states[name].axes)
        if name in self.declarations:
            return self.declarations[name].axes
        if name in self.equations:
            return tuple(index.axis for index in self.equations[name].target.indices)
        return None


def resolve(document: Document, report: Report) -> Scope:
    """Finds what every name stands for.

    Ensures, for equations not broken: each name on the right is declared or defined; no definition depends on itself.
    """
    scope = Scope(
        declarations={d.name: d for d in document.declarations},
        states={s.name: s for s in document.states},
        equations=_definitions(document, report),
        order=(),
        outputs=(),
    )
    _states(document, report)
    _gradients(scope, report)
    meant = _unknown(document, scope, report)
    _defaults(document, report)
    _unused(document, scope, meant, report)
    order = _ordered(scope, report)
    used = {ref.name for equation in document.equations for ref in refs(equation.body)}
    outputs = tuple(name for name in scope.equations if name not in used and name not in scope.states)
    return Scope(scope.declarations, scope.states, scope.equations, order, _outputs(scope, outputs, report))


def _definitions(document: Document, report: Report) -> dict[str, Equation]:
    """Equations by target, the first where there are two."""
    declared = {d.name: d for d in document.declarations}
    equations: dict[str, Equation] = {}
    for equation in document.equations:
        name, span = equation.target.name, equation.target.span
        if name in declared and any(state.name == name for state in document.states):
            continue  # _states says so
        if name in declared:
            kind = declared[name].kind
            report.fault(f"`{name}` is declared as {_article(kind)}", span, "give the result another name")
        elif name in equations:
            first = equations[name].span.line
            report.fault(
                f"`{name}` is defined twice", span, f"one name, one equation; the first is on line {first}", name
            )
        else:
            equations[name] = equation
    return equations


def _states(document: Document, report: Report) -> None:
    """States with axes i and j, or one of them; an equation for each, and no input of its name."""
    targets = {equation.target.name for equation in document.equations}
    first = document.states[0]
    if not any(state.axes for state in document.states):
        helped = "add a state with axes, which it stabilises; torch.cummax gives a running maximum alone"
        report.fault("a running maximum alone is no recurrence with keys and values", first.span, helped, first.name)
    for n, state in enumerate(document.states):
        s = state.name
        if state.axes not in STATE_AXES:
            helped = f"write `{s}[i, j]`: keys by values; time is implicit here"
            report.fault(
                f"state `{s}` must have axes [i, j], or one or two of i, s and j in order", state.span, helped, s
            )
        if any(d.name == s for d in document.declarations):
            report.fault(f"`{s}` is an input too", state.span, "give the state another name", s)
        elif any(other.name == s for other in document.states[:n]):
            report.fault(f"there are two states `{s}`", state.span, "give one of them another name", s)
        elif s not in targets:
            at = ",".join(state.axes)
            write = " * ".join(f"{'v' if axis == 'j' else 'k'}[t,{axis}]" for axis in state.axes)
            helped = f"add `{s}[t,{at}] = {s}[t-1,{at}] + {write}`, say"
            if not state.axes:
                helped = f"add `{s}[t] = max({s}[t-1] + g[t], x[t])`, say"
            report.fault(f"state `{s}` has no equation", state.span, helped, s)


def _gradients(scope: Scope, report: Report) -> None:
    """Reports names that the gradient of another has."""
    known = scope.declarations | scope.states | {name: e.target for name, e in scope.equations.items()}
    for name, place in known.items():
        other = name.removeprefix("d")
        if other != name and other in known:
            message = f"`{name}` is what the gradient of `{other}` is called"
            report.fault(message, place.span, "choose another name, for either of them", name)


def _unknown(document: Document, scope: Scope, report: Report) -> set[str]:
    """Reports names that stand for nothing, each once. Returns what they were probably meant to be."""
    used = {ref.name for equation in document.equations for ref in refs(equation.body)}
    known = [*scope.declarations, *scope.states, *scope.equations]
    unused = [name for name in known if name not in used]  # the likelier ones to be meant
    meant: set[str] = set()
    reported: set[str] = set()
    for equation in document.equations:
        for ref in refs(equation.body):
            if scope.axes(ref.name) is not None:
                continue
            report.broken.add(equation.target.name)
            if ref.name not in reported:
                reported.add(ref.name)
                message, helped = _unknown_name(ref.name, known, unused)
                report.fault(message, ref.span, helped)
                meant.update(name for name in known if f"`{name}`" in helped)
    return meant


def _unknown_name(name: str, known: list[str], unused: list[str]) -> tuple[str, str]:
    if name in EXTENTS:
        helped = "declare a scalar that defaults to it: `scale: {kind: scalar, default: K**-0.5}`"
        return f"extent `{name}` cannot stand in an equation", helped
    if name == "h":
        helped = "declare a constant: `gamma: {kind: constant, axes: [], value: 1 - 2**(-5 - h)}`"
        return "head `h` cannot stand in an equation", helped
    if name in FUNCTIONS or name in ALONG:
        return f"function `{name}` has no argument", f"write `{name}(...)`"
    if name in AXES:
        return f"axis `{name}` is not a value", "pass positions as an input"
    helped = did_you_mean(name, unused) or did_you_mean(name, known) or f"add `{name}` to `inputs`, or define it"
    return f"`{name}` is not declared", helped


def _defaults(document: Document, report: Report) -> None:
    """Defaults and values know the extents alone, and values the head."""
    for declaration in document.declarations:
        allowed = ("K", "V", "H", "h") if declaration.kind == "constant" else ("K", "V", "H")
        for node in _leaves(declaration.default):
            if isinstance(node, Ref) and (node.indices or node.name not in allowed):
                helped = f"it may use numbers and {', '.join(allowed)}"
                report.fault(f"`{node.name}` is not known where `{declaration.name}` is declared", node.span, helped)


def _leaves(expr: Expr | None) -> Iterator[Expr]:
    return walk(expr) if expr is not None else iter(())


def _unused(document: Document, scope: Scope, meant: set[str], report: Report) -> None:
    """Reports declarations nothing uses, except those that a misspelt name probably means."""
    used = {ref.name for equation in document.equations for ref in refs(equation.body)}
    targets = {equation.target.name for equation in document.equations}
    for name, declaration in scope.declarations.items():
        if name not in used and name not in meant and name not in targets and name not in scope.states:
            report.fault(f"`{name}` is not used", declaration.span, "use it in an equation, or remove it")


def _ordered(scope: Scope, report: Report) -> tuple[str, ...]:
    """Targets in order of dependence; reports those that depend on themselves within one step."""
    uses = {
        name: [ref for ref in refs(equation.body) if ref.name in scope.equations and not _shift(ref)]
        for name, equation in scope.equations.items()
        if not _shift(equation.target)  # check_axes says so
    }
    order: list[str] = []
    for root in scope.equations:
        path: list[str] = []
        stack = [(root, iter(uses.get(root, [])))] if root not in order else []
        path.extend(name for name, _ in stack)
        while stack:
            name, rest = stack[-1]
            ref = next(rest, None)
            if ref is None:
                stack.pop()
                path.pop()
                order.append(name)
            elif ref.name in path:
                _cycle(path[path.index(ref.name) :], ref, scope, report)
            elif ref.name not in order:
                stack.append((ref.name, iter(uses.get(ref.name, []))))
                path.append(ref.name)
    return tuple(order)


def _shift(ref: Ref) -> int:
    return sum(index.shift for index in ref.indices)


def _cycle(names: list[str], ref: Ref, scope: Scope, report: Report) -> None:
    report.broken.update(names)
    through = f" through {', '.join(f'`{name}`' for name in names[1:])}" if names[1:] else ""
    helped = "intermediate names are substituted; only the state goes from one step to the next"
    if ref.name in scope.states:
        previous = ",".join(("t-1", *scope.states[ref.name].axes))
        helped = f"the new state may depend on the old one, `{ref.name}[{previous}]`"
    report.fault(f"`{ref.name}` is defined by itself{through}", ref.span, helped)


def _outputs(scope: Scope, unused: tuple[str, ...], report: Report) -> tuple[str, ...]:
    """The outputs of the op: what no equation uses and has axes t and j."""
    outputs = []
    for name in unused:
        target = scope.equations[name].target
        if scope.axes(name) == ("t", "j"):
            outputs.append(name)
        else:
            helped = "use it in an equation; an output has axes [t, j]"
            report.fault(f"`{name}` is defined but not used", target.span, helped, name)
    if not unused and not report.broken:
        helped = "add an equation such as `o[t,j] = sum(i, q[t,i] * S[t,i,j])`"
        report.fault("no equation defines an output", None, helped)
    return tuple(outputs)


def _article(kind: str) -> str:
    return f"an {kind}" if kind[0] in "aeiou" else f"a {kind}"
