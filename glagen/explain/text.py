"""The explanation as plain text."""

from __future__ import annotations

import re
import textwrap

from glagen.errors import InternalError
from glagen.explain.layout import PRODUCT, SUM, break_lines
from glagen.explain.outline import (
    Block,
    Chain,
    Equation,
    Equations,
    Exponential,
    Facts,
    Formula,
    Inline,
    Items,
    Listing,
    Paragraph,
    Product,
    Quote,
    Section,
    Subtitle,
    SumOver,
    Table,
    Total,
)
from glagen.ir.chunk import Decay, Operand
from glagen.ir.expr import Expr, show

WIDTH = 110
INDENT = 4
_GLUE = "\xa0"  # a blank that does not break
JOINS = {SUM: (" ", ""), PRODUCT: (" ", "")}


def to_text(name: str, sections: tuple[Section, ...]) -> str:
    """Requires: sections of `glagen.explain`. Ensures: no line is wider than WIDTH, except for what cannot break."""
    lines = [f"glagen explain: {name}", ""]
    for number, section in enumerate(sections, 1):
        title = f"{number}. {_words((section.title,))}"
        lines += [title, "=" * len(title), ""]
        for block in section.blocks:
            lines += [*_block(block), ""]
    return "\n".join(line.rstrip() for line in lines).rstrip() + "\n"


def _block(block: Block) -> list[str]:
    match block:
        case Paragraph(content=content):
            return _wrap(_words(content))
        case Subtitle(text=text):
            return [text, "-" * len(text)]
        case Items(items=items):
            return [x for n, item in enumerate(items, 1) for x in _wrap(_words(item), f"{n:3}. ")]
        case Facts(rows=rows):
            width = max(len(label) for label, _ in rows)
            return [x for label, text in rows for x in _wrap(_words(text), f"  {label:{width}}  ")]
        case Listing(lines=lines):
            return [x for line in lines for x in _wrap(line, " " * INDENT, " " * 2 * INDENT)]
        case Equations(equations=equations):
            return [x for e in equations for x in _equation(e)]
        case Table():
            return _table(block)
        case _:
            raise InternalError(f"cannot write {block!r}")


def _words(content: Inline) -> str:
    return "".join(_word(part) for part in content)


def _word(part: str | Quote | Formula) -> str:
    match part:
        case str():
            return part.replace("$", "")
        case Quote(text=text):
            return text
        case _:
            return formula(part)


def _wrap(text: str, first: str = "", rest: str | None = None, width: int = WIDTH) -> list[str]:
    rest = " " * len(first) if rest is None else rest
    text = re.sub(r"\[[^][]*\]", lambda m: m[0].replace(" ", _GLUE), text)  # shapes stay on one line
    lines = textwrap.wrap(
        text, width, initial_indent=first, subsequent_indent=rest, break_long_words=False, break_on_hyphens=False
    )
    return [line.replace(_GLUE, " ") for line in lines] or [first]


# -- formulas ----------------------------------------------------------------------------------------------------------


def formula(x: Formula, inside: bool = False) -> str:
    """On one line; `inside` a product, what is a sum has parentheses."""
    match x:
        case Expr():
            return show(x, 2 if inside else 0)
        case Operand() | Decay():
            return str(x)
        case Product(factors=factors):
            return " ".join(formula(f, True) for f in factors)
        case SumOver(indices=indices, body=body, where=where):
            under = chain(where) if where else ",".join(indices)
            return f"sum_{{{under}}} {formula(body, True)}" if len(under) > 1 else f"sum_{under} {formula(body, True)}"
        case Exponential(body=body):
            return f"exp({formula(body)})"
        case Total():
            first, *rest = x.signed()
            text = ("-" if first[0] else "") + formula(first[1])
            text += "".join(f" {'-' if minus else '+'} {formula(term)}" for minus, term in rest)
            return f"({text})" if inside else text
        case _:
            raise InternalError(f"cannot write {x!r}")


def chain(where: Chain, gap: str = "") -> str:
    return gap.join(where)


def _equation(equation: Equation) -> list[str]:
    """On one line where it fits; else a line for every term of a sum, and those broken where they must."""
    left = f"{' ' * INDENT}{formula(equation.left)} = "
    when = f",  {chain(equation.when, ' ')}" if equation.when else ""
    whole = left + formula(equation.right) + when
    if len(whole) <= WIDTH:
        return [whole]
    right = equation.right
    lines: list[str] = []
    for minus, term in right.signed() if isinstance(right, Total) else ((False, right),):
        sign = "- " if minus else "+ " if lines else ""
        lines += break_lines(_marked(sign + formula(term)), WIDTH - len(left) - 2, len, JOINS)
    if len(left) > WIDTH // 3:
        lines, left = ["", *lines], " " * 2 * INDENT
        return [
            formula(equation.left).join([" " * INDENT, " ="]),
            *(left + x for x in lines[1:-1]),
            left + lines[-1] + when,
        ]
    return [left + lines[0] + (when if len(lines) == 1 else ""), *(" " * len(left) + x for x in lines[1:-1])] + (
        [" " * len(left) + lines[-1] + when] if len(lines) > 1 else []
    )


def _marked(text: str) -> str:
    """Blanks before an operator or a factor become marks; those within a sign or a side condition do not."""
    text = re.sub(r"(?<=[^-+]) (?=[-+] )", SUM, text)
    return re.sub(r"(?<![-+*/=<>,]) (?![-+/=<>])", PRODUCT, text)


# -- tables ------------------------------------------------------------------------------------------------------------


def _table(table: Table) -> list[str]:
    cells = [[_words(cell) for cell in row] for row in table.rows]
    natural = [max(len(x) for x in column) for column in zip(table.head, *cells, strict=True)]
    widths = _widths(natural, [max(len(h), 10) for h in table.head], WIDTH - 2 - 2 * (len(natural) - 1))
    lines = [_line(table.head, widths), _line(["-" * w for w in widths], widths)]
    for row in cells:
        wrapped = [_wrap(text, width=w) for text, w in zip(row, widths, strict=True)]
        height = max(map(len, wrapped))
        lines += [_line([x[n] if n < len(x) else "" for x in wrapped], widths) for n in range(height)]
    return lines


def _line(cells: list[str] | tuple[str, ...], widths: list[int]) -> str:
    return "  " + "  ".join(f"{x:{w}}" for x, w in zip(cells, widths, strict=True))


def _widths(natural: list[int], least: list[int], total: int) -> list[int]:
    """Natural widths where they fit in all; else the widest columns give way."""
    widths = list(natural)
    while sum(widths) > total:
        widest = max(range(len(widths)), key=lambda n: (widths[n] - least[n], n))
        if widths[widest] <= least[widest]:
            break
        widths[widest] -= 1
    return widths
