"""Whatever is done to a spec's text: it is a spec, or it is refused, soon, and nothing else happens."""

from __future__ import annotations

import time
from pathlib import Path

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from glagen.check import check
from glagen.errors import Source, SpecError
from glagen.parse import parse

ROOT = Path(__file__).parents[2]
SPECS = [path.read_text(encoding="utf-8") for path in sorted((ROOT / "specs").glob("*.yaml"))]
TRICKY = """\
name: tricky
inputs:
  q: [t, i]
  k: [t, i]
  v: [t, j]
  x: {axes: [t, i], domain: "(0, 1]"}
  u: {kind: parameter, axes: [i]}
  gamma: {kind: constant, axes: [], domain: "(0, 1)", value: 1 - 2**(-5 - h)}
state: S[i, j]
equations:
  - alpha[t,i] = (1 - 0.5 * x[t,i])**0.5
  - w[t] = 1 / (1 + sum(i, k[t,i]**2))
  - S[t,i,j] = alpha[t,i] * exp(-softplus(v[t,j])) * gamma * S[t-1,i,j] + (1 - alpha[t,i]) * (v[t,j] + k[t,i])
  - o[t,j] = sum(i, q[t,i] * (S[t-1,i,j] + u[i] * k[t,i] * v[t,j])) * w[t]
  - p[t,j] = sum(i, (q[t,i] + v[t,j]) * S[t,i,j])
chunk: 64
subchunk: 16
"""
PIECES = [
    *"()[]{}:,-+*/=^&!|>'\"#@%\n\t \\\0é٣",
    *(
        "S[t-1,i,j]",
        "S[t,i,j]",
        "S[t-2,i,j]",
        "q[t,i]",
        "v[t,j]",
        "sum(i, ",
        "sum(j, ",
        "exp(",
        "log(",
        "sqrt(",
        "max(",
    ),
    *(
        "**",
        "**-1",
        "**0.5",
        "**64",
        "**9",
        " + 1",
        " - 1",
        "* 0",
        "/ 0",
        "1e300",
        "1e-300",
        "0.1",
        "-inf",
        "inf",
        "nan",
    ),
    *("t", "i", "j", "h", "K", "T", "axes", "kind", "scalar", "constant", "domain: ", "default: ", "- ", "? ", "---\n"),
    *(
        "&a ",
        "*a",
        "!!int ",
        "<<: ",
        "state",
        "name",
        "chunk: 32\n",
        "o[t,j] = 1\n  - ",
        "\r",
        "\u2028",
        "\x85",
        "\ufeff",
    ),
]
EDIT = st.tuples(st.floats(0, 1), st.integers(0, 12), st.sampled_from(PIECES) | st.integers(0, 2000), st.integers(1, 3))


def edited(text: str, edits: list[tuple[float, int, str | int, int]]) -> str:
    """Each edit takes some characters away and puts a piece, or a stretch of the text itself, in their place."""
    for where, gone, piece, times in edits:
        at = int(where * len(text))
        new = piece if isinstance(piece, str) else text[piece : piece + 15]
        text = text[:at] + new * times + text[at + gone :]
    return text


@settings(max_examples=500, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.sampled_from([*SPECS, TRICKY, TRICKY, TRICKY]), st.lists(EDIT, min_size=1, max_size=4))
def test_edited_specs(text: str, edits: list[tuple[float, int, str | int, int]]) -> None:
    source = Source("m.yaml", edited(text, edits))
    start = time.perf_counter()
    try:
        check(parse(source))
    except SpecError as error:
        assert error.diagnostics and all(d.help for d in error.diagnostics)
        assert str(error)
    assert time.perf_counter() - start < 5


LEAF = st.sampled_from(["x[t,i]", "k[t,i]", "v[t,j]", "u[i]", "gamma", "2", "0.5", "-1", "1/3", "x[t,i]"])
FORMS = """\
({} + {})
({} - {})
{} * {}
({}) / ({})
({})**({})
max({}, {})
exp({} * {})
sigmoid({} - {})
(-({} * {}))**2
log(1 + exp({} + {}))
-softplus({}) * {}
sqrt(abs({} * {}))
logsigmoid({}) + {}
"""
FORM = st.sampled_from(FORMS.splitlines())
EXPR = st.recursive(LEAF, lambda inner: st.builds(lambda f, x, y: f.format(x, y), FORM, inner, inner), max_leaves=10)


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(EXPR, EXPR, EXPR)
def test_any_expressions(decay: str, write: str, query: str) -> None:
    text = TRICKY.replace("alpha[t,i] * exp(-softplus(v[t,j])) * gamma *", f"exp(-abs({decay})) * sigmoid({write}) *")
    text = text.replace("(1 - alpha[t,i]) * (v[t,j] + k[t,i])", write).replace("(q[t,i] + v[t,j])", f"({query})")
    start = time.perf_counter()
    try:
        check(parse(Source("m.yaml", text)))
    except SpecError as error:
        assert str(error)
    assert time.perf_counter() - start < 5
