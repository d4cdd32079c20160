"""Linearity: an expression as a sum of terms, each a product of factors and at most one use of the state."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from glagen.check.report import shown
from glagen.errors import InternalError, Span
from glagen.ir.expr import Apply, Expr, Number, Ref, Sum, apply, free_axes, number, plus, walk

MAX_TERMS = 256
ONE = number(1)
MINUS_ONE = number(-1)

Fault = Callable[[str, Span | None, str], None]


@dataclass(frozen=True, slots=True)
class Use:
    """One use of the state: S[t+shift,i,j] itself, or, with a query, sum_i query[t,i] S[t+shift,i,j]."""

    state: Ref
    query: Expr | None = None

    @property
    def before(self) -> bool:
        return any(index.shift for index in self.state.indices)


@dataclass(frozen=True, slots=True)
class Term:
    """A product. No factor refers to the state; each has axis i or axis j but not both, where that can be had."""

    factors: tuple[Expr, ...]
    use: Use | None
    span: Span | None


@dataclass(frozen=True, slots=True)
class Linear:
    """Writes expressions as sums of terms, linear in one state with these axes of keys and values."""

    state: str
    fault: Fault
    key: str = "i"
    value: str = "j"

    def terms(self, expr: Expr) -> tuple[Term, ...]:
        """The terms whose sum is `expr`.

        Ensures: expanded only where the state or a mixture of i and j makes it necessary. Where `expr` is not linear
        in the state, that is reported and its terms are left out.
        """
        if not self.uses_state(expr) and self.pure(expr.body if isinstance(expr, Sum) else expr):
            return (Term(_factors(expr), None, expr.span),)
        match expr:
            case Ref(name=name) if name == self.state:
                return (Term((), Use(expr), expr.span),)
            case Apply(function="add", args=(x, y)):
                return self.limited(self.terms(x) + self.terms(y), expr)
            case Apply(function="sub", args=(x, y)):
                return self.limited(self.terms(x) + _scaled(self.terms(y), MINUS_ONE), expr)
            case Apply(function="neg", args=(x,)):
                return _scaled(self.terms(x), MINUS_ONE)
            case Apply(function="mul", args=(x, y)):
                return self.product(self.terms(x), self.terms(y), expr)
            case Apply(function="div", args=(x, y)):
                return self.quotient(x, y)
            case Apply(function="pow", args=(x, Number(value=n))) if n.denominator == 1 and 1 <= n <= 8:
                return self.power(self.terms(x), int(n), expr)
            case Apply(function="exp", args=(x,)) if not self.uses_state(x):
                return (Term(self.exp(self.terms(x)), None, expr.span),)
            case Sum(axis=axis, body=body):
                return self.summed(axis, self.terms(body), expr)
            case Apply() if not self.uses_state(expr):
                return (Term((expr,), None, expr.span),)
            case Apply(function=function):
                self.nonlinear("a power" if function == "pow" else f"`{function}`", expr)
                return ()
            case Ref():
                return (Term((expr,), None, expr.span),)
            case _:
                raise InternalError(f"unknown expression {expr!r}")

    def uses_state(self, expr: Expr) -> bool:
        return any(isinstance(node, Ref) and node.name == self.state for node in walk(expr))

    def nonlinear(self, where: str, expr: Expr) -> None:
        self.fault(
            f"`{self.state}` inside {where}: the recurrence is not linear in `{self.state}`",
            expr.span,
            f"only a sum of products, each with at most one `{self.state}`, can be computed chunk by chunk",
        )

    def limited(self, terms: tuple[Term, ...], expr: Expr) -> tuple[Term, ...]:
        if len(terms) <= MAX_TERMS:
            return terms
        self.fault(
            f"this multiplies out to more than {MAX_TERMS} terms", expr.span, "write it as products of fewer sums"
        )
        return ()

    def product(self, left: tuple[Term, ...], right: tuple[Term, ...], expr: Expr) -> tuple[Term, ...]:
        if any(x.use for x in left) and any(y.use for y in right):
            self.fault(
                f"a product of two uses of `{self.state}`: the recurrence is not linear in `{self.state}`",
                expr.span,
                f"keep at most one `{self.state}` in a product; multiply outputs outside the op",
            )
            return ()
        if len(left) * len(right) > MAX_TERMS:
            return self.limited(left * len(right), expr)
        return tuple(Term(x.factors + y.factors, x.use or y.use, expr.span) for x in left for y in right)

    def power(self, base: tuple[Term, ...], exponent: int, expr: Expr) -> tuple[Term, ...]:
        terms = base
        for _ in range(exponent - 1):
            terms = self.product(terms, base, expr)
        return terms

    def quotient(self, x: Expr, y: Expr) -> tuple[Term, ...]:
        if self.uses_state(y):
            self.fault(
                f"division by `{self.state}`: the recurrence is not linear in `{self.state}`",
                y.span,
                "give numerator and denominator as two outputs and divide them outside the op",
            )
            return ()
        divisor = self.terms(y)
        factors = divisor[0].factors if len(divisor) == 1 else (y,)
        return _scaled(self.terms(x), *(apply("div", ONE, factor) for factor in factors))

    def summed(self, axis: str, terms: tuple[Term, ...], expr: Expr) -> tuple[Term, ...]:
        """The terms of sum(axis, ...): factors without the axis leave the sum, a use of the state becomes a read."""
        found: list[Term] = []
        for term in terms:
            summed = self.summed_term(axis, term, expr)
            if summed is None:
                continue
            for n, other in enumerate(found):
                if other.use and summed.use and (other.factors, other.use.state) == (summed.factors, summed.use.state):
                    found[n] = replace(other, use=_joined(other.use, summed.use))
                    break
            else:
                found.append(summed)
        return tuple(_unsigned(term) for term in found)

    def summed_term(self, axis: str, term: Term, expr: Expr) -> Term | None:
        use = term.use
        if use is not None and use.query is None:
            if axis != self.key:
                helped = (
                    f"`{self.state}` is read along its keys: `sum({self.key}, q[t,{self.key}] * {shown(use.state)})`"
                )
                self.fault(f"`{self.state}` is summed over {axis}", expr.span, helped)
                return None
            outside = tuple(f for f in term.factors if self.value in free_axes(f))
            mixed = next((f for f in outside if self.key in free_axes(f)), None)
            if mixed is not None:
                self.fault(
                    f"`{shown(mixed)}` does not separate into a part of {self.key} and a part of {self.value}",
                    mixed.span or term.span,
                    f"a read is `sum({self.key}, q[t,{self.key}] * {shown(use.state)})`, times something of "
                    f"[t,{self.value}]",
                )
                return None
            query = product(tuple(f for f in term.factors if self.value not in free_axes(f)))
            return Term(outside, Use(use.state, query), expr.span)
        inside = tuple(f for f in term.factors if axis in free_axes(f))
        outside = tuple(f for f in term.factors if axis not in free_axes(f))
        if use is not None and axis == self.value:
            self.fault(f"a read is summed over {axis}", expr.span, "sum outputs over their values outside the op")
            return None
        if not inside:
            self.fault(
                f"a term of this sum does not depend on {axis}", term.span, f"take it out of the sum over {axis}"
            )
            return None
        mixed = next((f for f in inside if not self.pure(f)), None)
        if mixed is not None:
            self.fault(
                f"`{shown(mixed)}` in a sum over {axis} does not separate into a part of {self.key} and a part of "
                f"{self.value}",
                mixed.span or expr.span,
                f"a local sum is over products of what has {self.key} and what has {self.value}; pass this sum as an "
                "input",
            )
            return None
        return Term((*outside, Sum(axis, product(inside), span=expr.span)), use, expr.span)

    def pure(self, expr: Expr) -> bool:
        return not {self.key, self.value} <= free_axes(expr)

    def exp(self, terms: tuple[Term, ...]) -> tuple[Expr, ...]:
        """exp of a sum as a product: what has no values' axis, what has no keys', and each term that has both."""
        exponents = [product(term.factors) for term in terms]
        key = [x for x in exponents if self.value not in free_axes(x)]
        value = [x for x in exponents if self.value in free_axes(x) and self.key not in free_axes(x)]
        mixed = [x for x in exponents if not self.pure(x)]
        groups = [group for group in (key, value, *([x] for x in mixed)) if group]
        return tuple(apply("exp", plus(*group)) for group in groups)


def product(factors: tuple[Expr, ...]) -> Expr:
    """The product of factors, as one would write it."""
    sign = 1
    result: Expr | None = None
    divisors = []
    for factor in factors:
        match factor:
            case Number(value=value) if value in (1, -1):
                sign *= int(value)
            case Apply(function="div", args=(Number(value=value), divisor)) if value == 1:
                divisors.append(divisor)
            case _:
                result = factor if result is None else apply("mul", result, factor)
    if result is None and not divisors:
        return number(sign)
    result = result or ONE
    for divisor in divisors:
        result = apply("div", result, divisor)
    return apply("neg", result) if sign < 0 else result


def _factors(expr: Expr) -> tuple[Expr, ...]:
    """The factors of a product that does not refer to the state."""
    match expr:
        case Apply(function="mul", args=(x, y)):
            return _factors(x) + _factors(y)
        case Apply(function="div", args=(x, y)) if x != ONE:
            return (*_factors(x), *(apply("div", ONE, factor) for factor in _factors(y)))
        case Apply(function="neg", args=(x,)):
            return (MINUS_ONE, *_factors(x))
        case _:
            return (expr,)


def _scaled(terms: tuple[Term, ...], *factors: Expr) -> tuple[Term, ...]:
    return tuple(replace(term, factors=factors + term.factors) for term in terms)


def _unsigned(term: Term) -> Term:
    """The term with the sign of its query in front, so that a read and its negative are one."""
    match term.use:
        case Use(state=state, query=Apply(function="neg", args=(query,))):
            return replace(term, factors=(MINUS_ONE, *term.factors), use=Use(state, query))
        case _:
            return term


def _joined(x: Use, y: Use) -> Use:
    """Two reads of one state as one: their queries add up."""
    if x.query is None or y.query is None:
        raise InternalError("a bare state has come out of a sum")
    return Use(x.state, plus(x.query, y.query))
