"""`glagen explain`: every spec of the class explains itself, in text and in LaTeX that compiles."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings

from glagen.errors import Source
from glagen.explain import explain
from glagen.explain.covers import picture
from glagen.explain.equations import equation
from glagen.explain.latex_math import escape, flat
from glagen.explain.latex_math import formula as latex_formula
from glagen.explain.text import WIDTH
from glagen.explain.text import formula as text_formula
from glagen.ir.chunk import GateGradient
from glagen.ir.document import Document
from glagen.ir.schedule import Ensemble, Options, Schedule, schedules
from glagen.parse import parse
from glagen.pipeline import plan
from tests.strategies import any_specs

ROOT = Path(__file__).parents[2]
SPECS = {path.stem: path.read_text(encoding="utf-8") for path in sorted((ROOT / "specs").glob("*.yaml"))}

INPUTS = "inputs:\n  q: [t, i]\n  k: [t, i]\n  v: [t, j]\n"
WRITE = "k[t,i] * v[t,j]"
TRICKY = {
    "bonus": f"""name: bonus
{INPUTS}  w: {{axes: [t, i], domain: "(0, 1]"}}
  u: {{kind: parameter, axes: [i]}}
state: state_matrix[i, j]
equations:
  - state_matrix[t,i,j] = w[t,i] * state_matrix[t-1,i,j] + {WRITE}
  - o[t,j] = sum(i, q[t,i] * state_matrix[t-1,i,j]) + sum(i, q[t,i] * u[i] * k[t,i]) * v[t,j]
chunk: 16
""",
    "everything": f"""name: everything
doc: 100% & more {{of}} _all_ ^ \\ ~ $5 `x` β₂ "quoted" <b> é
{INPUTS}  x_logit: [t, i]
  y: {{axes: [t, j], domain: "[-1, 0]"}}
  w: {{axes: [t], domain: "[-inf, 0]", doc: 50 % & rising}}
  rate: {{kind: parameter, axes: [i], domain: "[-6, 0]"}}
  gamma: {{kind: constant, axes: [], domain: "(0, 1)", value: 1 - 2**(-5 - h)}}
  d: {{kind: parameter, axes: [j]}}
  temperature_of_the_softmax: {{kind: scalar, default: K**-0.5}}
state: S[i, j]
equations:
  - alpha[t,i] = sigmoid(x_logit[t,i]) ** (1/16) * exp(rate[i])
  - S[t,i,j] = gamma * exp(w[t] + y[t,j]) * alpha[t,i] * S[t-1,i,j] + (1 - alpha[t,i]) * {WRITE} + k[t,i] * silu(v[t,j])
  - o[t,j] = silu(v[t,j]) * sum(i, temperature_of_the_softmax * sqrt(q[t,i] ** 2 + 1) * S[t-1,i,j]) - d[j] * v[t,j]
  - p[t,j] = sum(i, max(k[t,i], 0.1 * k[t,i]) * S[t,i,j]) / 3
chunk: 64
subchunk: 16
""",
    "scalar_before": f"""name: scalar_before
{INPUTS}  dt: [t]
  a_log: {{kind: parameter, axes: []}}
state: S[i, j]
equations:
  - S[t,i,j] = exp(-softplus(dt[t]) * exp(min(a_log, 1))) * S[t-1,i,j] + {WRITE}
  - o[t,j] = sum(i, q[t,i] * S[t-1,i,j]) + tanh(abs(v[t,j])) * relu(v[t,j])
""",
    "anchored": f"""name: anchored
{INPUTS}  g: {{axes: [t, i], domain: "[-0.5, 0]"}}
state: S[i, j]
equations:
  - S[t,i,j] = exp(g[t,i]) * S[t-1,i,j] + {WRITE}
  - o[t,j] = sum(i, q[t,i] * S[t,i,j])
""",
}
EVERY = SPECS | TRICKY
DOUBLED = ("gla", "gla_sigmoid", "hgrn2", "lightning_attn", "retnet", "rwkv6", "simple_gla")
MIRRORED = ("linear_attn", "lightning_attn", "retnet")  # whose gradients of queries a forward may make, one walk others
ONE_WALK = (*MIRRORED, "simple_gla")  # whose gradients one may make


def planned(text: str, options: Options | None = None) -> tuple[Document, Schedule | Ensemble]:
    """By the rule, for tables change, if options do not say otherwise."""
    document = parse(Source("test.yaml", text))
    return document, plan(document, options or Options(tuned=()))


def joined(text: str) -> str:
    """Without blanks and line breaks, which depend on width."""
    return re.sub(r"\s", "", text)


def assert_complete(planned: Schedule | Ensemble, text: str, latex: str) -> None:
    """Every statement, kernel, exponential and input is there, in both forms."""
    for schedule in schedules(planned):
        assert_part_complete(schedule, text, latex)


def assert_part_complete(schedule: Schedule, text: str, latex: str) -> None:
    in_text, in_latex = joined(text), re.sub(r"\\\\&\\quad\{\}|\\times|\\,", "", joined(latex))
    for statement in schedule.program.forward + schedule.program.backward:
        shown = equation(statement)
        assert joined(f"{text_formula(shown.left)} =") in in_text, statement.out
        assert joined(f"{flat(latex_formula(shown.left))} &=") in in_latex, statement.out
        if not isinstance(statement, GateGradient):
            assert joined(text_formula(shown.right)) in in_text, statement.out
            right = re.sub(r"\\,|\s", "", flat(latex_formula(shown.right)))
            assert right in in_latex, statement.out
    for kernel in schedule.kernels:
        assert f"Kernel `{kernel.name}`" in text
    for growth in schedule.certificate:
        assert joined(growth.where) in in_text
    for declaration in schedule.program.recurrence.declarations:
        assert f"`{declaration.name}`" in text


def assert_well_formed(latex: str) -> None:
    """Braces, dollars and environments are balanced outside of verbatim."""
    prose = re.sub(r"\\begin\{verbatim\}.*?\\end\{verbatim\}", "", latex, flags=re.DOTALL)
    bare = prose.replace(r"\{", "").replace(r"\}", "").replace(r"\$", "")
    assert bare.count("{") == bare.count("}")
    assert bare.count("$") % 2 == 0
    open_: list[str] = []
    for word, name in re.findall(r"\\(begin|end)\{(\w+\*?)\}", prose):
        if word == "begin":
            open_.append(name)
        else:
            assert open_ and open_.pop() == name
    assert not open_
    assert "\x1e" not in latex and "\x1f" not in latex
    assert latex.isascii() or all(c.isalpha() for c in latex if ord(c) > 127)


@pytest.mark.parametrize("name", SPECS)
def test_what_was_measured_is_explained(name: str) -> None:
    """With the table that glagen comes with, which has kernels that the rule has not."""
    document, schedule = planned(SPECS[name], Options())
    text, latex = explain(document, schedule, "text"), explain(document, schedule, "latex")
    assert_complete(schedule, text, latex)
    assert_well_formed(latex)
    longer = joined("64 for compute capability 9, bfloat16, heads of") in joined(text)
    assert longer == (name in DOUBLED)
    assert ("`fused_given`" in text) == (name in (*DOUBLED, "gla_kv", "linear_attn"))
    assert (joined("multiplies what `operands` makes of each chunk") in joined(text)) == (name == "gla_kv")
    assert ("`fused_gradients` does the whole backward" in text) == (name == "simple_gla")
    assert ("`fused_other_gradients` and a forward do the backward" in text) == (name in MIRRORED)
    assert ("`fused` takes chunks by halves" in text) == (name in ONE_WALK and name != "linear_attn")
    assert (joined("take chunks by halves") in joined(text)) == (name == "linear_attn")
    assert ("`gradients` does the work of" in text) == (name == "gla_v")
    assert (joined("and what a chunk adds, until the next") in joined(text)) == (name == "gla_kv")


@pytest.mark.parametrize("name", EVERY)
def test_every_spec_explains_itself(name: str) -> None:
    document, schedule = planned(EVERY[name])
    text, latex = explain(document, schedule, "text"), explain(document, schedule, "latex")
    assert_complete(schedule, text, latex)
    assert_well_formed(latex)
    assert max(map(len, text.splitlines())) <= WIDTH
    assert (text, latex) == (explain(document, schedule, "text"), explain(document, schedule, "latex"))


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(any_specs())
def test_any_spec_of_the_class_explains_itself(spec: str) -> None:
    document, schedule = planned(spec)
    text, latex = explain(document, schedule, "text"), explain(document, schedule, "latex")
    assert_complete(schedule, text, latex)
    assert_well_formed(latex)


@pytest.mark.skipif(shutil.which("pdflatex") is None, reason="no pdflatex here")
@pytest.mark.parametrize("name", EVERY)
def test_latex_compiles(name: str, tmp_path: Path) -> None:
    """Without errors, and with no line more than a few points too wide."""
    (tmp_path / "x.tex").write_text(explain(*planned(EVERY[name]), "latex"), encoding="utf-8")
    command = ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "x.tex"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, timeout=120, check=False)
    log = (tmp_path / "x.log").read_text(encoding="latin-1")
    assert done.returncode == 0, log[-2000:]
    assert not [w for w in re.findall(r"Overfull \\[hv]box \(([\d.]+)pt", log) if float(w) > 5]


def test_text_of_gla(golden: Callable[[str, str], None]) -> None:
    golden("explain/gla.txt", explain(*planned(SPECS["gla"]), "text"))


def test_latex_of_retnet(golden: Callable[[str, str], None]) -> None:
    golden("explain/retnet.tex", explain(*planned(SPECS["retnet"]), "latex"))


def test_an_unknown_format_is_refused() -> None:
    with pytest.raises(ValueError, match="expected 'text' or 'latex'"):
        explain(*planned(SPECS["retnet"]), "html")


def test_words_are_no_commands() -> None:
    assert escape(r"a_b 5% \x {y} #1 & β") == r"a\_b 5\% \textbackslash{}x \{y\} \#1 \& $\beta$"


@pytest.mark.parametrize("cover", [(("bisect", 1),), (("bisect", 4), ("leaf", 4)), (("strips", 16), ("offsets", 16))])
def test_picture_is_the_triangle(cover: tuple[tuple[str, int], ...]) -> None:
    """One mark for each cell on and below the diagonal, of which the largest block takes a quarter of the square."""
    lines = picture(64, cover)
    assert [len(line.split()) for line in lines] == list(range(1, 17))
    if cover[0][0] == "bisect":
        assert "".join(lines).count("A") == 64
