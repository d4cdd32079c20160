"""The compiler: the one place where the stages are ordered."""

from __future__ import annotations

from glagen.check import check
from glagen.derive import derive
from glagen.emit import checksum, emit
from glagen.errors import Diagnostic, Source, SpecError, UnprovableError
from glagen.ir.document import Document
from glagen.ir.schedule import Options, Schedule
from glagen.parse import parse
from glagen.schedule import schedule


def compile_spec(source: Source, options: Options | None = None) -> str:
    """A spec's text to the text of its module. Raises SpecError with every fault of the spec."""
    return emit(plan(parse(source), options or Options()), checksum(source.text))


def plan(document: Document, options: Options) -> Schedule:
    """A parsed spec to its schedule: what `compile_spec` emits and `explain` explains."""
    program = derive(check(document))
    try:
        return schedule(program, options)
    except UnprovableError as error:
        raise SpecError(document.source, [Diagnostic(error.message, document.chunk_span, error.help)]) from None
