"""Document to Recurrence: names, axes, domains, linearity, and the roles found. Refuses with all faults at once."""

from __future__ import annotations

from collections.abc import Mapping

from glagen.check.axes import check_axes
from glagen.check.domains import Domains, check_domains
from glagen.check.names import STATE_AXES, Scope, resolve
from glagen.check.parts import find_parts
from glagen.check.report import Report
from glagen.check.roles import find_outputs, find_state
from glagen.check.substitute import substitute
from glagen.errors import InternalError, SpecError
from glagen.ir.document import Document
from glagen.ir.expr import Along, Expr, Softmax, walk
from glagen.ir.recurrence import Composite, Recurrence

__all__ = ["check"]

MAX_FAULTS = 100


def check(document: Document) -> Recurrence | Composite:
    """Finds the roles in a spec.

    Requires: a document from parse. Ensures: every gate's log is at most 0 and belongs to one side; writes are
    products of a key and a value; every expression refers to inputs at step t alone and is in stable form. One state
    with keys and values, and outputs that are linear in its reads, make a Recurrence; all else makes a Composite.
    Raises SpecError with all faults found (the first MAX_FAULTS of them).
    """
    report = Report()
    scope = resolve(document, report)
    if any(state.axes not in STATE_AXES for state in document.states):  # or else all that has them is at fault
        raise SpecError(document.source, report.diagnostics[:MAX_FAULTS])
    check_axes(scope, report)
    domains = check_domains(scope, report)
    bodies = substitute(scope, report)
    sound = not report.diagnostics
    found: Recurrence | Composite | None
    rows = any(isinstance(node, Softmax) for body in bodies.values() for node in walk(body))
    if [state.axes for state in document.states] == [("i", "j")] and not rows:
        found = _recurrence(document, scope, bodies, domains, report)
        if found is None and sound:  # perhaps because outputs are not linear in reads, or a gate has a sum
            report = Report()
            found = find_parts(document, scope, bodies, domains, report)
    else:
        found = find_parts(document, scope, bodies, domains, report)
    if found is not None:
        return found
    if not report.diagnostics:
        raise InternalError("a spec without meaning, and no fault to show for it")
    raise SpecError(document.source, report.diagnostics[:MAX_FAULTS])


def _recurrence(
    document: Document, scope: Scope, bodies: Mapping[str, Expr], domains: Domains, report: Report
) -> Recurrence | None:
    """The recurrence of one state; None where something is wrong, which is reported."""
    state = None
    name = document.states[0].name
    if name in bodies:
        state = find_state(scope.equations[name], bodies[name], domains, report)
    sources = tuple((scope.equations[name], bodies[name]) for name in scope.outputs if name in bodies)
    outputs, reads = find_outputs(sources, name, document, report)
    if not report.diagnostics and not reads:
        helped = f"an output reads it with `sum(i, q[t,i] * {name}[t,i,j])`"
        report.fault(f"no output reads `{name}`", document.states[0].span, helped)
    if report.diagnostics or state is None:
        return None
    if any(isinstance(node, Along) for read in reads for node in walk(read.query)):
        return None  # a kernel may have a block of the axis, and the sum is needed whole
    return Recurrence(
        name=document.name,
        doc=document.doc,
        equations=tuple(equation.text for equation in document.equations),
        declarations=document.declarations,
        states=(state,),
        reads=reads,
        outputs=outputs,
        chunk=document.chunk,
        subchunk=document.subchunk,
    )
