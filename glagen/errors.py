"""What can go wrong, and how it is shown: SpecError is the user's to mend, InternalError is ours."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Span:
    """A place in a spec's text: 1-based line and column, and how many characters on that line."""

    line: int
    column: int
    length: int = 1


@dataclass(frozen=True, slots=True)
class Source:
    """A spec's text and the path shown in messages."""

    path: str
    text: str

    def line(self, number: int) -> str:
        lines = self.text.splitlines()
        return lines[number - 1] if 1 <= number <= len(lines) else ""


@dataclass(frozen=True, slots=True)
class Diagnostic:
    """One fault of a spec: what, where (None: the file as a whole), and what to do about it."""

    message: str
    span: Span | None
    help: str

    def render(self, source: Source) -> str:
        if self.span is None:
            return f"{source.path}: {self.message}\nhelp: {self.help}"
        line = source.line(self.span.line)
        start = self.span.column - 1
        excerpt, start = _window(line, start)
        length = max(1, min(self.span.length, len(excerpt) - start))
        caret = " " * start + "^" * length
        return (
            f"{source.path}:{self.span.line}:{self.span.column}: {self.message}\n"
            f"    {excerpt}\n    {caret}\nhelp: {self.help}"
        )


def _window(line: str, start: int, width: int = 160) -> tuple[str, int]:
    """The part of a long line around `start`, and where `start` lies in it."""
    line = line.replace("\t", " ")
    if len(line) <= width:
        return line, start
    begin = max(0, min(start - width // 2, len(line) - width))
    return line[begin : begin + width], start - begin


class SpecError(Exception):
    """Every fault found in a spec, in order of position."""

    def __init__(self, source: Source, diagnostics: list[Diagnostic]) -> None:
        self.source = source
        self.diagnostics = tuple(sorted(diagnostics, key=lambda d: (d.span.line, d.span.column) if d.span else (0, 0)))
        super().__init__(self.render())

    def render(self) -> str:
        return "\n\n".join(d.render(self.source) for d in self.diagnostics)


class InternalError(Exception):
    """A stage broke a promise of its own. Names the statement at fault; never the user's mistake."""


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """A help line that names the known word most like `word`, or nothing."""
    close = difflib.get_close_matches(word, list(known), n=1, cutoff=0.65)
    return f"did you mean `{close[0]}`?" if close else ""


class UnprovableError(Exception):
    """A cover that a user asked for has no stability certificate for a gate of this spec."""

    def __init__(self, message: str, help: str) -> None:
        super().__init__(message)
        self.message, self.help = message, help
