"""Scalar expressions in index notation: what equations are made of, from the parser to the printers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from fractions import Fraction

from glagen.errors import InternalError, Span

# Pointwise functions of the spec language and how many arguments each takes.
FUNCTIONS: dict[str, int] = {
    "exp": 1,
    "log": 1,
    "sigmoid": 1,
    "logsigmoid": 1,
    "softplus": 1,
    "tanh": 1,
    "relu": 1,
    "elu": 1,
    "silu": 1,
    "sqrt": 1,
    "abs": 1,
    "min": 2,
    "max": 2,
}
# Arithmetic. And there are functions that only stable forms and derivatives have:
# `expm1(x)` is exp(x) - 1 without cancellation;
# `step(x)` is 0, 1/2, 1 for x negative, zero, positive; `positive(x)` is 0, 0, 1; `sign(x)` is -1, 0, 1;
# `clamp(x)` bounds a log gate below where its exponential is 0 in the type at hand, `unclamped(x)` is 1 above, 0 below,
# and `passed(x, y)` is y above, 0 below, whatever y is there;
# `grow(x)` is exp(-x), a growth;
# `shrink(x)` is exp(x) for decays that growths meet: not a number where it would vanish, and the growth with it.
OPERATORS = frozenset({"add", "sub", "mul", "div", "pow", "neg"})


@dataclass(frozen=True, slots=True)
class Index:
    """One subscript: an axis (t, i, s or j) and, on t alone, a shift (`t-1` has shift -1)."""

    axis: str
    shift: int = 0

    def __str__(self) -> str:
        return self.axis if not self.shift else f"{self.axis}{self.shift:+d}"


@dataclass(frozen=True, slots=True)
class Expr:
    """A node. `span` says where it stands in the spec; it takes no part in equality."""

    span: Span | None = field(default=None, compare=False, repr=False, kw_only=True)


@dataclass(frozen=True, slots=True)
class Number(Expr):
    """An exact constant."""

    value: Fraction


@dataclass(frozen=True, slots=True)
class Ref(Expr):
    """A name with its subscripts: `g[t,i]`, `scale`, `S[t-1,i,j]`. Extents (K, V, T, H) and h have none."""

    name: str
    indices: tuple[Index, ...] = ()


@dataclass(frozen=True, slots=True)
class Apply(Expr):
    """A function or operator applied to its arguments."""

    function: str
    args: tuple[Expr, ...]


@dataclass(frozen=True, slots=True)
class Along(Expr):
    """A function of a whole row: along one axis."""

    axis: str
    body: Expr


@dataclass(frozen=True, slots=True)
class Sum(Along):
    """sum(axis, body), which does not have the axis."""


@dataclass(frozen=True, slots=True)
class Softmax(Along):
    """softmax(axis, body): exp(body) over its sum along the axis, which it still has."""


ALONG: dict[str, type[Along]] = {"sum": Sum, "softmax": Softmax}  # as they are called in the spec language


def number(value: int | Fraction) -> Number:
    return Number(Fraction(value))


def ref(name: str, axes: tuple[str, ...] = ()) -> Ref:
    return Ref(name, tuple(Index(axis) for axis in axes))


def apply(function: str, *args: Expr) -> Apply:
    return Apply(function, args)


def plus(*terms: Expr) -> Expr:
    """The sum of terms as one would write it, with differences; 0 if there are none."""
    total = terms[0] if terms else number(0)
    for term in terms[1:]:
        match term:
            case Apply(function="neg", args=(x,)):
                total = apply("sub", total, x)
            case Number(value=value) if value < 0:
                total = apply("sub", total, Number(-value))
            case _:
                total = apply("add", total, term)
    return total


def times(*factors: Expr) -> Expr:
    """The product of factors, of which there is one at least."""
    product, *rest = factors
    for factor in rest:
        product = apply("mul", product, factor)
    return product


def terms(total: Expr) -> list[Expr]:
    """What a sum is the sum of: the expression itself, if it is none."""
    return _operands(total, "add")


def factors(product: Expr) -> list[Expr]:
    """What a product is the product of: the expression itself, if it is none."""
    return _operands(product, "mul")


def _operands(expr: Expr, function: str) -> list[Expr]:
    if isinstance(expr, Apply) and expr.function == function:
        return [x for arg in expr.args for x in _operands(arg, function)]
    return [expr]


def children(expr: Expr) -> tuple[Expr, ...]:
    match expr:
        case Apply(args=args):
            return args
        case Along(body=body):
            return (body,)
        case Number() | Ref():
            return ()
        case _:
            raise InternalError(f"unknown expression {expr!r}")


def walk(expr: Expr) -> Iterator[Expr]:
    """Every node, parents first, left to right."""
    stack = [expr]
    while stack:
        node = stack.pop()
        yield node
        stack.extend(reversed(children(node)))


def refs(expr: Expr) -> tuple[Ref, ...]:
    """The distinct references of an expression, in order of appearance."""
    return tuple(dict.fromkeys(node for node in walk(expr) if isinstance(node, Ref)))


def free_axes(expr: Expr) -> frozenset[str]:
    """The axes an expression varies along: those of its references that no sum binds."""
    match expr:
        case Number():
            return frozenset()
        case Ref(indices=indices):
            return frozenset(index.axis for index in indices)
        case Sum(axis=axis, body=body):
            return free_axes(body) - {axis}
        case _:
            return frozenset().union(*(free_axes(child) for child in children(expr)))


def rewrite(expr: Expr, leaf: Callable[[Expr], Expr | None]) -> Expr:
    """A copy of `expr` in which `leaf(node)`, where it is not None, stands for node (parents are asked first)."""
    replaced = leaf(expr)
    if replaced is not None:
        return replaced
    match expr:
        case Apply(args=args):
            return replace(expr, args=tuple(rewrite(a, leaf) for a in args))
        case Along(body=body):
            return replace(expr, body=rewrite(body, leaf))
        case Number() | Ref():
            return expr
        case _:
            raise InternalError(f"unknown expression {expr!r}")


def with_axes(expr: Expr, called: Mapping[str, str]) -> Expr:
    """The expression with its references' axes called otherwise. Requires: no sum binds one of them."""

    def leaf(node: Expr) -> Expr | None:
        if not isinstance(node, Ref):
            return None
        return replace(node, indices=tuple(Index(called.get(x.axis, x.axis), x.shift) for x in node.indices))

    return rewrite(expr, leaf)


def renamed(expr: Expr, names: Mapping[str, str]) -> Expr:
    """The expression with its references called otherwise."""
    return rewrite(expr, lambda x: replace(x, name=names[x.name]) if isinstance(x, Ref) and x.name in names else None)


_INFIX = {"add": (" + ", 1), "sub": (" - ", 1), "mul": (" * ", 2), "div": (" / ", 2), "pow": ("**", 4)}


def show(expr: Expr, parent: int = 0) -> str:
    """The expression in the spec language, with the fewest parentheses (`parent`: binding strength around it)."""
    match expr:
        case Number(value=value):
            text = str(value)
            return f"({text})" if (value < 0 or value.denominator != 1) and parent > 1 else text
        case Ref(name=name, indices=indices):
            return f"{name}[{','.join(map(str, indices))}]" if indices else name
        case Along(axis=axis, body=body):
            return f"{type(expr).__name__.lower()}({axis}, {show(body)})"
        case Apply(function="neg", args=(Number(value=value),)):
            return show(Number(-value), parent)
        case Apply(function="neg", args=(x,)):
            text = f"-{show(x, 3)}"
            return f"({text})" if parent > 1 else text
        case Apply(function=function, args=(x, y)) if function in _INFIX:
            sign, strength = _INFIX[function]
            left = show(x, strength + (function == "pow"))
            right = show(y, strength + (function in ("sub", "div")))
            text = f"{left}{sign}{right}"
            return f"({text})" if strength < parent else text
        case Apply(function=function, args=args):
            return f"{function}({', '.join(show(a) for a in args)})"
        case _:
            raise InternalError(f"unknown expression {expr!r}")
