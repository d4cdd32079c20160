"""What the passes of check find wrong, and which equations later passes must leave alone."""

from __future__ import annotations

from dataclasses import dataclass, field

from glagen.errors import Diagnostic, Span
from glagen.ir.expr import Expr, show

_MAX_SHOWN = 60


@dataclass(slots=True)
class Report:
    """The faults so far, and the targets of the equations at fault: one cause is reported once."""

    diagnostics: list[Diagnostic] = field(default_factory=list)
    broken: set[str] = field(default_factory=set)

    def fault(self, message: str, span: Span | None, helped: str, target: str | None = None) -> None:
        diagnostic = Diagnostic(message, span, helped)
        if diagnostic not in self.diagnostics:  # an intermediate name brings its faults wherever it is used
            self.diagnostics.append(diagnostic)
        if target is not None:
            self.broken.add(target)


def shown(expr: Expr) -> str:
    """An expression for a message, cut where it is long."""
    text = show(expr)
    return text if len(text) <= _MAX_SHOWN else f"{text[:_MAX_SHOWN]}..."
