"""The explanation as a LaTeX document for pdflatex; it needs amsmath, booktabs and geometry."""

from __future__ import annotations

import re
import textwrap

from glagen.errors import InternalError
from glagen.explain.latex_math import JOINS, chain, escape, flat, formula, symbols, width
from glagen.explain.layout import PRODUCT, SUM, break_lines
from glagen.explain.outline import (
    Block,
    Equation,
    Equations,
    Facts,
    Inline,
    Items,
    Listing,
    Paragraph,
    Quote,
    Section,
    Subtitle,
    Table,
    Total,
)

LINE = 72  # letters of a formula that fit on a line
LISTING = 88  # characters of a listing's line
PAGE = 24  # lines of a listing that stay together
ROWS = 14  # most rows of one table, which cannot break over pages

PREAMBLE = r"""\documentclass[10pt]{article}
\usepackage[utf8]{inputenc}
\usepackage{amsmath}
\usepackage{booktabs}
\usepackage[a4paper,margin=24mm]{geometry}
\allowdisplaybreaks
\setlength{\parindent}{0pt}
\setlength{\parskip}{5pt plus 2pt}
\renewcommand{\arraystretch}{1.15}
\sloppy
"""


def to_latex(name: str, sections: tuple[Section, ...]) -> str:
    """Requires: sections of `glagen.explain`. Ensures: a document that pdflatex compiles on its own."""
    text = [PREAMBLE + r"\begin{document}"]
    text += [f"\\begin{{center}}\\LARGE \\texttt{{{escape(name)}}}, explained by glagen\\end{{center}}"]
    for section in sections:
        text += ["", f"\\section{{{_words((section.title,))}}}"]
        for block in section.blocks:
            text += _block(block) if isinstance(block, Equations) else ["", *_block(block)]
    return "\n".join([*text, "", r"\end{document}", ""])


def _block(block: Block) -> list[str]:
    match block:
        case Paragraph(content=content):
            return [_words(content)]
        case Subtitle(text=text):
            return [f"\\subsection*{{{_words((text,))}}}"]
        case Items(items=items):
            return [r"\begin{enumerate}", *(f"\\item {_words(item)}" for item in items), r"\end{enumerate}"]
        case Facts(rows=rows):
            labelled = [f"\\item[{_words((label,))}] {_words(text)}" for label, text in rows]
            return [r"\begin{description}\setlength{\itemsep}{0pt}", *labelled, r"\end{description}"]
        case Listing(lines=listed):
            verbatim = [r"\begin{verbatim}", *_listing(listed), r"\end{verbatim}"]
            whole = len(verbatim) <= PAGE  # and stays on one page
            begin, end = (r"\begin{minipage}{\linewidth}", r"\end{minipage}") if whole else ("{", "}")
            return [r"\par\smallskip" + begin + r"\small", *verbatim, end + r"\par\smallskip"]
        case Equations(equations=equations):
            return _equations(equations)
        case Table():
            return _table(block)
        case _:
            raise InternalError(f"cannot write {block!r}")


def _words(content: Inline) -> str:
    """Running text: code between backticks in typewriter letters, formulas between dollars."""
    parts = []
    for part in content:
        match part:
            case str():
                parts += [_markup(piece) for piece in re.split(r"(`[^`]*`|\$[^$]*\$)", part)]
            case Quote(text=text):
                parts.append(escape(text).replace("-inf", r"$-\infty$"))
            case _:
                parts.append(f"${formula(part)}$".replace(SUM, r"\allowbreak ").replace(PRODUCT, r"\,\allowbreak "))
    return "".join(parts)


def _markup(piece: str) -> str:
    if piece[:1] == "`":
        code = escape(piece[1:-1]).replace(r"\_", r"\_\allowbreak ")
        return f"\\texttt{{{code}}}"
    return f"${symbols(piece[1:-1])}$" if piece[:1] == "$" else escape(piece)


def _listing(lines: tuple[str, ...]) -> list[str]:
    safe = ["".join(c if " " <= c <= "~" else "?" for c in line) for line in lines]
    wrap = [textwrap.wrap(x, LISTING, subsequent_indent="        ", drop_whitespace=False) or [""] for x in safe]
    return [line for part in wrap for line in part]


# -- equations ---------------------------------------------------------------------------------------------------------


def _equations(equations: tuple[Equation, ...]) -> list[str]:
    rows = [row for equation in equations for row in _equation(equation)]
    return [r"\begin{align*}", *(row + r" \\" for row in rows[:-1]), rows[-1], r"\end{align*}"]


def _equation(equation: Equation) -> list[str]:
    """On one line where it fits; else a line for every term of a sum, and those broken where they must."""
    left, right = flat(formula(equation.left)), equation.right
    when = f", \\qquad {chain(equation.when)}" if equation.when else ""
    room = LINE - width(left)
    whole = formula(right)
    if width(whole + when) <= room:
        lines = [flat(whole)]
    else:
        lines = []
        for minus, term in right.signed() if isinstance(right, Total) else ((False, right),):
            sign = "- " if minus else "+ " if lines else ""
            lines += break_lines(sign + formula(term), room - 4, width, JOINS)
    first, *rest = lines
    rows = [f"{left} &= {first}", *(f"&\\quad {{}} {line}" for line in rest)]
    return [*rows[:-1], rows[-1] + when]


# -- tables ------------------------------------------------------------------------------------------------------------


def _table(table: Table) -> list[str]:
    """Columns as wide as their share of the text; long tables in several parts, each with its head."""
    columns = list(zip(table.head, *([_length(cell) for cell in row] for row in table.rows), strict=True))
    natural = [max(len(str(head)), *(float(x) for x in cells), 4) for head, *cells in columns]
    shares = _shares(natural)
    spec = "".join(f"p{{{share:.3f}\\linewidth}}" for share in shares)
    text: list[str] = []
    for start in range(0, max(len(table.rows), 1), ROWS):
        text += [r"\begin{center}\small", f"\\begin{{tabular}}{{@{{}}{spec}@{{}}}}", r"\toprule"]
        text += [" & ".join(_words((h,)) for h in table.head) + r" \tabularnewline", r"\midrule"]
        for row in table.rows[start : start + ROWS]:
            text.append(" & ".join(r"\raggedright " + _words(cell) for cell in row) + r" \tabularnewline")
        text += [r"\bottomrule", r"\end{tabular}", r"\end{center}"]
    return text


def _length(cell: Inline) -> float:
    total = 0.0
    for part in cell:
        match part:
            case str():
                total += len(part) + 0.3 * sum(map(len, re.findall("`[^`]*`", part)))
            case Quote(text=text):
                total += len(text)
            case _:
                total += 1.1 * width(formula(part)) + 2
    return total


def _shares(natural: list[float], letters: float = 100.0) -> list[float]:
    """Parts of the line width: what each column needs where that fits, else the widest give way."""
    widths = [x + 2.0 for x in natural]
    while sum(widths) > letters:
        widest = widths.index(max(widths))
        widths[widest] -= 1.0
    gaps = 0.0265 * (len(natural) - 1)
    return [w / letters * (1 - gaps) for w in widths]
