"""Equations and expressions: lark's trees as Expr, every node with its place in the file."""

from __future__ import annotations

import re
from dataclasses import dataclass
from fractions import Fraction
from functools import cache
from pathlib import Path

from lark import Lark, Token, Tree, UnexpectedCharacters, UnexpectedInput, UnexpectedToken

from glagen.errors import Diagnostic, InternalError, Span, did_you_mean
from glagen.ir.document import AXES, Equation
from glagen.ir.expr import ALONG, FUNCTIONS, OPERATORS, Apply, Expr, Index, Number, Ref
from glagen.parse.reader import Scalar

MAX_CHARACTERS = 5_000
MAX_DEPTH = 100
_MAX_EXPONENT = 250  # numbers must fit float64

_FORM = "an expression has numbers, names such as `k[t,i]`, `+ - * / **`, parentheses, functions and `sum(i, ...)`"


def parse_equation(scalar: Scalar, faults: list[Diagnostic]) -> Equation | None:
    """The equation a scalar holds, or None with the faults that prevent it."""
    builder = _Builder(scalar, faults)
    tree = builder.tree("equation")
    if tree is None:
        return None
    target, body = (builder.expr(child, 0) for child in tree.children)
    if not isinstance(target, Ref):
        raise InternalError(f"an equation's target is {target!r}")
    text = " ".join(scalar.text.split())
    equation = Equation(target, body, text, builder.span(0, len(scalar.text.rstrip())))
    return None if builder.broken else equation


def parse_expression(scalar: Scalar, faults: list[Diagnostic]) -> Expr | None:
    """The expression a scalar holds, or None with the faults that prevent it."""
    builder = _Builder(scalar, faults)
    tree = builder.tree("expression")
    if tree is None:
        return None
    expr = builder.expr(tree.children[0], 0)
    return None if builder.broken else expr


@cache
def _grammar() -> Lark:
    text = (Path(__file__).parent / "grammar.lark").read_text(encoding="utf-8")
    return Lark(text, parser="lalr", start=["equation", "expression"], propagate_positions=True)


@dataclass(slots=True)
class _Builder:
    """Turns one scalar's tree into expressions and gathers its faults."""

    scalar: Scalar
    faults: list[Diagnostic]
    places: list[tuple[int, int]] | None = None
    broken: bool = False

    def span(self, begin: int, end: int) -> Span:
        """The place of text[begin:end], as far as it stays on one line."""
        if self.places is None:
            self.places = self.scalar.places()
        line, column = self.places[begin]
        where = zip(self.places[begin:end], self.scalar.text[begin:end], strict=False)
        last = max((at[1] for at, character in where if at[0] == line and not character.isspace()), default=column)
        return Span(line, column, last - column + 1)

    def fault(self, message: str, span: Span, helped: str) -> Expr:
        self.broken = True
        self.faults.append(Diagnostic(message, span, helped))
        return Number(Fraction(0), span=span)

    def tree(self, start: str) -> Tree[Token] | None:
        text = self.scalar.text
        if len(text) > MAX_CHARACTERS:
            self.fault(
                f"this {start} has {len(text):,} characters; at most {MAX_CHARACTERS:,} are allowed",
                self.scalar.span,
                "name its parts: equations may define intermediate names",
            )
            return None
        if start == "equation" and "=" not in text:
            self.fault("this is not an equation", self.scalar.span, "write `name[axes] = expression`")
            return None
        try:
            return _grammar().parse(text, start=start)
        except UnexpectedInput as error:
            self.syntax(error, start)
            return None

    def syntax(self, error: UnexpectedInput, start: str) -> None:
        """Says what was found and what would have been right."""
        text = self.scalar.text
        if isinstance(error, UnexpectedToken) and error.token.type != "$END":
            begin = error.token.start_pos or 0
            found = str(error.token)
        elif isinstance(error, UnexpectedCharacters):
            begin = error.pos_in_stream or 0
            found = text[begin]
        else:
            end = len(text.rstrip())
            place = self.span(end - 1, end) if end else self.scalar.span
            self.fault(f"the {start} ends too early", place, "complete it, or close its brackets")
            return
        before = text[:begin].rstrip()[-1:]
        self.fault(
            f"unexpected `{_printable(found)}`",
            self.span(begin, begin + len(found)),
            _syntax_help(found, before, text[:begin], start),
        )

    def expr(self, node: Tree[Token] | Token, depth: int) -> Expr:
        """The expression of a tree. Refuses to go deeper than MAX_DEPTH, so that no pass runs out of stack."""
        tree = _subtree(node)
        span = self.span(tree.meta.start_pos, tree.meta.end_pos)
        if depth > MAX_DEPTH:
            if self.broken:
                return Number(Fraction(0), span=span)
            return self.fault(
                f"this expression has more than {MAX_DEPTH} levels or terms",
                self.scalar.span,
                "name its parts: equations may define intermediate names",
            )
        match tree.data:
            case "group":
                return self.expr(tree.children[0], depth + 1)
            case "number":
                return self.number(str(tree.children[0]), span)
            case "reference":
                return self.reference(tree, span)
            case "call":
                return self.call(tree, span, depth)
            case operator if operator in OPERATORS:
                return Apply(operator, tuple(self.expr(c, depth + 1) for c in tree.children), span=span)
            case _:
                raise InternalError(f"the grammar has no rule {tree.data!r}")

    def number(self, text: str, span: Span) -> Expr:
        mantissa, _, exponent = text.lower().partition("e")
        if len(mantissa) > 40 or len(exponent) > 5 or abs(int(exponent or 0)) > _MAX_EXPONENT:
            shown = text if len(text) <= 20 else f"{text[:20]}..."
            return self.fault(
                f"number `{shown}` is out of range", span, "numbers have at most 40 digits and fit float64"
            )
        return Number(Fraction(text.removesuffix(".") if "e" not in text.lower() else text), span=span)

    def reference(self, tree: Tree[Token], span: Span) -> Expr:
        name, *indices = tree.children
        return Ref(str(name), tuple(self.index(_subtree(index)) for index in indices), span=span)

    def index(self, tree: Tree[Token]) -> Index:
        axis = str(tree.children[0])
        sign = {"now": 0, "back": -1, "ahead": 1}[tree.data]
        span = self.span(tree.meta.start_pos, tree.meta.end_pos)
        if axis not in AXES:
            self.fault(f"`{axis}` is not an axis", span, "subscripts are t (time), i (key), s (slot) and j (value)")
            return Index("t")
        if not sign:
            return Index(axis)
        steps = str(tree.children[1])
        if axis != "t":
            self.fault(f"`{axis}` cannot be shifted", span, f"only t can be: write `{axis}`")
        elif not steps.isdigit() or len(steps) > 9:
            self.fault(f"`{_printable(steps)}` is not a number of steps", span, "write a whole number, as in `t-1`")
        else:
            return Index(axis, sign * int(steps))
        return Index(axis)

    def call(self, tree: Tree[Token], span: Span, depth: int) -> Expr:
        name, *rest = tree.children
        function = str(name)
        if function in ALONG:
            return self.along(function, [_subtree(arg) for arg in rest], span, depth)
        args = tuple(self.expr(arg, depth + 1) for arg in rest)
        if function not in FUNCTIONS:
            known = ", ".join((*FUNCTIONS, *ALONG))
            helped = did_you_mean(function, (*FUNCTIONS, *ALONG)) or f"the functions are {known}"
            if all(isinstance(arg, Ref) and arg.name in AXES for arg in args):
                helped = f"subscripts stand in square brackets: `{function}[...]`"
            return self.fault(f"`{function}` is not a function", _token_span(self, name), helped)
        if len(args) != FUNCTIONS[function]:
            many = "one argument" if FUNCTIONS[function] == 1 else "two arguments"
            return self.fault(f"`{function}` takes {many}, not {len(args)}", span, f"give it {many}")
        return Apply(function, args, span=span)

    def along(self, function: str, args: list[Tree[Token]], span: Span, depth: int) -> Expr:
        axis = str(args[0].children[0]) if args[0].data == "reference" and len(args[0].children) == 1 else None
        if len(args) != 2 or axis not in AXES:
            example = f"{function}(i, q[t,i]{' * S[t,i,j]' if function == 'sum' else ''})"
            return self.fault(f"`{function}` takes an axis and an expression", span, f"write `{example}`")
        return ALONG[function](axis, self.expr(args[1], depth + 1), span=span)


def _subtree(tree: Tree[Token] | Token) -> Tree[Token]:
    if not isinstance(tree, Tree):
        raise InternalError(f"a bare token {tree!r} in an expression")
    return tree


def _token_span(builder: _Builder, token: Tree[Token] | Token) -> Span:
    if not isinstance(token, Token):
        raise InternalError(f"{token!r} is not a token")
    return builder.span(token.start_pos or 0, token.end_pos or 0)


def _syntax_help(found: str, before: str, head: str, start: str) -> str:
    """What would have been right where `found` stands, after the text `head` that ends in `before`."""
    if found == "^":
        return "write powers as `**`"
    if found == "=":
        return "an equation has one `=`" if start == "equation" else "write the right-hand side alone"
    if not found.isascii():
        return "names are made of the letters a-z and A-Z, digits and `_`; operators are + - * / and `**`"
    if re.fullmatch(r"[\w.(]+", found) and re.fullmatch(r"[\w.)\]]", before):
        return "put an operator between the two; a product is written with `*`"
    if found in ")]" or head.count("(") != head.count(")") or head.count("[") != head.count("]"):
        return "check that the brackets before it match"
    return _FORM


def _printable(text: str) -> str:
    text = text if len(text) <= 20 else f"{text[:20]}..."
    return "".join(c if c.isprintable() else f"\\x{ord(c):02x}" for c in text)
