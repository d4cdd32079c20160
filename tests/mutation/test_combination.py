"""Every operation of what combines the reads of several states is changed in turn, and the check must notice."""

from __future__ import annotations

import re

import torch

from glagen.errors import Source
from glagen.ir.schedule import Options
from glagen.loader import import_text
from glagen.pipeline import compile_spec
from glagen.regimes import Case, draw
from glagen.tolerances import PRECISIONS
from glagen.verify import op_results, reference_results
from tests.numerics.helpers import CPU, document_of

CASE = Case(1, 20, 2, 3, 4)
SPEC = """name: combined
inputs:
  q: [t, i]
  k: [t, i]
  v: [t, j]
  w: {axes: [j], kind: parameter}
  c: {kind: scalar, default: 0.5}
  x: [t]
  g: {axes: [t], domain: "[-inf, 0]"}
state: [m, "S[i, j]", "z[i]"]
equations:
  - m[t] = max(m[t-1] + 2 * g[t], 0.5 * x[t])
  - S[t,i,j] = exp(2 * g[t] + m[t-1] - m[t]) * S[t-1,i,j] + softmax(i, c * k[t,i]) * v[t,j]
  - z[t,i] = sigmoid(sum(j, v[t,j] * tanh(sum(i, q[t,i] * S[t-1,i,j])))) * z[t-1,i] + k[t,i]
  - n[t] = sum(i, q[t,i] * z[t,i])
  - o[t,j] = w[j] * sum(i, q[t,i] * S[t,i,j]) / sqrt(1 + n[t] ** 2) - c * tanh(sum(i, q[t,i] * k[t,i])) * v[t,j]
"""
SWAPPED = {" * ": " / ", " / ": " * ", " + ": " - ", " - ": " + ", "-(": "(", "torch.tanh": "torch.sin", "sqrt": "exp"}


def text() -> str:
    return compile_spec(Source("combined.yaml", SPEC), Options())


def mutants(text: str) -> list[tuple[str, str]]:
    """Texts with one operation changed, in the lines that are printed for this spec, and what was changed."""
    found = []
    for function in re.finditer(r"^def (?:_combine|_values_\d+)(?:_backward)?\(", text, re.MULTILINE):
        end = text.index("\n\n\n", function.end())
        for line in re.finditer(r"^    (\w+) = (?!_of_all).*$", text[function.end() : end], re.MULTILINE):
            for old, new in SWAPPED.items():
                for place in re.finditer(re.escape(old), line.group()):
                    at = function.end() + line.start() + place.start()
                    name = f"{line.group().strip()}: {old} at {place.start()}"
                    found.append((name, text[:at] + new + text[at + len(old) :]))
    return found


def results(text: str) -> dict[str, torch.Tensor]:
    document = document_of(SPEC)
    problem = draw(document, "mild", CASE)
    return op_results(document, import_text(text), problem, PRECISIONS["fp64"], CPU)


def test_every_change_is_noticed():
    document = document_of(SPEC)
    expected = reference_results(document, draw(document, "mild", CASE), CPU)

    def differs(found: dict[str, torch.Tensor]) -> bool:
        return any(not torch.allclose(found[n], x, rtol=1e-7, atol=1e-9) for n, x in expected.items())

    original = text()
    assert not differs(results(original))
    changed = mutants(original)
    survivors, killed = [], 0
    for name, mutant in changed:
        try:
            noticed = differs(results(mutant))
        except (RuntimeError, NameError):
            continue  # no such op: nothing is learnt of the check
        survivors += [] if noticed else [name]
        killed += noticed
    assert not survivors and killed > 30
