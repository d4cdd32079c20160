"""Python decides, templates lay out: no template holds a formula of a recurrence."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from glagen.emit.helpers import TRITON_HELPERS, TWIN_HELPERS

TEMPLATES = sorted((Path(__file__).parents[2] / "templates").glob("*.j2"))
BUDGET = 150  # lines; the interface's docstrings and checks are the longest
ALLOWED = {  # and how often
    "chunks.py.j2": {"cumsum(": 1},  # where packed sequences lie is a sum of their numbers of chunks
}
FORMULA = ("exp(", "exp2(", "log(", "tl.dot(", "tl.sum(", "sigmoid(", "cumsum(", "einsum(", "matmul(", " @ ")


@pytest.mark.parametrize("path", TEMPLATES, ids=lambda p: p.name)
def test_no_formula(path):
    code = "\n".join(line.split("#")[0] for line in path.read_text().splitlines())
    code = re.sub(r'"""(?:.|\n)*?"""', "", code)
    found = {word: code.count(word) for word in FORMULA if word in code}
    assert found == ALLOWED.get(path.name, {})


def test_products_among_the_helpers_are_those_of_derived_statements():
    """These know neither gates nor what they sum: products with 0/1 matrices, and, of what a statement asks for,
    a product in two terms, and the sum of one; no other helper multiplies."""
    assert [name for name, source in TRITON_HELPERS.items() if "tl.dot(" in source] == [
        "_sum_rows",
        "_dot_in_two",
        "_column_sums",
        "_dots_of_rows",
    ]
    products = {name: source.count(" @ ") for name, source in TWIN_HELPERS.items() if " @ " in source}
    assert products == {"_row_sums": 2} and "return select @ x" in TWIN_HELPERS["_row_sums"]


@pytest.mark.parametrize("path", TEMPLATES, ids=lambda p: p.name)
def test_no_name_of_a_gate_or_a_side(path):
    """Templates know inputs, outputs and states as lists; key and value appear as extents alone."""
    words = set(re.findall(r"\w+", re.sub(r"#.*|\"\"\"(?:.|\n)*?\"\"\"", "", path.read_text())))
    assert not words & {"gate", "gates", "decay", "decays", "scores", "query", "forget", "gla"}


@pytest.mark.parametrize("path", TEMPLATES, ids=lambda p: p.name)
def test_templates_are_short(path):
    assert len(path.read_text().splitlines()) <= BUDGET
