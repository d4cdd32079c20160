"""Several states: each a recurrence of its own, what is computed between them, and outputs pointwise in their reads."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from glagen import algebra
from glagen.check.divisors import divisors, may_cancel
from glagen.check.domains import Domains, check_values, interval_of
from glagen.check.intervals import point
from glagen.check.linearity import Fault, Linear, Use, product
from glagen.check.maximum import find_maximum
from glagen.check.names import Scope
from glagen.check.part import part
from glagen.check.report import Report, shown
from glagen.check.roles import fault_of, find_state, read_stem, require_pointwise
from glagen.check.states import states_in_order
from glagen.errors import Diagnostic, InternalError
from glagen.ir.document import AXES, Document, StateDeclaration
from glagen.ir.expr import (
    Along,
    Apply,
    Expr,
    Index,
    Ref,
    Softmax,
    Sum,
    free_axes,
    number,
    plus,
    ref,
    refs,
    rewrite,
    show,
)
from glagen.ir.interval import REALS
from glagen.ir.recurrence import (
    Composite,
    Maximum,
    Output,
    Read,
    Recurrence,
    State,
    Step,
    Value,
    made,
    needed,
)


def find_parts(
    document: Document, scope: Scope, bodies: Mapping[str, Expr], domains: Domains, report: Report
) -> Composite | None:
    """The recurrences of a spec and its outputs; None where something is wrong, which is reported.

    Requires: `bodies` are right sides with intermediate names written out, axes and names checked.
    """
    finder = _Finder(document, scope, bodies, domains, report)
    for name in states_in_order(document, bodies, report):
        finder.state(name)
    finder.outputs = tuple(finder.output(name) for name in scope.outputs if name in bodies)
    for declaration in document.states:
        if not report.diagnostics and not finder.is_read(declaration):
            helped = f"an output reads it with `{_usual_read(declaration)}`"
            report.fault(f"no output reads `{declaration.name}`", declaration.span, helped)
    ordered = finder.ordered() if not report.diagnostics else ()
    return None if report.diagnostics else finder.composite(ordered)


class _Finder:
    """Goes through states, each after those it depends on, and then outputs, and collects steps on the way."""

    def __init__(
        self, document: Document, scope: Scope, bodies: Mapping[str, Expr], domains: Domains, report: Report
    ) -> None:
        self.document, self.scope, self.bodies, self.report = document, scope, bodies, report
        self.domains = dict(domains)
        self.taken = {*scope.declarations, *scope.equations, *scope.states, document.name}
        self.one = self.fresh("one")
        self.stem = read_stem(self.taken)
        self.steps: list[Value | Maximum | str] = []  # a state's name: its part, whose reads are not all found
        self.found: dict[str, State] = {}
        self.reads: dict[str, Read] = {}
        self.axes: dict[str, tuple[str, ...]] = {}  # of reads, and of values
        self.maxima: dict[str, tuple[Expr, Expr]] = {}  # by state: before the step, and after it
        self.meant: dict[str, str] = {}  # what values and reads stand for
        self.used: set[str] = set()  # maxima that something depends on
        self.outputs: tuple[Output, ...] = ()

    def fresh(self, name: str) -> str:
        """A name that the spec does not have, nor as that of a gradient, made of this one."""
        while {name, f"d{name}"} & self.taken:
            name += "_"
        self.taken.add(name)
        return name

    # -- states --------------------------------------------------------------------------------------------------------

    def state(self, name: str) -> None:
        """Finds what a state is, and with it the values that it takes."""
        if not self.has_maxima(name):
            return
        before = len(self.report.diagnostics)
        fault = fault_of(self.report, name)
        body = self.resolved(self.bodies[name], name, fault)
        if len(self.report.diagnostics) > before:
            return
        if not self.scope.states[name].axes:
            self.maximum(name, body, fault)
            return
        key, value = self.sides(name)
        found = find_state(self.scope.equations[name], body, self.domains, self.report, key, value)
        self.report.diagnostics[before:] = map(self.spelt, self.report.diagnostics[before:])
        if found is not None:
            self.found[name] = found
            self.steps.append(name)

    def spelt(self, fault: Diagnostic) -> Diagnostic:
        """A fault with what the spec says in the place of names that it does not have."""
        message = fault.message
        for name, meant in reversed(self.meant.items()):
            message = message.replace(name, meant)
        return replace(fault, message=message)

    def has_maxima(self, target: str) -> bool:
        """Whether all maxima that an equation depends on are understood; what is wrong with others is reported."""
        others = {r.name for r in refs(self.bodies[target]) if r.name in self.scope.states} - {target}
        return all(name in self.maxima for name in others if not self.scope.states[name].axes)

    def sides(self, name: str) -> tuple[str, str]:
        """The axes of keys and values; a state that lacks one of them has a name for it all the same."""
        declared = self.scope.states[name]
        return declared.key or "i", declared.value or "j"

    def has_keys(self, name: str) -> bool:
        return self.scope.states[name].key is not None

    def maximum(self, name: str, body: Expr, fault: Fault) -> None:
        """A state without axes, and what it is before and after each step."""
        found = find_maximum(name, body)
        if found is None:
            message = f"state `{name}` without axes is not a running maximum"
            fault(message, self.scope.equations[name].span, f"write `{name}[t] = max({name}[t-1] + g[t], x[t])`")
            return
        before = ref(self.fresh(f"{name}_before"), ("t",))
        self.domains[before.name] = REALS
        self.axes[before.name] = ("t",)
        rise, floor = (self.value(f"{name}_{n}", x) for n, x in zip(("rise", "floor"), found, strict=True))
        self.steps.append(Maximum(name, rise.name, floor.name, before.name))
        self.maxima[name] = before, rewrite(body, lambda n: before if isinstance(n, Ref) and n.name == name else None)

    # -- values and reads ----------------------------------------------------------------------------------------------

    def output(self, name: str) -> Output:
        """An output with what is read, and what is computed before it, by name."""
        fault = fault_of(self.report, name)
        body = self.resolved(self.bodies[name], "", fault) if self.has_maxima(name) else number(0)
        check_values(self.bodies[name], name, self.domains, self.report)
        return Output(name, ("t", "j"), algebra.stable(body))

    def resolved(self, expr: Expr, own: str, fault: Fault) -> Expr:
        """The expression in terms of inputs, values, reads of other states than `own`, and `own` itself."""
        match expr:
            case Ref(name=name) if name in self.maxima:
                self.used.add(name)
                return self.maxima[name][0 if any(index.shift for index in expr.indices) else 1]
            case Ref(name=name) if name in self.scope.states and name != own:
                return self.read(expr, fault)
            case Sum(body=body):
                inside = replace(expr, body=self.resolved_within(body, own, fault))
                return self.read(inside, fault) if not _mentions(inside, own) else inside
            case Softmax(body=body):
                row = replace(expr, body=self.resolved(body, own, fault))
                if _mentions(row, own):
                    message = f"softmax of `{own}`: the recurrence is not linear in `{own}`"
                    fault(message, expr.span, "apply softmax to what is read, in an output or in another state")
                    return number(0)
                return self.along(row, "weights", fault)
            case Apply(args=args):
                return replace(expr, args=tuple(self.resolved(x, own, fault) for x in args))
            case _:
                return expr

    def resolved_within(self, expr: Expr, own: str, fault: Fault) -> Expr:
        """What a sum is of, resolved, but with the state that it reads left as it is."""
        match expr:
            case Ref(name=name) if name == own or (name in self.scope.states and self.has_keys(name)):
                return expr
            case Apply(args=args):
                return replace(expr, args=tuple(self.resolved_within(x, own, fault) for x in args))
            case _:
                return self.resolved(expr, own, fault)

    def read(self, node: Ref | Sum, fault: Fault) -> Expr:
        """What stands for a sum, over a state or over inputs alone, and for a state without keys."""
        names = tuple(dict.fromkeys(r.name for r in refs(node) if r.name in self.scope.states))
        if len(names) > 1:
            fault(f"one sum over `{names[0]}` and `{names[1]}`", node.span, "write a sum of its own for each state")
            return number(0)
        name = names[0] if names else ""
        key, value = self.sides(name) if name else _apart(node)
        axes = self.scope.states[name].axes if name else ()
        parts = []
        for term in Linear(name, fault, key, value).terms(node):
            factors = tuple(self.along(f, "local", fault) if isinstance(f, Sum) else f for f in term.factors)
            if term.use is not None:
                query = term.use.query
                if query is None and key in axes:
                    message = f"`{shown(term.use.state)}` is not summed over {key}"
                    fault(message, node.span, "a read is a sum over keys")
                    return number(0)
                require_pointwise((*factors, *((query,) if query else ())), term.span, fault)
                query = ref(self.one, ("t", key)) if query is None else query
                factors = (*factors, self.numbered(name, replace(term.use, query=query), ("t", value)))
            parts.append(product(factors))
        return plus(*parts)

    def numbered(self, state: str, use: Use, axes: tuple[str, ...]) -> Ref:
        """A read by name: one that was found before, or a new one."""
        query = algebra.stable(use.query or number(1))
        for read in self.reads.values():
            if (read.state, read.query, read.before) == (state, query, use.before):
                return ref(read.name, self.axes[read.name])
        name = f"{self.stem}_{len(self.reads) + 1}"
        self.reads[name] = Read(name, state, query, use.before)
        self.axes[name] = axes if self.scope.states[state].value else axes[:1]
        at = ",".join((str(Index("t", -1 if use.before else 0)), *self.scope.states[state].axes))
        key = self.sides(state)[0]
        product = f"sum({key}, {show(query, 2)} * {state}[{at}])" if self.has_keys(state) else f"{state}[{at}]"
        self.meant[show(ref(name, self.axes[name]))] = product
        return ref(name, self.axes[name])

    def along(self, expr: Along, stem: str, fault: Fault) -> Expr:
        """The value of a function of a row, whose name begins so."""
        others = sorted(free_axes(expr.body) - {"t", expr.axis})
        if others:
            message = f"`{shown(expr)}` depends on {others[0]} too"
            fault(message, expr.span, f"what stands in it has axes t and {expr.axis} alone")
            return number(0)
        return self.value(stem, expr)

    def value(self, stem: str, expr: Expr) -> Ref:
        """A step that computes an expression: one that there is, or a new one whose name begins so."""
        expr = algebra.stable(expr)
        for step in self.steps:
            if isinstance(step, Value) and step.expr == expr:
                return ref(step.name, step.axes)
        axes = tuple(a for a in AXES if a == "t" or a in free_axes(expr))
        name = self.fresh(stem)
        self.domains[name] = interval_of(expr, self.domains)
        self.axes[name] = axes
        self.meant[show(ref(name, axes))] = show(expr)
        self.steps.append(Value(name, axes, expr))
        return ref(name, axes)

    def is_read(self, declaration: StateDeclaration) -> bool:
        return declaration.name in self.used or any(r.state == declaration.name for r in self.reads.values())

    # -- the whole -----------------------------------------------------------------------------------------------------

    def ordered(self) -> tuple[Step, ...]:
        """Steps, each after those it uses; reports parts whose reads need each other."""
        waiting = [self.part(step) if isinstance(step, str) else step for step in self.steps]
        names = {n for step in waiting for n in made(step)}
        done: set[str] = set()
        ordered: list[Step] = []
        while waiting:
            ready = next((step for step in waiting if not (needed(step) & names) - done), None)
            if ready is None:
                first, second, *_ = (s.states[0].name for s in waiting if isinstance(s, Recurrence))
                message = f"what is read of `{first}` and of `{second}` depend on each other"
                helped = "each state is read as a whole, once; define one of them twice, under two names"
                self.report.fault(message, self.scope.states[first].span, helped)
                return ()
            waiting.remove(ready)
            ordered.append(ready)
            done.update(made(ready))
        return tuple(ordered)

    def composite(self, steps: tuple[Step, ...]) -> Composite:
        document = self.document
        return Composite(
            name=document.name,
            doc=document.doc,
            equations=tuple(equation.text for equation in document.equations),
            declarations=document.declarations,
            states=document.states,
            steps=steps,
            outputs=self.outputs,
            one=self.one,
            read_axes={name: self.axes[name] for name in self.reads},
            written=self.written(),
        )

    def written(self) -> frozenset[str]:
        """What states are made of."""
        made_of: dict[str, set[str]] = {}
        roots: list[str] = []
        for step in self.steps:
            match step:
                case Value(name=name, expr=expr):
                    made_of[name] = {r.name for r in refs(expr)}
                case Maximum(rise=rise, floor=floor, before=before):
                    roots += [rise, floor, before]
                case str():
                    roots += [r.name for e in self.found[step].expressions for r in refs(e)]
        made_of |= {read.name: {r.name for r in refs(read.query)} for read in self.reads.values()}
        found: set[str] = set()
        while roots:
            name = roots.pop()
            if name not in found:
                found.add(name)
                roots += made_of.get(name, ())
        return frozenset(found)

    def part(self, name: str) -> Recurrence:
        reads = [read for read in self.reads.values() if read.state == name]
        values = {step.name: step.expr for step in self.steps if isinstance(step, Value)}
        dividing = divisors(values, [o.value for o in self.outputs])
        domains = {**self.domains, self.one: point(1.0)}
        divides = any(r.name in dividing and may_cancel(r, self.found[name], domains) for r in reads)
        computed = {n: (axes, self.domains.get(n, REALS)) for n, axes in self.axes.items()}
        equation, sides = self.scope.equations[name], self.sides(name)
        return part(self.document, equation, self.found[name], sides, reads, computed, self.one, divides)


def _usual_read(declaration: StateDeclaration) -> str:
    """How an output uses a state."""
    at = ",".join(("t", *declaration.axes))
    key = declaration.key
    return f"sum({key}, q[t,{key}] * {declaration.name}[{at}])" if key else f"{declaration.name}[{at}]"


def _mentions(expr: Expr, name: str) -> bool:
    return any(r.name == name for r in refs(expr))


def _apart(node: Expr) -> tuple[str, str]:
    """The axis of a sum, and another that stands in it."""
    if not isinstance(node, Sum):
        raise InternalError(f"not a sum: {node!r}")
    others = sorted(free_axes(node.body) - {"t", node.axis})
    return node.axis, others[0] if others else ""
