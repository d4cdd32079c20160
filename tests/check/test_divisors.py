"""Which reads are divided by, and may come to less than their terms."""

from __future__ import annotations

from pathlib import Path

import pytest

from glagen.check import check
from glagen.errors import Source
from glagen.ir.recurrence import Composite
from glagen.parse import parse

SPECS = Path(__file__).parents[2] / "specs"
NORMALISED = """
name: op
inputs:
  q: {{axes: [t, i], domain: "{domain}"}}
  k: {{axes: [t, i], domain: "[0, inf]"}}
  v: [t, j]
  g: {{axes: [t], domain: "[-inf, 0]"}}
state:
  - z[i]
  - S[i, j]
equations:
  - z[t,i] = exp(g[t]) * z[t-1,i] + k[t,i]
  - S[t,i,j] = exp(g[t]) * S[t-1,i,j] + k[t,i] * v[t,j]
  - n[t] = sum(i, q[t,i] * z[t,i])
  - o[t,j] = {output}
"""
READ = "sum(i, q[t,i] * S[t,i,j])"


def dividing(text: str) -> set[str]:
    """The states whose reads divide."""
    found = check(parse(Source("test.yaml", text)))
    assert isinstance(found, Composite)
    return {part.states[0].name for part in found.parts if part.divides}


@pytest.mark.parametrize(
    ("output", "expected"),
    [
        (f"{READ} / (1 + abs(n[t]))", {"z"}),
        (f"{READ} * (1 + n[t]**2)**(-1/2)", {"z"}),
        (f"{READ} * log(2 + n[t]**2)", {"z"}),
        (f"{READ} * n[t]", set()),
        (f"{READ} * n[t]**2", set()),
        (f"n[t] * {READ} / 3", set()),
    ],
)
def test_what_divides(output, expected):
    assert dividing(NORMALISED.format(domain="[-inf, inf]", output=output)) == expected


def test_terms_of_one_sign_do_not_cancel():
    output = f"{READ} / (1 + n[t])"
    assert dividing(NORMALISED.format(domain="[0, inf]", output=output)) == set()
    assert dividing(NORMALISED.format(domain="[-1, 0]", output=output.replace("1 + n", "1 - n"))) == set()


@pytest.mark.parametrize(("name", "expected"), [("mlstm", {"n"}), ("linear_attn_norm", set()), ("gsa", set())])
def test_of_the_specs(name, expected):
    assert dividing((SPECS / f"{name}.yaml").read_text()) == expected
