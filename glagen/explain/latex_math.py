"""Formulas as LaTeX mathematics. Marks of layout.py stand where a long one may break, never inside braces."""

from __future__ import annotations

import re
import unicodedata

from glagen.errors import InternalError
from glagen.explain.layout import PRODUCT, SUM, unmarked
from glagen.explain.outline import Chain, Exponential, Formula, Product, SumOver, Total
from glagen.ir.chunk import Decay, Operand
from glagen.ir.expr import FUNCTIONS, Apply, Expr, Number, Ref, Softmax, Sum

JOINS = {SUM: (" ", ""), PRODUCT: (r"\,", r"\times ")}

_LETTERS = (
    "alpha beta gamma delta epsilon zeta eta theta iota kappa lambda mu nu xi pi rho sigma tau upsilon phi chi psi"
)
GREEK = frozenset([*_LETTERS.split(), "omega"])
NAMED = {
    "exp": r"\exp",
    "log": r"\log",
    "sigmoid": r"\sigma",
    "logsigmoid": r"\log\sigma",
    "tanh": r"\tanh",
    "min": r"\min",
    "max": r"\max",
}
OPERATOR = r"\operatorname{%s}"
WORDS = {"tau": r"\tau", "inf": r"\infty", "by": r"\times"}
RELATION = {"<=": r"\le ", ">=": r"\ge ", "<": "<", ">": ">"}
_SPECIAL = {c: f"\\{c}" for c in "#$%&_{}"} | {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    '"': "''",
}


def escape(text: str) -> str:
    """Words as LaTeX source: nothing in them is a command, and pdflatex has a glyph for each letter."""
    return "".join(_letter(c) for c in text)


def _letter(c: str) -> str:
    if c in _SPECIAL:
        return _SPECIAL[c]
    if " " <= c <= "~":
        return c
    name = unicodedata.name(c, "").lower()
    if name.startswith("greek small letter ") and name.split()[-1] in GREEK:
        return f"$\\{name.split()[-1]}$"
    if c in "\u2013\u2014":
        return "--" if c == "\u2013" else "---"
    plain = unicodedata.normalize("NFKD", c)
    if c.isalpha() and ord(c) < 0x180:
        return c
    return plain if plain.isascii() and plain.isprintable() else "?"


# -- names and indices -------------------------------------------------------------------------------------------------


def name(text: str) -> str:
    if text in GREEK and text != "tau":  # tau is the step whose gate is asked for
        return f"\\{text}"
    return text if len(text) == 1 else f"\\mathrm{{{escape(text)}}}"


def index(text: str) -> str:
    """An axis, a step, or a bound such as `t-1`."""
    return {"tau": r"\tau", **{word: f"\\mathrm{{{word}}}" for word in ("sequences", "chunks")}}.get(text, text)


def symbols(text: str) -> str:
    """Symbols as running text writes them: `s <= tau`."""
    text = re.sub(r"[A-Za-z]\w+", lambda word: WORDS.get(word[0]) or f"\\mathrm{{{escape(word[0])}}}", text)
    for sign, command in RELATION.items():
        text = text.replace(sign, command) if len(sign) > 1 else text
    return text.replace("..", r"\dots ")


def indexed(text: str, indices: tuple[str, ...]) -> str:
    return f"{name(text)}_{{{','.join(map(index, indices))}}}" if indices else name(text)


def decay(x: Decay) -> str:
    features = f"[{','.join(x.axes)}]" if x.axes else ""
    gate = name(x.gate)
    return f"\\mathcal{{D}}^{{{gate}}}_{{{index(str(x.lower))}\\to {index(str(x.upper))}}}{features}"


def chain(where: Chain) -> str:
    return "".join(RELATION.get(word) or index(word) for word in where)


# -- formulas ----------------------------------------------------------------------------------------------------------


def formula(x: Formula, around: int = 0) -> str:
    """`around` is the binding strength of what surrounds it: 1 sums, 2 products, 4 powers."""
    match x:
        case Expr():
            return expression(x, around)
        case Operand(name=text, indices=indices):
            return indexed(text, indices)
        case Decay():
            return decay(x)
        case Product(factors=factors):
            return f"{PRODUCT}".join(formula(f, 2) for f in factors)
        case SumOver(indices=indices, body=body, where=where):
            under = chain(where) if where else ",".join(map(index, indices))
            return f"\\sum_{{{under}}} {formula(body, 2)}"
        case Exponential(body=body):
            return f"\\exp\\Bigl({formula(body)}\\Bigr)" if isinstance(body, SumOver) else f"\\exp({formula(body)})"
        case Total():
            return _bracketed(_total(x), around > 1)
        case _:
            raise InternalError(f"cannot write {x!r}")


def _total(x: Total) -> str:
    first, *rest = x.signed()
    text = ("-" if first[0] else "") + formula(first[1], 1)
    return text + "".join(f"{SUM}{'-' if minus else '+'} {formula(term, 1)}" for minus, term in rest)


def _bracketed(text: str, needed: bool) -> str:
    return f"({text})" if needed else text


def flat(text: str) -> str:
    """Without marks: what stands inside braces cannot break."""
    return unmarked(text, JOINS)


def expression(expr: Expr, around: int = 0) -> str:
    """An expression of the spec language, in the notation of papers."""
    match expr:
        case Number(value=value):
            sign, size = "-" if value < 0 else "", abs(value)
            whole = str(size) if size.denominator == 1 else f"\\tfrac{{{size.numerator}}}{{{size.denominator}}}"
            return _bracketed(sign + whole, bool(sign) and around > 1)
        case Ref(name=text, indices=indices):
            return indexed(text, tuple(map(str, indices)))
        case Sum(axis=axis, body=body):
            return _bracketed(f"\\sum_{{{axis}}} {expression(body, 2)}", around > 1)
        case Softmax(axis=axis, body=body):
            return f"\\operatorname{{softmax}}_{{{axis}}}\\bigl({expression(body)}\\bigr)"
        case Apply():
            return _apply(expr, around)
        case _:
            raise InternalError(f"cannot write {expr!r}")


def _apply(expr: Apply, around: int) -> str:
    match expr:
        case Apply(function="add" | "sub" as f, args=(x, y)):
            sign = "+" if f == "add" else "-"
            right = expression(y, 2 if f == "sub" or _negative(y) else 1)
            return _bracketed(f"{expression(x, 1)}{SUM}{sign} {right}", around > 1)
        case Apply(function="neg", args=(x,)):
            return _bracketed(f"-{expression(x, 2)}", around > 1)
        case Apply(function="mul", args=(x, y)):
            right = expression(y, 3)
            sign = "\\cdot " if right[:1].isdigit() else ""
            return _bracketed(f"{expression(x, 2)}{PRODUCT}{sign}{right}", around > 3)
        case Apply(function="div", args=(x, y)):
            text = _quotient(x, y)
            return _bracketed(text, around > (3 if text.startswith("\\frac") else 2))
        case Apply(function="pow", args=(x, y)):
            return _bracketed(_power(x, y), around > 3)
        case Apply(function="sqrt", args=(x,)):
            return f"\\sqrt{{{flat(expression(x))}}}"
        case Apply(function="abs", args=(x,)):
            return f"|{flat(expression(x))}|"
        case Apply(function=f, args=args):
            inner = f",{PRODUCT}".join(expression(a) for a in args) if len(args) > 1 else expression(args[0])
            return f"{NAMED.get(f) or OPERATOR % escape(f)}({inner})"
        case _:
            raise InternalError(f"cannot write {expr!r}")


def _negative(expr: Expr) -> bool:
    match expr:
        case Number(value=value):
            return value < 0
        case Apply(function="neg"):
            return True
        case Apply(function="mul" | "div" | "add" | "sub", args=(x, _)):
            return _negative(x)
        case _:
            return False


def _quotient(x: Expr, y: Expr) -> str:
    above, below = flat(expression(x)), flat(expression(y))
    if max(width(above), width(below)) <= 30:
        return f"\\frac{{{above}}}{{{below}}}"
    return f"{expression(x, 2)}{PRODUCT}/\\,{expression(y, 4)}"


def _power(x: Expr, y: Expr) -> str:
    match y:
        case Number(value=value) if value.denominator != 1:
            exponent = f"{value.numerator}/{value.denominator}"
        case _:
            exponent = re.sub(r"\\tfrac\{(\d+)\}\{(\d+)\}", r"\1/\2", flat(expression(y)))
    base = expression(x, 4)
    match x:
        case Number(value=v):
            simple = v >= 0 and v.denominator == 1
        case Apply(function=f):
            simple = f in FUNCTIONS
        case _:
            simple = isinstance(x, Ref)
    return f"{base if simple or base.startswith('(') else f'({base})'}^{{{exponent}}}"


# -- width -------------------------------------------------------------------------------------------------------------


def width(text: str) -> float:
    """About how wide a formula is set, in letters of running text."""
    text = flat(text)
    small = sum(len(_glyphs(s)) for s in re.findall(r"[_^]\{((?:[^{}]|\{[^{}]*\})*)\}", text))
    operators = len(re.findall(r" [-+=] |\\times|\\cdot|\\sum|\\to", text))
    return len(_glyphs(text)) - 0.35 * small + 0.8 * operators


def _glyphs(text: str) -> str:
    text = re.sub(r"\\(?:mathrm|operatorname|mathcal|frac|tfrac|textbackslash|,)", "", text)
    text = re.sub(r"\\[A-Za-z]+", "x", text)
    return re.sub(r"[\\{}_^ ]", "", text)
