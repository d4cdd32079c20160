"""The compiler: the one place where the stages are ordered."""

from __future__ import annotations

from glagen.check import check
from glagen.derive import derive
from glagen.emit import checksum, emit, emit_composite
from glagen.errors import Diagnostic, Source, SpecError, UnprovableError
from glagen.ir.document import Document
from glagen.ir.recurrence import Composite, Recurrence
from glagen.ir.schedule import Ensemble, Options, Schedule
from glagen.parse import parse
from glagen.schedule import schedule


def compile_spec(source: Source, options: Options | None = None) -> str:
    """A spec's text to the text of its module. Raises SpecError with every fault of the spec."""
    planned = plan(parse(source), options or Options())
    digest = checksum(source.text)
    return emit_composite(planned, digest) if isinstance(planned, Ensemble) else emit(planned, digest)


def plan(document: Document, options: Options) -> Schedule | Ensemble:
    """A parsed spec to its schedule, or those of its parts: what `compile_spec` emits and `explain` explains."""
    found = check(document)
    if isinstance(found, Composite):
        return Ensemble(found, tuple(_schedule(part, document, options) for part in found.parts))
    return _schedule(found, document, options)


def _schedule(recurrence: Recurrence, document: Document, options: Options) -> Schedule:
    try:
        planned = schedule(derive(recurrence), options)
    except UnprovableError as error:
        raise SpecError(document.source, [Diagnostic(error.message, document.chunk_span, error.help)]) from None
    if (document.subchunk or 1) > planned.chunk:
        message = f"subchunk {document.subchunk} does not divide {planned.chunk}, the chunk that `auto` chooses here"
        fault = Diagnostic(message, document.subchunk_span, "choose a smaller power of two, or `auto`")
        raise SpecError(document.source, [fault])
    return planned
