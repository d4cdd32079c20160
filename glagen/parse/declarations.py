"""The `inputs:` of a spec: names with their kinds, axes, domains and defaults."""

from __future__ import annotations

import keyword
import math
import re

from glagen.errors import Diagnostic, InternalError, Span, did_you_mean
from glagen.ir.document import AXES, KINDS, Declaration
from glagen.ir.expr import ALONG, FUNCTIONS, Expr
from glagen.ir.interval import Interval
from glagen.ir.names import derived_pattern
from glagen.parse.expression import parse_expression
from glagen.parse.reader import Mapping, Node, Scalar, Sequence

MODULES = ("torch", "triton", "tl", "math", "os")  # what a generated module imports
ARGUMENTS = (  # of every op and step
    *("initial_state", "output_final_state", "final_state", "state", "states"),
    *("cu_seqlens", "segment", "inplace"),
)
EXTENTS = ("K", "V", "T", "H", "h")
INDICES = ("t", "i", "j")  # axes that generated code has as names
_KEYS = ("axes", "kind", "domain", "default", "value", "doc")
_DEFAULT_KEYS = {"scalar": "default", "constant": "value"}
_DOMAIN = re.compile(r"\s*([\[(])\s*([^\s,]+)\s*,\s*([^\s,]+)\s*([\])])\s*")


def parse_declarations(node: Mapping, faults: list[Diagnostic]) -> tuple[Declaration, ...]:
    """Every declaration that is well formed, in order; a fault for every other."""
    found = []
    for key, value in node.entries:
        before = len(faults)
        check_name(key.text, key.span, faults)
        declaration = _declaration(key, value, faults)
        if declaration is not None and len(faults) == before:
            found.append(declaration)
    return tuple(found)


def check_name(name: str, span: Span, faults: list[Diagnostic], of_op: bool = False) -> None:
    """Refuses what cannot be, or must not be, a name in the generated code: of a tensor, or of the op."""
    if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]{0,63}", name):
        faults.append(
            Diagnostic(f"`{_short(name)}` is not a name", span, "a name has letters, digits and `_`, at most 64")
        )
    elif name.startswith("_"):
        faults.append(Diagnostic(f"`{name}` begins with an underscore", span, "such names are the generated code's"))
    elif keyword.iskeyword(name):
        faults.append(Diagnostic(f"`{name}` is a word of Python", span, "choose another name"))
    elif name in (*INDICES, *EXTENTS, *FUNCTIONS, *ALONG, *ARGUMENTS, *MODULES):
        faults.append(Diagnostic(f"`{name}` is reserved", span, f"choose another name: {_reserved_for(name)}"))
    elif not of_op and (pattern := derived_pattern(name)):
        where = "begin with" if name.startswith(pattern) else "end in"
        help = f"names that {where} `{pattern}` are the generated code's; choose another"
        faults.append(Diagnostic(f"`{name}` could meet a name of the generated code", span, help))


def parse_text(node: Node, what: str, faults: list[Diagnostic]) -> str:
    if isinstance(node, Scalar):
        return node.text.strip()
    faults.append(Diagnostic(f"{what} must be one value", node.span, "write a word or a text, not a list"))
    return ""


def check_keys(node: Mapping, known: tuple[str, ...], faults: list[Diagnostic]) -> dict[str, tuple[Scalar, Node]]:
    """The entries of a mapping by key, without those that are not `known`."""
    entries = {}
    for key, value in node.entries:
        if key.text in known:
            entries[key.text] = (key, value)
        else:
            listed = f"the keys are {', '.join(known)}; quote values that contain commas"
            faults.append(
                Diagnostic(f"unknown key `{_short(key.text)}`", key.span, did_you_mean(key.text, known) or listed)
            )
    return entries


def _declaration(key: Scalar, node: Node, faults: list[Diagnostic]) -> Declaration | None:
    match node:
        case Sequence():
            axes = _axes(node, "input", faults)
            return Declaration(key.text, "input", axes, None, None, "", key.span)
        case Mapping():
            return _full_declaration(key, node, faults)
        case Scalar():
            faults.append(
                Diagnostic(f"`{_short(key.text)}` needs axes", node.span, "write `name: [t, i]` or `{axes: ..., ...}`")
            )
            return None
        case _:
            raise InternalError(f"unknown YAML node {node!r}")


def _full_declaration(key: Scalar, node: Mapping, faults: list[Diagnostic]) -> Declaration:
    entries = check_keys(node, _KEYS, faults)
    kind = _kind(entries["kind"][1], faults) if "kind" in entries else "input"
    axes: tuple[str, ...] = ()
    if "axes" in entries:
        axes = _axes(entries["axes"][1], kind, faults)
    elif kind in ("input", "parameter", "constant"):
        axes_help = "add `axes: [t, i]`" if kind == "input" else "add `axes: [i]`, or `axes: []` for a number per head"
        faults.append(Diagnostic(f"`{_short(key.text)}` needs axes", key.span, axes_help))
    domain = _domain(entries["domain"][1], faults) if "domain" in entries else None
    default = _default(kind, entries, faults)
    doc = parse_text(entries["doc"][1], "`doc`", faults) if "doc" in entries else ""
    return Declaration(key.text, kind, axes, domain, default, doc, key.span)


def _kind(node: Node, faults: list[Diagnostic]) -> str:
    """The kind, or "" where it is not one, so that nothing further is said about it."""
    kind = parse_text(node, "`kind`", faults)
    if kind in KINDS:
        return kind
    if isinstance(node, Scalar):
        listed = f"the kinds are {', '.join(KINDS)}"
        faults.append(Diagnostic(f"`{_short(kind)}` is not a kind", node.span, did_you_mean(kind, KINDS) or listed))
    return ""


def _axes(node: Node, kind: str, faults: list[Diagnostic]) -> tuple[str, ...]:
    """The axes a list names, fit for the kind; an empty tuple with a fault where they are not."""
    if not isinstance(node, Sequence) or not all(isinstance(item, Scalar) for item in node.items):
        faults.append(Diagnostic("axes must be a list", node.span, "write `[t, i]`"))
        return ()
    wrong = [item for item in node.items if isinstance(item, Scalar) and item.text not in AXES]
    for item in wrong:
        known = "axes are t (time), i (key), s (slot) and j (value); batch and head are implicit"
        faults.append(Diagnostic(f"`{_short(item.text)}` is not an axis", item.span, known))
    if wrong:
        return ()
    axes = tuple(item.text for item in node.items if isinstance(item, Scalar))
    ordered = tuple(axis for axis in AXES if axis in axes)
    if kind == "scalar" and axes:
        fault = Diagnostic("a scalar has no axes", node.span, "remove `axes`, or say `kind: parameter`")
    elif axes != ordered:
        fault = Diagnostic(f"axes [{', '.join(axes)}] are out of order", node.span, f"write [{', '.join(ordered)}]")
    elif kind == "input" and "t" not in axes:
        fault = Diagnostic("an input has axis t", node.span, "add t in front, or say `kind: parameter` or `constant`")
    elif kind in ("parameter", "constant") and "t" in axes:
        fault = Diagnostic(f"a {kind} has no axis t", node.span, "remove t, or say `kind: input`")
    else:
        return axes
    faults.append(fault)
    return ()


def _domain(node: Node, faults: list[Diagnostic]) -> Interval | None:
    helped = 'write an interval in quotes: "[-inf, 0]" with its ends, "(0, 1)" without them'
    match = _DOMAIN.fullmatch(node.text) if isinstance(node, Scalar) else None
    if match is None:
        faults.append(Diagnostic("this is not a domain", node.span, helped))
        return None
    left, low_text, high_text, right = match.groups()
    low, high = _end(low_text), _end(high_text)
    if math.isnan(low) or math.isnan(high):
        wrong = low_text if math.isnan(low) else high_text
        faults.append(Diagnostic(f"`{_short(wrong)}` is not a number", node.span, helped))
        return None
    interval = Interval(low, high, left == "(", right == ")")
    if low > high or (low == high and (interval.low_open or interval.high_open or math.isinf(low))):
        faults.append(Diagnostic(f"domain {interval} is empty", node.span, "put the smaller end first"))
        return None
    return interval


def _end(text: str) -> float:
    """One end of an interval; NaN where the text is no number."""
    if not re.fullmatch(r"[+-]?(inf|(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?)", text):
        return math.nan
    return float(text)


def _default(kind: str, entries: dict[str, tuple[Scalar, Node]], faults: list[Diagnostic]) -> Expr | None:
    """What a call that omits the argument gets: `default` of a scalar, `value` of a constant."""
    allowed = _DEFAULT_KEYS.get(kind)
    found = None
    for word, owner in (("default", "scalar"), ("value", "constant")):
        if word not in entries or not kind:
            continue
        key, node = entries[word]
        if word != allowed:
            helped = f"write `{allowed}`" if allowed else f"remove it, or say `kind: {owner}`"
            faults.append(Diagnostic(f"`{word}` is for a {owner}; this is of kind {kind}", key.span, helped))
        elif isinstance(node, Scalar):
            found = parse_expression(node, faults)
        else:
            faults.append(Diagnostic(f"`{word}` must be an expression", node.span, "put it in quotes"))
    return found


def _reserved_for(name: str) -> str:
    if name in INDICES:
        return "it is an axis"
    if name in EXTENTS:
        return "K, V, T and H are extents and h is the head"
    if name in FUNCTIONS or name in ALONG:
        return "it is a function"
    if name in ARGUMENTS:
        return "it is an argument or result of every generated op"
    return "the generated module imports it"


def _short(text: str) -> str:
    text = "".join(c if c.isprintable() else " " for c in text)
    return text if len(text) <= 40 else f"{text[:40]}..."
