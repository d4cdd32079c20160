"""Gates: the factor of S[t-1] as logarithms on the key side, on the value side, and of neither."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from glagen import algebra
from glagen.check.constants import degree, terms_when_expanded
from glagen.check.domains import Domains, interval_of
from glagen.check.linearity import Fault, Term, product
from glagen.check.report import shown
from glagen.errors import Span
from glagen.ir.document import AXES
from glagen.ir.expr import Apply, Expr, Number, Ref, free_axes, plus, refs, walk
from glagen.ir.interval import Interval
from glagen.ir.recurrence import SIDES, Gate

NEAR_ZERO = 1 / 16  # a gate that may be less divides its gradient by less: four bits are lost
MAX_WORK = 64  # terms times degree: factoring takes time without bound, and at this size less than a second

# What a declaration may promise so that a gate decays, in the order in which it is suggested.
_LOG_GATE = Interval(-float("inf"), 0)
_LINEAR_GATE = Interval(0, 1, low_open=True)
_RATE = Interval(0, float("inf"), high_open=True)


def find_gates(
    kept: tuple[Term, ...], domains: Domains, fault: Fault, key: str = "i", value: str = "j"
) -> tuple[Gate, ...]:
    """The gates of a state, from the terms of its update that have S[t-1].

    Requires: at least one term. Ensures: each gate's log is at most 0; gates come in order of SIDES. What is not so
    is reported, and the result then means nothing.
    """
    factors = kept[0].factors if len(kept) == 1 else _factored(kept, key, value)
    decay = _Decay(factors, kept[0].span, domains, fault, key, value)
    if not decay.positive(factors):
        return ()
    for factor in factors:
        if not decay.is_whole(factor) and terms_when_expanded(factor) * degree(factor) > MAX_WORK:
            message = "this gate multiplies out to too many terms"
            fault(message, factor.span or kept[0].span, "compute it outside the op and pass its logarithm")
            return ()
    return decay.gates()


@dataclass(frozen=True, slots=True)
class _Decay:
    """The factor of S[t-1] as it was written, the place of its term, and where to report what is wrong with it."""

    factors: tuple[Expr, ...]
    span: Span | None
    domains: Domains
    fault: Fault
    key: str  # axes of the state
    value: str

    def positive(self, factors: tuple[Expr, ...]) -> bool:
        """Whether every factor is greater than 0, or the exponential of a log gate; reports those that are not."""
        return all([self._positive(factor) for factor in factors])  # noqa: C419  (report them all)

    def _positive(self, factor: Expr) -> bool:
        match factor:
            case Apply(function="exp"):
                return True
            case Apply(function="mul" | "div", args=args):
                return self.positive(args)
            case Apply(function="sqrt", args=(x,)) | Apply(function="pow", args=(x, Number())):
                return self._positive(x)
        found = interval_of(factor, self.domains)
        if _is_positive(found):
            return True
        helped = "a gate lies in (0, 1]: write it as `exp(g)` with g at most 0, or as `sigmoid(x)`"
        blamed = self.blamed(factor, _is_positive, (_LINEAR_GATE,))
        if blamed is not None:
            ref, promise = blamed
            helped = f'declare `{ref.name}` with domain: "{promise}", or give its logarithm and write `exp(g)`'
        worst = "negative" if found.low < 0 else "0"
        self.fault(f"gate `{shown(factor)}` can be {worst}", self.place(factor, *refs(factor)), helped)
        return False

    def gates(self) -> tuple[Gate, ...]:
        """One gate for each side that has any. Requires: every factor positive."""
        sides: dict[str, list[Expr]] = {side: [] for side in SIDES}
        mixed = False
        for term in self.logs():
            side = self.side(term)
            if side is None:
                mixed = True
                self.mixed(term)
            else:
                sides[side].append(term)
        if mixed:
            return ()
        self.share_constants(sides)
        gates = tuple(self.gate(side, plus(*terms)) for side, terms in sides.items() if terms)
        for gate in gates:
            if gate.domain.high > 0:
                self.rising(gate, sides[gate.side])
        return gates

    def logs(self) -> tuple[Expr, ...]:
        """The terms of the decay's logarithm."""
        found: list[Expr] = []
        for factor in self.factors:
            if self.is_whole(factor):
                found.append(algebra.stable(Apply("log", (factor,))))
            else:
                found.extend(algebra.log_terms(factor))
        return tuple(found)

    def share_constants(self, sides: dict[str, list[Expr]]) -> None:
        """Moves constants to the side that decays with them alone: 0.5 * (1 + b) is one gate."""
        constants = [term for term in sides["scalar"] if not refs(term)]
        for side in ("K", "V"):
            if constants and self.high(sides[side]) > 0 >= self.high([*sides[side], *constants]):
                sides[side] += constants
                sides["scalar"] = [term for term in sides["scalar"] if refs(term)]
                return

    def high(self, terms: list[Expr]) -> float:
        return interval_of(algebra.stable(plus(*terms)), self.domains).high

    def gate(self, side: str, log: Expr) -> Gate:
        log = algebra.stable(log)
        axes = free_axes(log)
        inside = [node.args[0] for node in walk(log) if isinstance(node, Apply) and node.function == "log"]
        steep = any(interval_of(x, self.domains).low < NEAR_ZERO for x in inside)
        return Gate(side, log, tuple(axis for axis in AXES if axis in axes), interval_of(log, self.domains), steep)

    def mixed(self, term: Expr) -> None:
        both = next((ref for ref in refs(term) if self.side(ref) is None), term)
        self.fault(
            f"gate `{shown(both)}` does not separate into a key part and a value part",
            self.place(both, *refs(term)),
            f"a chunkwise form needs log-gates of the form gK[t,{self.key}] + gV[t,{self.value}]",
        )

    def rising(self, gate: Gate, terms: list[Expr]) -> None:
        """Reports a gate that can exceed 1: which term of its log, and what would have to be declared."""
        term = next((term for term in terms if interval_of(term, self.domains).high > 0), gate.log)
        helped = "make its logarithm at most 0, as `-softplus(x)` and `logsigmoid(x)` are"
        blamed = self.blamed(gate.log, lambda trial: trial.high <= 0, (_LOG_GATE, _RATE, _LINEAR_GATE))
        if blamed is not None:
            helped = f'if that cannot be, declare `{blamed[0].name}` with domain: "{blamed[1]}"'
        wanted: list[Expr] = [blamed[0]] if blamed is not None else []
        match term:
            case Apply(function="log", args=(x,)):
                message = f"gate `{shown(x)}` can exceed 1: the state would grow without bound"
                wanted.append(x)
            case _:
                message = f"log gate `{shown(term)}` can be positive: the state would grow without bound"
                wanted.append(term)
        self.fault(message, self.place(*wanted, *refs(term)), helped)

    def blamed(
        self, expr: Expr, good: Callable[[Interval], bool], promises: tuple[Interval, ...]
    ) -> tuple[Ref, Interval] | None:
        """The one name of the spec, and what it would have to promise, that would make the expression `good`."""
        written = [
            ref for ref in refs(expr) if ref.span is not None
        ]  # what is computed before has no place in the spec
        for promise in promises:
            for ref in written:
                if good(interval_of(expr, {**self.domains, ref.name: promise})):
                    return ref, promise
        return None

    def place(self, *wanted: Expr) -> Span | None:
        """Where the first of these that can be found stands in the factor as it was written."""
        written = [node for factor in self.factors for node in walk(factor) if node.span is not None]
        for expr in wanted:
            for node in written:
                if node == expr:
                    return node.span
        return written[0].span if written else self.span

    def side(self, expr: Expr) -> str | None:
        """The side that an expression's axes belong to; None for one that has both keys' and values'."""
        sides = {frozenset({self.key}): "K", frozenset({self.value}): "V", frozenset(): "scalar"}
        return sides.get(free_axes(expr) - {"t"})

    def is_whole(self, factor: Expr) -> bool:
        """Whether a factor is a sum on one side: its logarithm needs no algebra."""
        return isinstance(factor, Apply) and factor.function in ("add", "sub") and self.side(factor) is not None


def _factored(kept: tuple[Term, ...], key: str, value: str) -> tuple[Expr, ...]:
    """A sum of products as a product, where all of them have the same value part or the same key part."""
    for axis in (value, key):
        common, *others = (tuple(f for f in term.factors if axis in free_axes(f)) for term in kept)
        if all(other == common for other in others):
            rest = (product(tuple(f for f in term.factors if axis not in free_axes(f))) for term in kept)
            return (plus(*rest), *common)
    return (plus(*(product(term.factors) for term in kept)),)


def _is_positive(interval: Interval) -> bool:
    return interval.low >= 0 and 0 not in interval
