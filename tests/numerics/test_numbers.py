"""Numbers where an op has tensors: gates, weights and defaults that are numbers. And gates that are 0 in floating
point, which have a gradient all the same; and words, which stay words."""

from __future__ import annotations

import pytest
import torch

from glagen.errors import Source
from glagen.parse import parse
from glagen.regimes import Case
from glagen.verify import verify
from tests.numerics.helpers import compiled, document_of

TEXT = """
name: op
inputs:
  q: [t, i]
  k: [t, i]
  v: [t, j]
  {declared}
state: S[i, j]
equations:
  - S[t,i,j] = {gate} * S[t-1,i,j] + {weight} * k[t,i] * v[t,j]
  - o[t,j] = sum(i, {query} * q[t,i] * S[t,i,j])
"""
X = "x: [t, i]"
SCALE = 'scale: {kind: scalar, default: "%s"}'
GAMMA = '"gamma": {kind: constant, axes: [], domain: "(0, 1)", value: "%s"}'
NUMBERS = [
    {"gate": "0.5"},
    {"gate": "sqrt(0.8)"},
    {"gate": "exp(-1)"},
    {"gate": "exp(-abs(scale))", "declared": SCALE % "0.5"},
    {"gate": "exp(-softplus(scale))", "declared": SCALE % "sqrt(K) / 8"},
    {"weight": "max(1, sqrt(2))"},
    {"weight": "tanh(scale)", "declared": SCALE % "0.5"},
    {"query": "sqrt(2) * scale", "declared": SCALE % "1/sqrt(K)"},
    {"query": "scale", "declared": SCALE % "min(exp(-1), softplus(0.1))"},
    {"query": "scale", "declared": SCALE % "sigmoid(0.3) + tanh(0.2) - logsigmoid(0.3) + relu(1) + elu(-1) + silu(2)"},
    {"gate": "gamma", "declared": GAMMA % "exp(-1)"},
    {"gate": "gamma", "declared": GAMMA % "1 - 1/sqrt(H + h + 1)"},
]
VANISHING = [
    "(0.5 + 0.5 * tanh(x[t,i]))",
    "((1 - tanh(x[t,i])) / 2)",
    "min(1, exp(x[t,i]))",
    "min(1, elu(x[t,i]) + 1)",
    "(1 - sigmoid(x[t,i]) ** 2)",
    "(1 - exp(-softplus(x[t,i])))",
    "max(0.1, sigmoid(x[t,i]))",
]


def text_of(gate: str = "0.9", weight: str = "1", query: str = "1", declared: str = "") -> str:
    return TEXT.format(gate=gate, weight=weight, query=query, declared=declared)


def faults(text: str, **options) -> list[str]:
    report = verify(document_of(text), compiled(text), "cpu", cases=[Case(2, 37, 2, 5, 4)], **options)
    assert report.rows
    return [f"{row.regime} {row.precision} {row.mode} {row.quantity}: {row.error:.1e}" for row in report.failures]


@pytest.mark.parametrize("parts", NUMBERS, ids=str)
def test_numbers(parts):
    assert not faults(text_of(**parts), precisions=["fp64", "fp32"], regimes=["mild", "strong"])


@pytest.mark.parametrize("gate", VANISHING)
def test_gates_that_are_zero_have_gradients(gate):
    assert not faults(text_of(gate, declared=X), precisions=["fp64", "fp32"])


def test_defaults_of_numbers_are_no_tensors():
    """torch.compile would have to ask what they hold."""
    op = compiled(text_of(query="scale", declared=SCALE % "1/sqrt(K)")).op
    given = [torch.randn(1, 20, 2, 16) for _ in range(3)]
    found, _ = torch.compile(op, fullgraph=True, backend="aot_eager")(*given)
    assert torch.allclose(found, op(*given, scale=0.25)[0])


def test_words_of_a_spec_stay_words():
    """Whatever they hold: quotes, escapes, lines, code."""
    words = [
        'a """ b',
        'ends in "',
        r"\x and \n and \\",
        "two\nlines",
        '""" + str(1 / 0) + """',
        "a\x07b",
        "{{ name }}",
    ]
    for doc in words:
        text = text_of(declared=f"x: {{axes: [t, i], doc: {repr_yaml(doc)}}}", query="x[t,i]")
        module = compiled(text.replace("name: op", f"name: op\ndoc: {repr_yaml(doc)}"))
        assert parse(Source("a.yaml", text)).declarations[3].doc == doc
        shown = " ".join("".join(c if c.isprintable() else " " for c in doc).split())
        module.op(*(torch.zeros(1, 3, 1, 2) for _ in range(4)))
        assert module.__doc__.startswith(f"{shown}\n") and module.op.__doc__.startswith(f"{shown}\n")
        assert f"x: [B, T, H, K]: {shown}." in module.op.__doc__


def repr_yaml(text: str) -> str:
    """A double-quoted YAML scalar."""
    escapes = {"\\": "\\\\", '"': '\\"', "\n": "\\n", "\x07": "\\a"}
    return '"' + "".join(escapes.get(c, c) for c in text) + '"'
