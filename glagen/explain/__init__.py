"""A schedule in words: what the compiler recognised, derived and decided, for a person who wants to trust it."""

from __future__ import annotations

from dataclasses import replace

from glagen.explain.covers import certificate, covers
from glagen.explain.kernels import kernels
from glagen.explain.latex import to_latex
from glagen.explain.outline import Section
from glagen.explain.parts import combined
from glagen.explain.program import backward, forward
from glagen.explain.recurrence import recognised, spec, unrolling
from glagen.explain.text import to_text
from glagen.ir.document import Document
from glagen.ir.schedule import Ensemble, Schedule

__all__ = ["explain", "sections"]


def explain(document: Document, planned: Schedule | Ensemble, format: str = "text") -> str:
    """The explanation as plain text of at most 110 columns, or as a LaTeX document that compiles on its own.

    Requires: `planned` of `document` (`pipeline.plan`), and `format` one of "text" and "latex" (else ValueError).
    Ensures: the same text for the same spec and options.
    """
    printers = {"text": to_text, "latex": to_latex}
    if format not in printers:
        raise ValueError(f"unknown format {format!r}: expected {' or '.join(map(repr, printers))}")
    return printers[format](document.name, sections(document, planned))


def sections(document: Document, planned: Schedule | Ensemble) -> tuple[Section, ...]:
    """What is explained, in the order in which the compiler goes about it."""
    if isinstance(planned, Schedule):
        return (spec(document, planned), *_recurrence(planned))
    found = [spec(document, planned.parts[0]), combined(planned.composite)]
    for part in planned.parts:
        state = part.program.recurrence.states[0].name
        found += [replace(s, title=f"State `{state}`: {s.title}") for s in _recurrence(part)]
    return tuple(found)


def _recurrence(schedule: Schedule) -> tuple[Section, ...]:
    return (
        recognised(schedule),
        unrolling(schedule),
        forward(schedule),
        backward(schedule),
        covers(schedule),
        certificate(schedule),
        kernels(schedule),
    )
