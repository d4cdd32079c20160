"""Roles: writes and gates of the state, reads and local terms of the outputs."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from glagen import algebra
from glagen.check.domains import Domains
from glagen.check.gates import find_gates
from glagen.check.linearity import Fault, Linear, Term, Use, product
from glagen.check.report import Report, shown
from glagen.errors import InternalError, Span
from glagen.ir.document import Document, Equation
from glagen.ir.expr import Along, Expr, free_axes, plus, ref, walk
from glagen.ir.recurrence import Output, Read, State, Write

_DELTA = (
    "the update may use the old state as `D * S[t-1,i,j]` alone; a delta rule, which writes what it reads, "
    "is not supported"
)


def find_state(
    equation: Equation, body: Expr, domains: Domains, report: Report, key: str = "i", value: str = "j"
) -> State | None:
    """The gates and writes of the state that `equation` defines; None where it has none, which is reported.

    Requires: `body` is the right side with intermediate names written out, its axes and names checked; `key` and
    `value` are the axes of the state.
    """
    name = equation.target.name
    before = len(report.diagnostics)
    fault = fault_of(report, name)
    terms = Linear(name, fault, key, value).terms(body)
    if len(report.diagnostics) > before:
        return None
    for term in terms:
        if term.use is not None and term.use.query is not None:
            fault(f"the update of `{name}` reads `{name}`", term.span, _DELTA)
        else:
            require_pointwise(term.factors, term.span, fault)
    kept = tuple(term for term in terms if term.use is not None and term.use.query is None)
    if not kept and len(report.diagnostics) == before:
        previous = shown(ref(name, ("t-1", *(index.axis for index in equation.target.indices[1:]))))
        helped = f"add `{previous}`, times a gate if there is one; without it nothing is carried over time"
        fault(f"`{name}` forgets everything: `{previous}` is not in its equation", equation.target.span, helped)
    gates = find_gates(kept, domains, fault, key, value) if kept else ()
    writes = tuple(_write(term, fault, key, value) for term in terms if term.use is None)
    if not writes and len(report.diagnostics) == before:
        helped = "add a term such as `k[t,i] * v[t,j]`"
        fault(f"nothing is ever written to `{name}`", equation.target.span, helped)
    return None if len(report.diagnostics) > before else State(name, gates, writes)


def require_pointwise(factors: tuple[Expr, ...], span: Span | None, fault: Fault) -> None:
    """Gates, writes and queries are functions of single elements: a sum in one is reported."""
    inner = next((node for factor in factors for node in walk(factor) if isinstance(node, Along)), None)
    if inner is not None:
        message = f"`{shown(inner)}` inside a gate, a write or a query"
        fault(message, inner.span or span, "these are pointwise: pass this sum as an input")


def _write(term: Term, fault: Fault, key: str, value: str) -> Write:
    """A term of the update without the state: what has the axis of values is the value, all else the key."""
    keys = tuple(f for f in term.factors if value not in free_axes(f))
    values = tuple(f for f in term.factors if value in free_axes(f))
    mixed = next((f for f in values if key in free_axes(f)), None)
    if mixed is not None:
        fault(
            f"write `{shown(mixed)}` does not separate into a key part and a value part",
            mixed.span or term.span,
            f"a write is a product `a[t,{key}] * b[t,{value}]`, or a sum of such products",
        )
    return Write(algebra.stable(product(keys)), algebra.stable(product(values)))


@dataclass(slots=True)
class Reads:
    """The reads found so far, shared between outputs; `taken` are the names they must not have."""

    taken: tuple[str, ...]
    found: list[Use] = field(default_factory=list)

    def number(self, use: Use) -> int:
        """The place of a read among those found, where it is put if it is not yet."""
        if use.query is None:
            raise InternalError(f"`{use.state.name}` is read without a query")
        use = Use(use.state, algebra.stable(use.query))
        if use not in self.found:
            self.found.append(use)
        return self.found.index(use)

    def names(self) -> tuple[str, ...]:
        """`read`, or `read_1` and so on, made longer until no name of the spec begins like them."""
        stem = read_stem(self.taken)
        return (stem,) if len(self.found) == 1 else tuple(f"{stem}_{n + 1}" for n in range(len(self.found)))

    def reads(self) -> tuple[Read, ...]:
        return tuple(
            Read(name, use.state.name, use.query, use.before)
            for name, use in zip(self.names(), self.found, strict=True)
            if use.query is not None
        )


def read_stem(taken: Iterable[str]) -> str:
    """What names of reads begin with: `read`, made longer until no name of the spec begins so."""
    names, stem = tuple(taken), "read"
    while any(name.startswith(stem) for name in names):
        stem += "_"
    return stem


def find_outputs(
    equations: tuple[tuple[Equation, Expr], ...], state: str, document: Document, report: Report
) -> tuple[tuple[Output, ...], tuple[Read, ...]]:
    """The outputs, as expressions of reads and inputs, and the reads.

    Requires: right sides with intermediate names written out, their axes and names checked.
    Ensures, if nothing is reported: outputs are linear in the reads, and sums that remain are of inputs alone.
    """
    taken = tuple(d.name for d in document.declarations) + tuple(e.target.name for e in document.equations)
    reads = Reads((*taken, document.name, *(s.name for s in document.states)))
    pending: list[tuple[str, list[tuple[Term, int | None]]]] = []
    for equation, body in equations:
        fault = fault_of(report, equation.target.name)
        terms = Linear(state, fault).terms(body)
        for term in terms:
            if term.use is not None and term.use.query is not None:
                require_pointwise((term.use.query,), term.span, fault)
        pending.append((equation.target.name, [(t, reads.number(t.use) if t.use else None) for t in terms]))
    names = reads.names()
    outputs = []
    for name, uses in pending:
        parts = [product(t.factors if n is None else (*t.factors, ref(names[n], ("t", "j")))) for t, n in uses]
        outputs.append(Output(name, ("t", "j"), algebra.stable(plus(*parts))))
    return tuple(outputs), reads.reads()


def fault_of(report: Report, target: str) -> Fault:
    """Reports faults of one equation."""
    return lambda message, span, helped: report.fault(message, span, helped, target)
