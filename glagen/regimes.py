"""Arguments to verify an op with: drawn for the domains a spec declares, in a chosen regime of its gates.

A regime says what the log gates are like: `zero`; `mild`, logsigmoid of normal numbers by 16; `unit`, the same by 1;
`strong`, uniform in [-5, 0]; `extreme` and `reset`, mild with some at -100 or -inf; `neighbours`, every second channel
(head, for a scalar gate) at -20 and the others at 0; `clean`, some at -inf and the others at 0. It is applied to
whatever the spec calls a gate:

* an input with a domain of numbers <= 0 is a log gate and takes the values themselves, clipped to its domain;
* one with a domain within [0, 1] is a linear gate and takes their exponentials, clipped to its domain and to at
  least 2^-14, the smallest normal number of float16;
* any other (a logit, a time step) takes the numbers at which the product of its factors of S[t-1] has that logarithm,
  relative to its largest, looked up in a table over [-1e4, 1e4]. "Zero" is -2^-7 there: nearer to 1, what equations may
  make of a gate (1 - sigmoid(x) ** p) has too few digits in float32, however it is computed. For what cannot be
  negative -inf is -250: a time step has other uses than its gate, and is better kept small;
* constants keep their defaults in `mild`, and are gates like the others in all other regimes; scalars keep theirs in
  `zero`, and are near them in all others (a scale of 1 that is left out would not be missed).

An initial state is standard normal too, or its absolute value where the state stays positive: where nothing negative is
written to it, in the first steps at least. A normaliser is such a state.

What feeds a gate is read off the equation of the state: the factors of S[t-1]. Everything else is standard normal, or
uniform in its domain. Every number lies on a grid that bf16 and fp16 both hold exactly, so one reference serves all.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from glagen.ir.document import Declaration, Document
from glagen.ir.expr import Apply, Expr, Ref, number, refs, rewrite, walk
from glagen.ir.interval import REALS, Interval
from glagen.reference import ONES, evaluate, output_names, run_states

REGIMES = ("zero", "mild", "unit", "strong", "extreme", "reset", "neighbours", "clean")
SHARE = 0.02  # of the gates that `extreme`, `reset` and `clean` close: half of them single channels, half whole steps
LARGEST = 1e4  # for a logit: as good as infinite, and within float16
SMALLEST = 2.0**-14
OPEN = -(2.0**-7)
FIRST = 4
CLOSED = 250.0  # as good as infinite for a log gate that is computed: its exponential is 0 in float32


@dataclass(frozen=True, slots=True)
class Case:
    """Extents of a call, and whether it has an initial state and a gradient from its final state.

    Where a spec has slots, there are half as many, and one, as keys are wide. `crowded`: it takes the kernels of calls
    with so many heads that a GPU is full of them, which keep states on chip, and take several chunks in turn.
    """

    B: int
    T: int
    H: int
    K: int
    V: int
    state: bool = True
    crowded: bool = False

    @property
    def widths(self) -> dict[str, int]:
        """The extents of feature axes, by axis."""
        return {"i": self.K, "s": self.K // 2 + 1, "j": self.V}

    def __str__(self) -> str:
        more = f"{'' if self.state else ' stateless'}{' crowded' if self.crowded else ''}"
        return f"B{self.B} T{self.T} H{self.H} K{self.K} V{self.V}{more}"


@dataclass(frozen=True, slots=True)
class Problem:
    """The arguments of a call by name, its initial states, and cotangents of what it returns: float64, on the grid.

    Of states there is one tensor each, in order of declaration; without initial states, or cotangents, there is none.
    """

    case: Case
    arguments: dict[str, Tensor | float | None]
    initial_states: tuple[Tensor, ...]
    output_cotangents: tuple[Tensor, ...]
    state_cotangents: tuple[Tensor, ...]


def draw(document: Document, regime: str, case: Case, seed: int = 0) -> Problem:
    """Arguments for `document` with gates in `regime` (one of REGIMES). The same for the same seed, on any device."""
    generator = torch.Generator().manual_seed(seed)
    gates = gate_factors(document)
    feeding = {r.name for factor in gates for r in refs(factor)}
    timed = any("t" in d.axes and d.name in feeding for d in document.declarations)
    arguments: dict[str, Tensor | float | None] = {}
    for declaration in document.declarations:
        fed = declaration.name in feeding and _role(declaration) != "scalar"
        if declaration.kind == "scalar":
            arguments[declaration.name] = _scalar(declaration, regime, case)
            continue
        if declaration.default is not None and (not fed or regime == "mild"):
            arguments[declaration.name] = None
            continue
        shape = _shape(declaration, case)
        if fed and (_role(declaration) != "logit" or "t" in declaration.axes or not timed):
            x = _gate(document, declaration, gates, _log_gates(regime, shape, generator), generator)
        else:
            x = _plain(declaration, shape, generator)
        arguments[declaration.name] = _inside(on_grid(x), declaration.domain)
    positive = [bool((x >= 0).all()) for x in _written(document, arguments)]
    outputs = tuple(on_grid(_normal((case.B, case.T, case.H, case.V), generator)) for _ in output_names(document))
    shapes = [(case.B, case.H, *_extents(state.axes, case)) for state in document.states if case.state]
    initial, final = (tuple(on_grid(_normal(shape, generator)) for shape in shapes) for _ in range(2))
    initial = tuple(x.abs() if sign else x for x, sign in zip(initial, positive, strict=False))
    return Problem(case, arguments, initial, outputs, final)


def _written(document: Document, arguments: dict[str, Tensor | float | None]) -> tuple[Tensor, ...]:
    """What the first steps make of states that are zero."""
    timed = {d.name for d in document.declarations if "t" in d.axes}
    first = {n: x[:, :FIRST] if n in timed and isinstance(x, Tensor) else x for n, x in arguments.items()}
    return run_states(document, first, [None] * len(document.states))[1]


def on_grid(x: Tensor) -> Tensor:
    """The nearest numbers that bf16 and fp16 both hold (multiples of 2^-24 of 8 bits, below 1e4), as float64."""
    rounded = x.clamp(-LARGEST, LARGEST).bfloat16().half().double()
    return torch.where(x.isinf(), x.double(), rounded)


def gate_factors(document: Document) -> tuple[Expr, ...]:
    """The factors of S[t-1] in the equation of S[t], intermediate names replaced by what they stand for."""
    states = {s.name for s in document.states}
    bodies = {e.target.name: e.body for e in document.equations}

    def inline(node: Expr) -> Expr | None:
        if isinstance(node, Ref) and node.name in bodies and node.name not in states:
            return rewrite(bodies[node.name], inline)
        return None

    found = [f for name in bodies if name in states for f in _factors(rewrite(bodies[name], inline), name)]
    return tuple(dict.fromkeys(found))


def _factors(expr: Expr, state: str) -> list[Expr]:
    def holds(node: Expr) -> bool:
        return any(isinstance(n, Ref) and n.name == state for n in walk(node))

    match expr:
        case Apply(function="mul", args=(x, y)):
            if not holds(expr):
                return []
            first, second = (_factors(a, state) if holds(a) else _single(a) for a in (x, y))
            return first + second
        case Apply(function="div", args=(x, y)):
            return [*_factors(x, state), Apply("div", (number(1), y))] if holds(x) else []
        case Apply(function="add" | "sub" | "neg", args=args):
            return [f for a in args for f in _factors(a, state)]
        case _:
            return []


def _single(expr: Expr) -> list[Expr]:
    """The factors of a product."""
    match expr:
        case Apply(function="mul", args=args):
            return [f for a in args for f in _single(a)]
        case _:
            return [expr]


def _role(declaration: Declaration) -> str:
    if declaration.kind == "scalar":
        return "scalar"
    domain = declaration.domain or REALS
    if domain.high <= 0:
        return "log"
    return "linear" if domain.low >= 0 and domain.high <= 1 else "logit"


def _shape(declaration: Declaration, case: Case) -> tuple[int, ...]:
    own = _extents(declaration.axes, case)
    return (case.B, case.T, case.H, *own) if "t" in declaration.axes else (case.H, *own)


def _extents(axes: tuple[str, ...], case: Case) -> tuple[int, ...]:
    """The extents of those axes that are features."""
    return tuple(case.widths[axis] for axis in axes if axis != "t")


def _normal(shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    return torch.randn(shape, dtype=torch.float64, generator=generator)


def _uniform(shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    return torch.rand(shape, dtype=torch.float64, generator=generator)


def _log_gates(regime: str, shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    if regime == "zero":
        return torch.zeros(shape, dtype=torch.float64)
    if regime == "neighbours":
        closed = torch.arange(shape[-1]) % 2 == 1
        return torch.where(closed, -20.0, 0.0).double().expand(shape).clone()
    if regime == "strong":
        return -5 * _uniform(shape, generator)
    unit = F.logsigmoid(_normal(shape, generator))
    if regime == "unit":
        return unit
    if regime == "mild":
        return unit / 16
    steps = (*shape[:3], *(1 for _ in shape[3:]))  # [B, T, H, 1]
    closed = (_uniform(shape, generator) < SHARE / 2) | (_uniform(steps, generator) < SHARE / 2)
    closed.view(-1)[int(torch.randint(closed.numel(), (), generator=generator))] = True
    others = torch.zeros_like(unit) if regime == "clean" else unit / 16
    return torch.where(closed, -100.0 if regime == "extreme" else -math.inf, others)


def _gate(
    document: Document, declaration: Declaration, gates: tuple[Expr, ...], logs: Tensor, generator: torch.Generator
) -> Tensor:
    """Values of a declared gate at which its logarithm is `logs`, as nearly as its domain admits."""
    domain = declaration.domain or REALS
    match _role(declaration):
        case "log":
            return logs.clamp(domain.low, domain.high)
        case "linear":
            return logs.exp().clamp(max(domain.low, SMALLEST), domain.high)
    # the value of each factor over x, everything else at a typical value
    reach = math.asinh(16 * LARGEST)
    grid = torch.linspace(-reach, reach, 4001, dtype=torch.float64).sinh() / 16
    grid = grid[(grid >= domain.low) & (grid <= domain.high)]
    declared = {d.name: d for d in document.declarations}

    def value_of(r: Ref) -> Tensor:
        if r.name == declaration.name:
            return grid.reshape(-1, *ONES[1:])
        typical = _typical(declared[r.name]) if r.name in declared else {"h": 0.0, "H": 2.0}.get(r.name, 64.0)
        return torch.full(ONES, typical, dtype=torch.float64)

    product = torch.zeros_like(grid)
    for factor in gates:
        if any(r.name == declaration.name for r in refs(factor)):
            value = evaluate(factor, value_of, {"K": 1, "S": 1, "V": 1}, torch.device("cpu"))
            product = product + value.log().reshape(-1)
    product = product.nan_to_num(0.0, neginf=-LARGEST).clamp(min=-LARGEST)
    product = product - product.max()  # what the other gates at their typical value contribute
    if float(product.min()) > -1e-6:
        return _plain(declaration, tuple(logs.shape), generator)
    order = product.argsort()
    wanted = logs.clamp(-CLOSED if domain.low >= 0 else -LARGEST, OPEN)
    place = torch.searchsorted(product[order].contiguous(), wanted).clamp(max=len(order) - 1)
    return grid[order][place]


def _scalar(declaration: Declaration, regime: str, case: Case) -> float | None:
    if declaration.default is None:
        return _typical(declaration)
    if regime == "zero":
        return None
    sizes = {"H": case.H, "K": case.K, "V": case.V}

    def value_of(r: Ref) -> Tensor:
        return torch.tensor(float(sizes[r.name]), dtype=torch.float64)

    default = evaluate(declaration.default, value_of, sizes, torch.device("cpu")).double()
    return float(_inside(on_grid(0.75 * default + 0.125), declaration.domain))


def _plain(declaration: Declaration, shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    domain = declaration.domain or REALS
    normal = _normal(shape, generator)
    if math.isfinite(domain.low) and math.isfinite(domain.high):
        return domain.low + (domain.high - domain.low) * _uniform(shape, generator)
    if math.isfinite(domain.low):
        return domain.low + normal.abs()
    return domain.high - normal.abs() if math.isfinite(domain.high) else normal


def _typical(declaration: Declaration) -> float:
    """A number of the domain near 1, or near 0 for a log gate: what leaves other gates alone."""
    domain = declaration.domain or REALS
    x = 0.0 if _role(declaration) == "log" else 1.0
    return float(_inside(torch.tensor(x, dtype=torch.float64), domain))


def _inside(x: Tensor, domain: Interval | None) -> Tensor:
    """x with what rounding has put outside the domain, or on an open end, put back in by a step of the grid."""
    if domain is None:
        return x

    def step(end: float) -> float:
        return max(abs(end) * 2.0**-7, SMALLEST)

    low, high = domain.low, domain.high
    under = (x <= low) if domain.low_open else (x < low)
    over = (x >= high) if domain.high_open else (x > high)
    lowest = low + step(low) if math.isfinite(low) else -LARGEST
    highest = high - step(high) if math.isfinite(high) else LARGEST
    x = torch.where(under, on_grid(torch.tensor(lowest, dtype=torch.float64)), x)
    return torch.where(over, on_grid(torch.tensor(highest, dtype=torch.float64)), x)
