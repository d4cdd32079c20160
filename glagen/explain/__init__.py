"""A schedule in words: what the compiler recognised, derived and decided, for a person who wants to trust it."""

from __future__ import annotations

from glagen.explain.covers import certificate, covers
from glagen.explain.kernels import kernels
from glagen.explain.latex import to_latex
from glagen.explain.outline import Section
from glagen.explain.program import backward, forward
from glagen.explain.recurrence import recognised, spec, unrolling
from glagen.explain.text import to_text
from glagen.ir.document import Document
from glagen.ir.schedule import Schedule

__all__ = ["explain", "sections"]


def explain(document: Document, schedule: Schedule, format: str = "text") -> str:
    """The explanation as plain text of at most 110 columns, or as a LaTeX document that compiles on its own.

    Requires: the schedule of `document` (`pipeline.plan`), and `format` one of "text" and "latex" (else ValueError).
    Ensures: the same text for the same spec and options.
    """
    printers = {"text": to_text, "latex": to_latex}
    if format not in printers:
        raise ValueError(f"unknown format {format!r}: expected {' or '.join(map(repr, printers))}")
    return printers[format](document.name, sections(document, schedule))


def sections(document: Document, schedule: Schedule) -> tuple[Section, ...]:
    """What is explained, in the order in which the compiler goes about it."""
    return (
        spec(document, schedule),
        recognised(schedule),
        unrolling(schedule),
        forward(schedule),
        backward(schedule),
        covers(schedule),
        certificate(schedule),
        kernels(schedule),
    )
