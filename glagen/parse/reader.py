"""Files and YAML: a spec's text as a tree of scalars, lists and mappings, each with its place."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from glagen.errors import Diagnostic, InternalError, Source, Span, SpecError

MAX_BYTES = 1_000_000
MAX_EVENTS = 20_000
MAX_DEPTH = 16

_QUOTE_HELP = 'put values that contain `: `, ` #`, commas or brackets in quotes, as in "[-inf, 0]"'


@dataclass(frozen=True, slots=True)
class Scalar:
    """A YAML scalar: its text, and the stretch of the file that it was read from."""

    text: str
    span: Span
    raw: str
    style: str | None  # the YAML style: None (plain), a quote, | or >

    def places(self) -> list[tuple[int, int]]:
        """Line and column of each character of `text` and of its end; all the scalar's start where that is unclear."""
        start = (self.span.line, self.span.column)
        if self.style == '"' and "\\" in self.raw:
            return [start] * (len(self.text) + 1)
        where = _positions(self.raw, *start)
        at = {None: 0, "'": 1, '"': 1}.get(self.style, self.raw.find("\n") + 1)
        places = []
        for character in self.text:
            if not character.isspace():
                at = self.raw.find(character, at)
                if at < 0:
                    return [start] * (len(self.text) + 1)
            places.append(where[at])
            at = min(at + (2 if character == self.style == "'" else 1), len(self.raw))
        return [*places, where[at]]


@dataclass(frozen=True, slots=True)
class Sequence:
    items: tuple[Node, ...]
    span: Span


@dataclass(frozen=True, slots=True)
class Mapping:
    entries: tuple[tuple[Scalar, Node], ...]
    span: Span


Node = Scalar | Sequence | Mapping


def read(path: str | Path) -> Source:
    """The spec in a file. Raises SpecError where there is none, or where it is not a text of reasonable size."""
    source = Source(str(path), "")
    try:
        with open(path, "rb") as file:
            data = file.read(MAX_BYTES + 1)
        if len(data) > MAX_BYTES:
            raise SpecError(source, [_too_large()])
        return Source(str(path), data.decode("utf-8-sig"))
    except FileNotFoundError:
        fault = Diagnostic("there is no such file", None, "check the path; the specs of glagen lie in specs/")
    except IsADirectoryError:
        fault = Diagnostic("this is a directory, not a spec", None, "name one .yaml file")
    except UnicodeDecodeError as error:
        fault = Diagnostic(f"byte {error.start} is not UTF-8", None, "save the file as UTF-8 text")
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else error
        fault = Diagnostic(f"the file cannot be read: {reason}", None, "check the path and its permissions")
    raise SpecError(source, [fault]) from None


def compose(source: Source, faults: list[Diagnostic]) -> Node | None:
    """The tree of a YAML text, or None with the fault that prevents it.

    Ensures: no aliases, tags or second documents; at most MAX_DEPTH levels; no recursion on the way.
    """
    if len(source.text) > MAX_BYTES:
        faults.append(_too_large())
        return None
    try:
        return _compose(source.text, faults)
    except yaml.reader.ReaderError as error:
        line, column = _positions(source.text[: error.position], 1, 1)[-1]
        faults.append(
            Diagnostic(f"character {error.character:#x} is not text", Span(line, column), "remove this character")
        )
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        if error.context_mark and ("flow" in str(error.context) or "quoted" in str(error.context)):
            mark = error.context_mark if mark is None or mark.line > error.context_mark.line else mark
        place = Span(mark.line + 1, mark.column + 1) if mark else None
        parts = [part for part in (error.context, error.problem) if part]
        helped = "indent with spaces, not tabs" if "'\\t'" in str(error.problem) else _QUOTE_HELP
        faults.append(Diagnostic(f"this is not YAML: {', '.join(parts)}", place, helped))
    return None


def _compose(text: str, faults: list[Diagnostic]) -> Node | None:
    """Builds nodes from YAML's events on an explicit stack: (place of the collection, its children so far)."""
    root: Node | None = None
    stack: list[tuple[yaml.Event, list[Node]]] = []
    for count, event in enumerate(yaml.parse(text, Loader=yaml.SafeLoader)):
        refused = _refusal(event, first=root is None, size=count, depth=len(stack))
        if refused is not None:
            faults.append(refused)
            return None
        node: Node
        if isinstance(event, yaml.CollectionStartEvent):
            stack.append((event, []))
            continue
        if isinstance(event, yaml.ScalarEvent):
            raw = text[_mark(event.start_mark).index : _mark(event.end_mark).index]
            node = Scalar(event.value, _span(event, raw), raw, event.style)
        elif isinstance(event, yaml.CollectionEndEvent):
            start, children = stack.pop()
            raw = text[_mark(start.start_mark).index : _mark(event.end_mark).index]
            node = _collection(start, raw, children, faults)
        else:
            continue
        if stack:
            stack[-1][1].append(node)
        else:
            root = node
    return root


def _collection(start: yaml.Event, raw: str, children: list[Node], faults: list[Diagnostic]) -> Node:
    """A list, or a mapping with unique plain keys."""
    place = _span(start, raw)
    if isinstance(start, yaml.SequenceStartEvent):
        return Sequence(tuple(children), place)
    entries: dict[str, tuple[Scalar, Node]] = {}
    for key, value in zip(children[::2], children[1::2], strict=True):
        if not isinstance(key, Scalar):
            faults.append(Diagnostic("a key must be a name", key.span, _QUOTE_HELP))
        elif key.text in entries:
            first = entries[key.text][0].span.line
            faults.append(
                Diagnostic(f"`{key.text}` is given twice", key.span, f"remove one; the first is on line {first}")
            )
        else:
            entries[key.text] = (key, value)
    return Mapping(tuple(entries.values()), place)


def _refusal(event: yaml.Event, first: bool, size: int, depth: int) -> Diagnostic | None:
    """Why a spec may not contain this event, if it may not."""
    if isinstance(event, yaml.AliasEvent) or getattr(event, "anchor", None) is not None:
        return Diagnostic("anchors and aliases have no place in a spec", _span(event, ""), "write the value out")
    if tag := getattr(event, "tag", None):
        return Diagnostic(f"tag `{tag}` has no place in a spec", _span(event, ""), "remove the tag")
    if isinstance(event, yaml.DocumentStartEvent) and not first:
        return Diagnostic("a second YAML document begins here", _span(event, "---"), "keep one spec in a file")
    if size > MAX_EVENTS:
        return Diagnostic(f"a spec has at most {MAX_EVENTS:,} entries", _span(event, ""), "is this file a spec?")
    if depth > MAX_DEPTH:
        return Diagnostic(f"lists nest more than {MAX_DEPTH} deep", _span(event, ""), "is this file a spec?")
    return None


def _span(event: yaml.Event, raw: str) -> Span:
    first_line = raw.split("\n", 1)[0].rstrip()
    start = _mark(event.start_mark)
    return Span(start.line + 1, start.column + 1, max(1, len(first_line)))


def _mark(mark: Any) -> Any:
    """PyYAML sets every mark of an event, though its types allow none."""
    if mark is None:
        raise InternalError("a YAML event without a place")
    return mark


def _positions(text: str, line: int, column: int) -> list[tuple[int, int]]:
    """Line and column of each character of `text`, and of its end, when it starts at the given place."""
    positions = [(line, column)]
    for index, character in enumerate(text):
        if character in "\n\x85\u2028\u2029" or (character == "\r" and text[index + 1 : index + 2] != "\n"):
            line, column = line + 1, 1
        else:
            column += 1
        positions.append((line, column))
    return positions


def _too_large() -> Diagnostic:
    return Diagnostic(f"a spec is at most {MAX_BYTES:,} bytes; this is more", None, "is this file a spec?")
