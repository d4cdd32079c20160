"""The top level of a spec: its keys, in one Document."""

from __future__ import annotations

from dataclasses import dataclass

from glagen.errors import Diagnostic, Source, Span, SpecError
from glagen.ir.document import Declaration, Document, Equation, StateDeclaration
from glagen.ir.expr import Ref
from glagen.ir.names import shadows
from glagen.parse.declarations import check_keys, check_name, parse_declarations, parse_text
from glagen.parse.expression import parse_equation, parse_expression
from glagen.parse.reader import Mapping, Node, Scalar, Sequence, compose

_KEYS = ("name", "doc", "inputs", "state", "equations", "chunk", "subchunk")
_REQUIRED = {
    "name": "add `name: my_op`",
    "inputs": "add `inputs:` with a line such as `q: [t, i]` for each tensor",
    "state": "add `state: S[i, j]`",
    "equations": "add `equations:` with a line such as `- o[t,j] = sum(i, q[t,i] * S[t,i,j])`",
}
MAX_FAULTS = 100


def parse(source: Source) -> Document:
    """Reads a spec.

    Ensures: keys, names, axes of declarations, domains, chunk sizes and the syntax of equations are right, and every
    expression carries its place. Raises SpecError with all faults found (the first MAX_FAULTS of them).
    """
    faults: list[Diagnostic] = []
    root = compose(source, faults)
    document = None
    if isinstance(root, Mapping):
        document = _document(source, root, faults)
    elif not faults:
        span = root.span if root is not None else None
        message = "the spec is empty" if root is None else "a spec is a mapping of keys to values"
        faults.append(Diagnostic(message, span, f"a spec has the keys {', '.join(_KEYS)}"))
    if document is None or faults:
        raise SpecError(source, faults[:MAX_FAULTS])
    return document


def _document(source: Source, root: Mapping, faults: list[Diagnostic]) -> Document:
    entries = check_keys(root, _KEYS, faults)
    if not faults:  # otherwise a key that is wrong may well be the one that is missing
        faults.extend(Diagnostic(f"the spec has no `{k}`", None, h) for k, h in _REQUIRED.items() if k not in entries)
    nodes = {key: value for key, (_, value) in entries.items()}
    name = _name(nodes["name"], faults) if "name" in nodes else ""
    chunk = _size(nodes.get("chunk"), "chunk", 16, faults)
    subchunk = _size(nodes.get("subchunk"), "subchunk", 1, faults)
    if chunk.value and subchunk.value and subchunk.value > chunk.value:
        message = f"subchunk {subchunk.value} does not divide chunk {chunk.value}"
        faults.append(Diagnostic(message, subchunk.span, "choose a smaller power of two, or `auto`"))
    return Document(
        source=source,
        name=name,
        doc=parse_text(nodes["doc"], "`doc`", faults) if "doc" in nodes else "",
        declarations=_declarations(nodes.get("inputs"), name, faults),
        states=_states(nodes.get("state"), faults),
        equations=_equations(nodes.get("equations"), faults),
        chunk=chunk.value,
        subchunk=subchunk.value,
        chunk_span=chunk.span,
        subchunk_span=subchunk.span,
    )


def _name(node: Node, faults: list[Diagnostic]) -> str:
    name = parse_text(node, "`name`", faults)
    if isinstance(node, Scalar):
        check_name(name, node.span, faults, of_op=True)
        if shadows(name):
            help = "choose another name: the generated module uses this one itself"
            faults.append(Diagnostic(f"an op cannot be called `{name}`", node.span, help))
    return name


def _declarations(node: Node | None, name: str, faults: list[Diagnostic]) -> tuple[Declaration, ...]:
    if node is None:
        return ()
    if not isinstance(node, Mapping) or not node.entries:
        faults.append(Diagnostic("`inputs` must map names to axes", node.span, "write lines such as `q: [t, i]`"))
        return ()
    for key, _ in node.entries:
        if name and key.text == name:
            faults.append(Diagnostic(f"`{name}` is the op's own name", key.span, "choose another name for the input"))
    return parse_declarations(node, faults)


def _states(node: Node | None, faults: list[Diagnostic]) -> tuple[StateDeclaration, ...]:
    """One state, or a list of them. Their number and axes are the check's business."""
    if node is None:
        return ()
    items = node.items if isinstance(node, Sequence) else (node,)
    states = []
    for item in items:
        state = parse_expression(item, faults) if isinstance(item, Scalar) and item.text else None
        if isinstance(state, Ref) and isinstance(item, Scalar):
            check_name(state.name, item.span, faults)
            shifted = any(index.shift for index in state.indices)
            if not shifted:
                states.append(StateDeclaration(state.name, tuple(i.axis for i in state.indices), item.span))
                continue
        if state is not None or not isinstance(item, Scalar) or not item.text:
            faults.append(Diagnostic("this is not a state", item.span, "write `state: S[i, j]`"))
    if not items:
        faults.append(Diagnostic("the spec has no state", node.span, "write `state: S[i, j]`"))
    return tuple(states)


def _equations(node: Node | None, faults: list[Diagnostic]) -> tuple[Equation, ...]:
    if node is None:
        return ()
    if not isinstance(node, Sequence) or not node.items:
        helped = "write one per line, each after `- `"
        faults.append(Diagnostic("`equations` must be a list of equations", node.span, helped))
        return ()
    equations = []
    for item in node.items:
        if not isinstance(item, Scalar):
            helped = "write `name[axes] = expression`, with `=` and not `:`, in quotes if need be"
            faults.append(Diagnostic("this is not an equation", item.span, helped))
            continue
        equation = parse_equation(item, faults)
        if equation is not None:
            span = equation.target.span or equation.span
            check_name(equation.target.name, span, faults)
            equations.append(equation)
    return tuple(equations)


@dataclass(frozen=True, slots=True)
class _Size:
    value: int | None
    span: Span | None


def _size(node: Node | None, key: str, least: int, faults: list[Diagnostic]) -> _Size:
    """A chunk size: a power of two from `least` to 256, or None for `auto`."""
    if node is None:
        return _Size(None, None)
    text = node.text if isinstance(node, Scalar) else ""
    if text == "auto":
        return _Size(None, node.span)
    value = int(text) if text.isdecimal() and len(text) <= 6 else 0
    if not least <= value <= 256 or value & (value - 1):
        message = f"`{key}` is not a power of two from {least} to 256"
        faults.append(Diagnostic(message, node.span, "write 64, say, or `auto`"))
        return _Size(None, node.span)
    return _Size(value, node.span)
