"""Pointwise expressions to text, in Triton and in PyTorch."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction

from glagen.errors import InternalError
from glagen.ir.expr import Apply, Expr, Number, Ref, apply, number

Axes = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Dialect:
    """How one target writes what is not arithmetic.

    `functions`: templates with {x} and {y}; `spread`: a tile's text, its axes, and those of the expression around it.
    """

    functions: dict[str, str]
    lift: str  # template that makes a tensor of a number {x}, for functions take nothing else
    spread: Callable[[str, Axes, Axes], str]
    keep: str  # template with {mask}, {x} and what is there where the mask does not hold


STRENGTH = {"add": 1, "sub": 1, "mul": 2, "div": 2, "neg": 3}
SIGNS = {"add": "+", "sub": "-", "mul": "*", "div": "/"}


@dataclass(frozen=True, slots=True)
class Writer:
    """Writes expressions over tiles; `tile` gives a reference's text before it is broadcast, `numbers` never are."""

    dialect: Dialect
    tile: Callable[[Ref], str]
    numbers: frozenset[str] = frozenset()

    def write(self, expr: Expr, axes: Axes, around: int = 0) -> str:
        """`expr` broadcast to `axes`; `around` is the binding strength of what surrounds it."""
        match expr:
            case Number(value=value):
                return number_text(value) if value >= 0 or around < 3 else f"({number_text(value)})"
            case Ref(name=name) if name in self.numbers:
                return self.tile(expr)
            case Ref(indices=indices):
                return self.dialect.spread(self.tile(expr), tuple(x.axis for x in indices), axes)
            case Apply(function="neg", args=(x,)):
                text = f"-{self.write(x, axes, 3)}"
                return f"({text})" if around > 1 else text
            case Apply(function=f, args=(x, y)) if f in SIGNS:
                strength = STRENGTH[f]
                right = self.write(y, axes, strength + (f in ("sub", "div")))
                text = f"{self.write(x, axes, strength)} {SIGNS[f]} {right}"
                return f"({text})" if strength < around else text
            case Apply(function="pow", args=(x, Number(value=p))) if p.denominator == 1 and 2 <= p <= 4:
                factor = self.write(x, axes, 3)
                text = " * ".join([factor] * int(p))
                return f"({text})" if around > 1 else text
            case Apply(function="pow", args=(x, Number(value=p))) if p.denominator == 1:
                if p < 0:
                    return self.write(apply("div", number(1), apply("pow", x, number(-p))), axes, around)
                if p < 2:
                    return self.write(x if p else number(1), axes, around)
                return self.dialect.functions["whole_power"].format(x=self.write(x, axes), y=int(p))
            case Apply(function="keep", args=(mask, x, *rest)):
                other = self.write(rest[0], axes) if rest else "0.0"
                return self.dialect.keep.format(mask=self.write(mask, axes), x=self.write(x, axes), other=other)
            case Apply(function=f, args=args) if f in self.dialect.functions:
                texts = dict(zip("xy", (self.write(a, axes) for a in args), strict=False))
                if len(args) == 1 and self.is_number(args[0]):
                    texts["x"] = self.dialect.lift.format(**texts)
                return self.dialect.functions[f].format(**texts)
            case _:
                raise InternalError(f"cannot write {expr!r}")

    def is_number(self, expr: Expr) -> bool:
        """Is it, as text, arithmetic of Python's numbers?"""
        match expr:
            case Number():
                return True
            case Ref(name=name):
                return name in self.numbers
            case Apply(function=f, args=args):
                return f in (*SIGNS, "neg", "pow") and all(self.is_number(x) for x in args)
        return False


def tidy(text: str) -> str:
    """The text without parentheses around single words."""
    return re.sub(r"(?<![\w\])])\((\w+)\)", r"\1", text)


def number_text(value: Fraction) -> str:
    return f"{value.numerator}.0" if value.denominator == 1 else repr(float(value))


def spread_triton(text: str, own: Axes, axes: Axes) -> str:
    if own in (axes, ()):
        return text
    if own == axes[::-1]:
        return f"tl.trans({text})"
    if len(axes) == 2 and len(own) == 1 and own[0] in axes:
        return f"{text}[:, None]" if own[0] == axes[0] else f"{text}[None, :]"
    raise InternalError(f"{text} with axes {own} does not fit {axes}")


def spread_torch(text: str, own: Axes, axes: Axes) -> str:
    if own == axes:
        return text
    if own == ():
        return f"{text}[..., None, None]" if len(axes) == 2 else f"{text}[..., None]"
    if len(axes) == 2 and len(own) == 1 and own[0] in axes:
        return f"{text}[..., :, None]" if own[0] == axes[0] else f"{text}[..., None, :]"
    raise InternalError(f"{text} with axes {own} does not fit {axes}")


TRITON = Dialect(
    functions={
        "exp": "_exp({x})",
        "grow": "_grow({x})",
        "raised": "_raised({x}, SHIFTED)",
        "lowered": "_lowered({x}, SHIFTED)",
        "limited": "_lowered({x}, SHIFTED, {y}, LIMIT + 1.0)",
        "reached": "tl.minimum(tl.maximum({x} + (LIMIT + 1.0), 0.0), 1.0)",
        "shrink": "_shrink({x})",
        "log": "tl.log({x})",
        "sigmoid": "tl.sigmoid({x})",
        "logsigmoid": "-_softplus(-({x}))",
        "softplus": "_softplus({x})",
        "tanh": "_tanh({x})",
        "relu": "tl.where({x} < 0.0, 0.0, {x})",
        "elu": "tl.where({x} > 0.0, {x}, _expm1({x}))",
        "expm1": "_expm1({x})",
        "silu": "(({x}) * tl.sigmoid({x}))",
        "sqrt": "tl.sqrt({x})",
        "abs": "tl.abs({x})",
        "min": "tl.where({x} > {y}, {y}, {x})",
        "max": "tl.where({x} < {y}, {y}, {x})",
        "pow": "_power({x}, {y})",
        "whole_power": "_whole_power({x}, {y})",
        "step": "tl.where({x} > 0.0, 1.0, tl.where({x} < 0.0, 0.0, 0.5))",
        "positive": "tl.where({x} > 0.0, 1.0, 0.0)",
        "sign": "tl.where({x} > 0.0, 1.0, tl.where({x} < 0.0, -1.0, 0.0))",
        "clamp": "tl.where({x} < FLOOR, FLOOR, {x})",
        "unclamped": "tl.where({x} < FLOOR, 0.0, 1.0)",
        "passed": "tl.where({x} < FLOOR, 0.0, {y})",
    },
    lift="tl.full([], {x}, tl.float32)",
    spread=spread_triton,
    keep="tl.where({mask}, {x}, {other})",
)

TORCH = Dialect(
    functions={
        "exp": "torch.exp({x})",
        "grow": "torch.exp(-({x}))",
        "shrink": "torch.exp({x})",
        "log": "torch.log({x})",
        "sigmoid": "torch.sigmoid({x})",
        "logsigmoid": "F.logsigmoid({x})",
        "softplus": "-F.logsigmoid(-({x}))",
        "tanh": "torch.tanh({x})",
        "relu": "torch.relu({x})",
        "elu": "F.elu({x})",
        "expm1": "torch.expm1({x})",
        "silu": "F.silu({x})",
        "sqrt": "torch.sqrt({x})",
        "abs": "torch.abs({x})",
        "min": "_minimum({x}, {y})",
        "max": "-_minimum(-({x}), -({y}))",
        "pow": "({x}) ** ({y})",
        "whole_power": "({x}) ** {y}",
        "step": "(0.5 * torch.sign({x}) + 0.5)",
        "positive": "({x} > 0).to(({x}).dtype)",
        "sign": "torch.sign({x})",
        "clamp": "_clamp({x})",
        "unclamped": "_unclamped({x})",
        "passed": "torch.where(_unclamped({x}) == 0, 0.0, {y})",
    },
    lift="torch.as_tensor({x}, dtype=torch.float64)",
    spread=spread_torch,
    keep="torch.where({mask}, {x}, {other})",
)

# Of numbers alone, which stay Python's: no tensor is made, for which torch.compile would have to ask what it holds.
PYTHON = Dialect(
    functions={
        "exp": "math.exp({x})",
        "log": "math.log({x})",
        "sigmoid": "(1.0 / (1.0 + math.exp(-({x}))))",
        "logsigmoid": "-math.log1p(math.exp(-({x})))",
        "softplus": "math.log1p(math.exp({x}))",
        "tanh": "math.tanh({x})",
        "relu": "max(0.0, {x})",
        "elu": "({x} if {x} > 0.0 else math.expm1({x}))",
        "silu": "(({x}) / (1.0 + math.exp(-({x}))))",
        "sqrt": "math.sqrt({x})",
        "abs": "abs({x})",
        "min": "min({x}, {y})",
        "max": "max({x}, {y})",
        "pow": "({x}) ** ({y})",
        "whole_power": "({x}) ** {y}",
    },
    lift="{x}",
    spread=spread_torch,
    keep="",
)
