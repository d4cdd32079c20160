"""Several states: each a recurrence of its own, and outputs that are pointwise in what is read of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from glagen import algebra
from glagen.check.domains import Domains, check_values
from glagen.check.linearity import Linear, add, product
from glagen.check.names import Scope
from glagen.check.report import Report, shown
from glagen.check.roles import Reads, fault_of, find_state, require_pointwise
from glagen.errors import InternalError
from glagen.ir.document import Declaration, Document, StateDeclaration
from glagen.ir.expr import Expr, Ref, Sum, apply, number, ref, refs, rewrite
from glagen.ir.recurrence import Composite, Output, Read, Recurrence, State, Write


def find_parts(
    document: Document, scope: Scope, bodies: Mapping[str, Expr], domains: Domains, report: Report
) -> Composite | None:
    """The recurrences of a spec and its outputs; None where something is wrong, which is reported.

    Requires: `bodies` are right sides with intermediate names written out, axes and names checked.
    """
    finder = _Finder(document, scope, report)
    outputs = tuple(finder.output(name, bodies[name]) for name in scope.outputs if name in bodies)
    found = {}
    for name in (s.name for s in document.states if s.name in bodies):
        if finder.alone(name, bodies[name]):
            found[name] = find_state(scope.equations[name], bodies[name], domains, report)
    for output in outputs:
        check_values(bodies[output.name], output.name, domains, report)
    reads = finder.reads.reads()
    for declaration in document.states:
        if not report.diagnostics and not any(read.state == declaration.name for read in reads):
            helped = f"an output reads it with `{finder.usual_read(declaration)}`"
            report.fault(f"no output reads `{declaration.name}`", declaration.span, helped)
    if report.diagnostics:
        return None
    parts = []
    for declaration in document.states:
        state = found[declaration.name]
        if state is None:
            raise InternalError("a state without roles, and no fault to show for it")
        parts.append(finder.part(declaration, state, tuple(r for r in reads if r.state == declaration.name)))
    names = dict(zip(finder.placeholders(), finder.reads.names(), strict=True))
    outputs = tuple(replace(o, value=algebra.stable(_renamed(o.value, names))) for o in outputs)
    equations = tuple(equation.text for equation in document.equations)
    declarations, states = document.declarations, document.states
    return Composite(document.name, document.doc, equations, declarations, states, tuple(parts), outputs, finder.one)


class _Finder:
    """Finds the reads of all states and puts parts together."""

    def __init__(self, document: Document, scope: Scope, report: Report) -> None:
        self.document, self.scope, self.report = document, scope, report
        self.taken = (*scope.declarations, *scope.equations, *scope.states, document.name)
        self.reads = Reads(self.taken)
        self.one = "one"
        while self.one in self.taken:
            self.one += "_"

    def placeholders(self) -> tuple[str, ...]:
        """What reads are called while more of them are being found; no name of a spec begins with a digit."""
        return tuple(f"{n}" for n in range(len(self.reads.found)))

    def output(self, name: str, body: Expr) -> Output:
        """An output with every read in its place."""
        return Output(name, ("t", "j"), rewrite(body, lambda node: self.read(node, name)))

    def read(self, node: Expr, target: str) -> Expr | None:
        """What stands for a sum, over a state or over inputs alone, and for a state without keys; None for all else."""
        if not isinstance(node, Ref | Sum):
            return None
        names = tuple(dict.fromkeys(r.name for r in refs(node) if r.name in self.scope.states))
        if isinstance(node, Ref) and (not names or "i" in self.scope.states[node.name].axes):
            return None
        fault = fault_of(self.report, target)
        if len(names) > 1:
            fault(f"one sum over `{names[0]}` and `{names[1]}`", node.span, "write a sum of its own for each state")
            return number(0)
        axes = self.scope.states[names[0]].axes if names else ()
        parts = []
        for term in Linear(names[0] if names else "", fault).terms(node):
            factors = term.factors
            if term.use is not None:
                query = term.use.query
                if query is None and "i" in axes:
                    fault(f"`{shown(term.use.state)}` is not summed over i", node.span, "a read is a sum over keys")
                    return number(0)
                use = replace(term.use, query=ref(self.one, ("t", "i")) if query is None else query)
                require_pointwise((*term.factors, *((query,) if query else ())), term.span, fault)
                factors = (*factors, ref(f"{self.reads.number(use)}", ("t", "j") if "j" in axes else ("t",)))
            parts.append(product(factors))
        return add(tuple(parts))

    def alone(self, name: str, body: Expr) -> bool:
        """Whether a state depends on no other; reports it where it does."""
        other = next((r for r in refs(body) if r.name in self.scope.states and r.name != name), None)
        if other is not None:
            helped = "a state depends on inputs and on itself; combine states in an output"
            self.report.fault(f"state `{name}` depends on state `{other.name}`", other.span, helped, name)
        return other is None

    def usual_read(self, declaration: StateDeclaration) -> str:
        at = ",".join(declaration.axes)
        return f"sum(i, q[t,i] * {declaration.name}[t,{at}])" if "i" in at else f"{declaration.name}[t,{at}]"

    def part(self, declaration: StateDeclaration, state: State, reads: tuple[Read, ...]) -> Recurrence:
        """The recurrence of one state, with keys and values, and with its reads as outputs."""
        document = self.document
        keys, values = "i" in declaration.axes, "j" in declaration.axes
        writes = tuple(
            Write(
                w.key if keys else _times(w.key, ref(self.one, ("t", "i"))),
                w.value if values else _times(w.value, ref(self.one, ("t", "j"))),
            )
            for w in state.writes
        )
        state = replace(state, writes=writes)
        exprs = [g.log for g in state.gates] + [e for w in writes for e in (w.key, w.value)] + [r.query for r in reads]
        used = {r.name for e in exprs for r in refs(e)}
        declarations = [d for d in document.declarations if d.name in used]
        if self.one in used:
            axes = ("t", "j") if keys else ("t", "i")
            declarations.append(Declaration(self.one, "input", axes, None, None, "", declaration.span))
        summed = tuple(replace(r, name=f"{r.name}_of_{r.state}") for r in reads)
        outputs = (Output(r.name, ("t", "j"), ref(s.name, ("t", "j"))) for r, s in zip(reads, summed, strict=True))
        return Recurrence(
            name=f"{document.name}_{declaration.name}",
            doc=document.doc,
            equations=(self.scope.equations[declaration.name].text,),
            declarations=tuple(declarations),
            states=(state,),
            reads=summed,
            outputs=tuple(outputs),
            chunk=document.chunk,
            subchunk=document.subchunk,
            part_of=document.name,
        )


def _times(x: Expr, y: Expr) -> Expr:
    return y if x == number(1) else apply("mul", x, y)


def _renamed(expr: Expr, names: Mapping[str, str]) -> Expr:
    return rewrite(expr, lambda n: replace(n, name=names[n.name]) if isinstance(n, Ref) and n.name in names else None)
