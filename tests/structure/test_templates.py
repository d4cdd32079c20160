"""Python decides, templates lay out: no template holds a formula of a recurrence."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

TEMPLATES = sorted((Path(__file__).parents[2] / "templates").glob("*.j2"))
BUDGET = 150  # lines; the interface's docstrings and checks are the longest
# A sum over rows as a product with a 0/1 matrix is a primitive: it knows neither gates nor what it sums.
# Where packed sequences lie is a sum of their numbers of chunks.
ALLOWED = {"primitives.py.j2": {"tl.dot("}, "twin.py.j2": {" @ "}, "launch.py.j2": {"cumsum("}}
FORMULA = ("exp(", "exp2(", "log(", "tl.dot(", "tl.sum(", "sigmoid(", "cumsum(", "einsum(", "matmul(", " @ ")


@pytest.mark.parametrize("path", TEMPLATES, ids=lambda p: p.name)
def test_no_formula(path):
    code = "\n".join(line.split("#")[0] for line in path.read_text().splitlines())
    code = re.sub(r'"""(?:.|\n)*?"""', "", code)
    found = {word for word in FORMULA if word in code}
    assert found <= ALLOWED.get(path.name, set())


def test_the_allowed_primitives_stand_alone():
    """What the table above allows is used by one function each."""
    primitives = (TEMPLATES[0].parent / "primitives.py.j2").read_text()
    functions = re.split(r"^def ", primitives, flags=re.MULTILINE)[1:]
    assert [f.split("(")[0] for f in functions if "tl.dot(" in f] == ["_sum_rows"]
    twin = (TEMPLATES[0].parent / "twin.py.j2").read_text()
    uses = [line for line in twin.splitlines() if " @ " in line]
    assert len(uses) == 1 and uses[0].lstrip().startswith("return select @ x")


@pytest.mark.parametrize("path", TEMPLATES, ids=lambda p: p.name)
def test_no_name_of_a_gate_or_a_side(path):
    """Templates know inputs, outputs and states as lists; key and value appear as extents alone."""
    words = set(re.findall(r"\w+", re.sub(r"#.*|\"\"\"(?:.|\n)*?\"\"\"", "", path.read_text())))
    assert not words & {"gate", "gates", "decay", "decays", "scores", "query", "forget", "gla"}


@pytest.mark.parametrize("path", TEMPLATES, ids=lambda p: p.name)
def test_templates_are_short(path):
    assert len(path.read_text().splitlines()) <= BUDGET
