"""What an explanation is made of, before it is text or LaTeX: sections of paragraphs, formulas and tables."""

from __future__ import annotations

from dataclasses import dataclass

from glagen.ir.chunk import Decay, Operand
from glagen.ir.expr import Expr

# -- formulas ----------------------------------------------------------------------------------------------------------

# A comparison such as ("s", "<", "tau", "<=", "t"): indices and signs in turn.
Chain = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Product:
    """The product of its factors."""

    factors: tuple[Formula, ...]


@dataclass(frozen=True, slots=True)
class Total:
    """The sum of its terms; one for which `minus` has True is subtracted."""

    terms: tuple[Formula, ...]
    minus: tuple[bool, ...] = ()

    def signed(self) -> tuple[tuple[bool, Formula], ...]:
        return tuple(zip(self.minus or (False,) * len(self.terms), self.terms, strict=True))


@dataclass(frozen=True, slots=True)
class SumOver:
    """The sum of `body` over `indices`, where `where` holds if it is given."""

    indices: tuple[str, ...]
    body: Formula
    where: Chain | None = None


@dataclass(frozen=True, slots=True)
class Exponential:
    """exp(body), for bodies that are not expressions of the spec language."""

    body: Formula


Formula = Expr | Operand | Decay | Product | Total | SumOver | Exponential


@dataclass(frozen=True, slots=True)
class Equation:
    """left = right, where `when` holds (elsewhere it is zero)."""

    left: Formula
    right: Formula
    when: Chain | None = None


# -- blocks ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Quote:
    """Words that are not ours, shown as they are."""

    text: str


# Running text: our words (`code` between backticks, $symbols$ between dollars), quotes and formulas.
Inline = tuple[str | Quote | Formula, ...]


@dataclass(frozen=True, slots=True)
class Paragraph:
    content: Inline


@dataclass(frozen=True, slots=True)
class Subtitle:
    text: str


@dataclass(frozen=True, slots=True)
class Items:
    """A list, numbered from 1."""

    items: tuple[Inline, ...]


@dataclass(frozen=True, slots=True)
class Facts:
    """Labels and what they say."""

    rows: tuple[tuple[str, Inline], ...]


@dataclass(frozen=True, slots=True)
class Table:
    head: tuple[str, ...]
    rows: tuple[tuple[Inline, ...], ...]


@dataclass(frozen=True, slots=True)
class Equations:
    equations: tuple[Equation, ...]


@dataclass(frozen=True, slots=True)
class Listing:
    """Lines shown as they are: equations of the spec, pictures."""

    lines: tuple[str, ...]


Block = Paragraph | Subtitle | Items | Facts | Table | Equations | Listing


@dataclass(frozen=True, slots=True)
class Section:
    title: str
    blocks: tuple[Block, ...]


def say(*content: str | Quote | Formula) -> Paragraph:
    return Paragraph(content)
