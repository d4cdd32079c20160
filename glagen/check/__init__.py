"""Document to Recurrence: names, axes, domains, linearity, and the roles found. Refuses with all faults at once."""

from __future__ import annotations

from glagen.check.axes import check_axes
from glagen.check.domains import check_domains
from glagen.check.names import resolve
from glagen.check.report import Report
from glagen.check.roles import find_outputs, find_state
from glagen.check.substitute import substitute
from glagen.errors import InternalError, SpecError
from glagen.ir.document import Document
from glagen.ir.recurrence import Recurrence

__all__ = ["check"]

MAX_FAULTS = 100


def check(document: Document) -> Recurrence:
    """Finds the roles in a spec.

    Requires: a document from parse. Ensures: every gate's log is at most 0 and belongs to one side; writes are
    products of a key and a value; outputs are linear in reads; every expression refers to inputs at step t alone and is
    in stable form. Raises SpecError with all faults found (the first MAX_FAULTS of them).
    """
    report = Report()
    scope = resolve(document, report)
    check_axes(scope, report)
    domains = check_domains(scope, report)
    bodies = substitute(scope, report)
    state = None
    name = document.states[0].name
    if name in bodies:
        state = find_state(scope.equations[name], bodies[name], domains, report)
    sources = tuple((scope.equations[name], bodies[name]) for name in scope.outputs if name in bodies)
    outputs, reads = find_outputs(sources, name, document, report)
    if not report.diagnostics and not reads:
        helped = f"an output reads it with `sum(i, q[t,i] * {name}[t,i,j])`"
        report.fault(f"no output reads `{name}`", document.states[0].span, helped)
    if report.diagnostics:
        raise SpecError(document.source, report.diagnostics[:MAX_FAULTS])
    if state is None:
        raise InternalError("a state without roles, and no fault to show for it")
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
