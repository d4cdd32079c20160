"""Names of a spec never meet the words of the generated code.

A spec is compiled with names nothing else has, and again with one of them replaced by a word that the generated code
uses somewhere (its locals, its arguments, names of derived tiles). Where two names became one, a function has fewer
distinct names than before: that is seen without running anything, in kernels as in Python.
"""

from __future__ import annotations

import ast
import functools
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from glagen.errors import Source, Span, SpecError
from glagen.parse import parse
from glagen.parse.declarations import check_name
from glagen.pipeline import compile_spec
from glagen.regimes import Case, draw
from glagen.tolerances import PRECISIONS
from glagen.verify import compare, op_results, reference_results
from tests.mutation.judge import twin_only

ROOT = Path(__file__).parents[2]
FULL = os.environ.get("GLAGEN_FULL") == "1"
ROLES = ("QQ", "KK", "VV", "GG", "UU", "CC", "SC", "ST", "OO", "PP", "AA", "OP")
DECLARED = """
name: OP
inputs:
  QQ: [t, i]
  KK: [t, i]
  VV: [t, j]
  {gate}
  UU: {{axes: [i], kind: parameter}}
  CC: {{kind: constant, axes: [], domain: "(0, 1)", value: 1 - 2**(-5 - h)}}
  SC: {{kind: scalar, default: K**-0.5}}
state: ST[i, j]
equations:
  - AA[t,i] = QQ[t,i] * SC
  - ST[t,i,j] = exp({exponent}) * CC * ST[t-1,i,j] + KK[t,i] * VV[t,j]
  - OO[t,j] = sum(i, AA[t,i] * ST[t,i,j]) + sum(i, QQ[t,i] * UU[i] * KK[t,i]) * VV[t,j]
  - PP[t,j] = sum(i, tanh(KK[t,i]) * ST[t-1,i,j])
chunk: 16
"""
PLAINLY = """
name: OP
inputs:
  QQ: [t, i]
  KK: [t, i]
  VV: [t, j]
  {gate}
  SC: {{kind: scalar, default: K**-0.5}}
state: ST[i, j]
equations:
  - ST[t,i,j] = {factor} + KK[t,i] * VV[t,j]
  - OO[t,j] = sum(i, SC * QQ[t,i] * ST[t,i,j])
chunk: {chunk}
"""
FORMS = {
    "key": DECLARED.format(gate='GG: {axes: [t, i], domain: "[-inf, 0]"}', exponent="GG[t,i]"),
    "value": DECLARED.format(gate='GG: {axes: [t, j], domain: "[-5, 0]"}', exponent="GG[t,j]"),
    "scalar": DECLARED.format(gate="GG: [t]", exponent="-softplus(GG[t])"),
    "states": """
name: OP
inputs:
  QQ: [t, i]
  KK: [t, i]
  VV: [t, j]
  GG: {axes: [t, j]}
  UU: {axes: [j], kind: parameter}
  CC: {kind: constant, axes: [], domain: "(0, 1)", value: 1 - 2**(-5 - h)}
  SC: {kind: scalar, default: K**-0.5}
state: ["ST[i, j]", "AA[i]"]
equations:
  - ST[t,i,j] = CC * ST[t-1,i,j] + KK[t,i] * VV[t,j]
  - AA[t,i] = AA[t-1,i] + KK[t,i]
  - PP[t,j] = SC * sum(i, QQ[t,i] * ST[t,i,j]) / (1 + sum(i, QQ[t,i] * AA[t,i]) ** 2)
  - OO[t,j] = UU[j] * tanh(sum(i, QQ[t,i] * KK[t,i])) * silu(GG[t,j]) + sum(i, QQ[t,i] * ST[t-1,i,j])
chunk: 16
""",
    "plain": PLAINLY.format(gate="", factor="ST[t-1,i,j]", chunk=64),  # of which one walk makes all gradients
    "value alone": PLAINLY.format(
        gate='GG: {axes: [t, j], domain: "[-inf, 0]"}', factor="exp(GG[t,j]) * ST[t-1,i,j]", chunk=32
    ),
    "values": """
name: OP
inputs:
  QQ: [t, i]
  KK: [t, i]
  VV: [t, j]
  GG: {axes: [t, s]}
  UU: [t]
  CC: {kind: constant, axes: [], domain: "(0, 1)", value: 1 - 2**(-5 - h)}
  SC: {kind: scalar, default: K**-0.5}
state: [AA, "PP[i, s]", "ST[s, j]"]
equations:
  - AA[t] = max(AA[t-1] - softplus(UU[t]), SC * UU[t])
  - PP[t,i,s] = exp(AA[t-1] - softplus(UU[t]) - AA[t]) * PP[t-1,i,s] + KK[t,i] * GG[t,s]
  - ST[t,s,j] = CC * ST[t-1,s,j] + softmax(s, GG[t,s]) * VV[t,j]
  - OO[t,j] = exp(-AA[t]) * sum(s, softmax(s, sum(i, QQ[t,i] * PP[t,i,s])) * ST[t,s,j])
chunk: 16
""",
}
PLAIN = {role: f"zq{role.lower()}x" for role in ROLES}
CASE = Case(1, 19, 2, 3, 2)


def text_of(form: str, names: dict[str, str] | None = None) -> str:
    names = PLAIN | (names or {})
    return re.sub(r"\b(" + "|".join(ROLES) + r")\b", lambda m: names[m.group()], FORMS[form])


def compiled(form: str, names: dict[str, str] | None = None) -> str:
    return compile_spec(Source("names.yaml", text_of(form, names)))


@functools.cache
def usual(form: str) -> tuple[ast.Module, dict[int, set[str]]]:
    """The module of names that nothing else has, and the names of its functions."""
    tree = ast.parse(compiled(form))
    return tree, functions(tree)


def functions(tree: ast.Module) -> dict[int, set[str]]:
    """The distinct names of each function, by the function's place in the module."""
    found, nodes = {}, list(ast.walk(tree))
    comprehensions = [(x, bound) for x in nodes if (bound := _bound(x))]  # whose own names hide those around them
    own = {id(name) for _, bound in comprehensions for name in bound}
    for n, node in enumerate(x for x in nodes if isinstance(x, ast.FunctionDef)):
        inner = [x for part in (node.args, *node.body) for x in ast.walk(part)]
        names = [x.id for x in inner if isinstance(x, ast.Name) and id(x) not in own]
        found[n] = {*names, *(x.arg for x in inner if isinstance(x, ast.arg))}
    for n, (node, _) in enumerate(comprehensions):
        found[-2 - n] = {x.id for x in ast.walk(node) if isinstance(x, ast.Name)}
    found[-1] = {x.name for x in tree.body if isinstance(x, ast.FunctionDef | ast.ClassDef)}
    return found


def _bound(node: ast.AST) -> list[ast.Name]:
    """The names of a comprehension that are its own."""
    if not isinstance(node, ast.ListComp | ast.GeneratorExp | ast.SetComp | ast.DictComp):
        return []
    targets = {x.id for g in node.generators for x in ast.walk(g.target) if isinstance(x, ast.Name)}
    return [x for x in ast.walk(node) if isinstance(x, ast.Name) and x.id in targets]


@functools.cache
def words() -> tuple[str, ...]:
    """Every name the generated code uses, and those of derived tiles as they follow from what inputs may be called."""
    found: set[str] = set()
    for form in FORMS:
        for node in ast.walk(usual(form)[0]):
            match node:
                case ast.Name(id=name) | ast.arg(arg=name):
                    found.add(name)
                case ast.keyword(arg=str() as name) | ast.FunctionDef(name=name) | ast.ClassDef(name=name):
                    found.add(name)
    named = {re.sub("|".join(PLAIN.values()), short, name) for name in found for short in ("q", "S", "op")}
    derived = {f"{word}_" for word in named if len(word) < 12}
    return tuple(sorted(w for w in named | derived if admitted(w)))


def admitted(name: str) -> bool:
    faults: list = []
    check_name(name, Span(1, 1), faults)
    return not faults


def trials() -> list[tuple[str, dict[str, str]]]:
    """Twelve words at a time in the twelve roles; every word in every role of every form when GLAGEN_FULL=1."""
    found = []
    for shift in range(len(ROLES) if FULL else 1):
        roles = ROLES[shift:] + ROLES[:shift]
        for n, start in enumerate(range(0, len(words()), len(ROLES))):
            several = dict(zip(roles, words()[start : start + len(ROLES)], strict=False))
            found += [(form, several) for form in (FORMS if FULL else [list(FORMS)[n % len(FORMS)]])]
    return found


UNLIKE = "another number of functions"


def merged(form: str, names: dict[str, str]) -> list[str]:
    """Functions in which two names have become one, or the reason why there is no module at all."""
    try:
        tree = ast.parse(compiled(form, names))
    except SpecError:
        return []  # refused, which is an answer too
    except Exception as e:
        return [f"{type(e).__name__}: {str(e)[:120]}"]
    there, those = functions(tree), usual(form)[1]
    if there.keys() != those.keys():
        return [UNLIKE]
    found = [n for n in those if len(there[n]) < len(those[n])]
    places = [n.name for n in ast.walk(tree) if isinstance(n, ast.FunctionDef)] + ["the module"] if found else []
    return [places[n] for n in found]


def comparable(form: str, names: dict[str, str]) -> list[tuple[dict[str, str], list[str]]]:
    """The names and where they merge, in halves as long as several make a module with another number of functions: of
    two states, those of one text are shared, which a pair of names may change (an op `gate_k_` with a state `future_`).
    """
    there = merged(form, names)
    if len(names) == 1 or there != [UNLIKE]:
        return [(names, there)]
    items = list(names.items())
    halves = dict(items[: len(items) // 2]), dict(items[len(items) // 2 :])
    return [part for half in halves for part in comparable(form, half)]


def test_no_name_of_a_spec_meets_a_word_of_the_code():
    assert len(words()) > 200
    found = []
    for form, several in trials():
        for names, there in comparable(form, several):
            if there:
                alone = {n: m for r, n in names.items() if (m := merged(form, {r: n}))}
                found += [f"{form}: {n}: {', '.join(m)}" for n, m in alone.items()] or [f"{form}: {names}"]
    assert not found, f"{len(found)} collisions\n" + "\n".join(found)


def test_a_maximum_is_called_what_it_may_be():
    """What it was before a step has a name of its own, which may be a word of the code."""
    names = {"AA": "between"}  # `between_before` is a mask
    document, module = parse(Source("names.yaml", text_of("values", names))), twin_only(compiled("values", names))
    problem = draw(document, "unit", CASE)
    expected = reference_results(document, problem, torch.device("cpu"))
    actual = op_results(document, module, problem, PRECISIONS["fp64"], torch.device("cpu"), "saved")
    assert all(row.ok for row in compare(document, actual, expected, PRECISIONS["fp64"], ("", "", "", "")))


@pytest.mark.parametrize(
    ("form", "role", "name"),
    [
        ("values", "OP", "wrapper"),
        ("states", "QQ", "dread_3_combine"),
        ("values", "VV", "dweights"),
        ("plain", "VV", "alone"),
        ("value alone", "KK", "both"),
    ],
    ids=lambda x: x,
)
def test_names_that_once_met_others_stay_apart(form, role, name):
    """A function's own function, like the op; a gradient within a backward, or that of a softmax, like an input; which
    kernels a backward has, like an input."""
    assert not merged(form, {role: name})


# Words that mean something in every part of the generated code, in the role where they would do most harm.
HARMFUL = [
    ("QQ", "row"), ("QQ", "b"), ("QQ", "head"), ("QQ", "x"), ("QQ", "dtype"), ("QQ", "config"), ("QQ", "fused"),
    ("KK", "carried"), ("KK", "kept"), ("KK", "results"), ("KK", "tensors"), ("KK", "gradients"), ("KK", "do"),
    ("KK", "dq"), ("KK", "query"), ("KK", "scores"), ("KK", "outputs"), ("VV", "last"), ("VV", "read"),
    ("VV", "state"), ("VV", "ctx"), ("VV", "needed"), ("VV", "chunk"), ("VV", "chunks"), ("VV", "CHUNK"),
    ("GG", "gate_k"), ("GG", "gate"), ("GG", "level"), ("GG", "upper"), ("GG", "same"), ("GG", "log_gate_k_within"),
    ("UU", "step"), ("UU", "n"), ("UU", "B"), ("UU", "F"), ("CC", "device"), ("CC", "name"), ("SC", "program"),
    ("SC", "range"), ("SC", "zip"), ("ST", "o"), ("ST", "carried"), ("OO", "last"), ("OO", "outputs"), ("OO", "q"),
    ("PP", "S_final"), ("OP", "F"), ("OP", "range"), ("OP", "step"),
]  # fmt: skip


@pytest.mark.parametrize(("role", "name"), HARMFUL, ids=lambda x: x)
def test_such_specs_compute_what_they_say(role, name):
    form = "key"
    try:
        document = parse(Source("names.yaml", text_of(form, {role: name})))
        module = twin_only(compiled(form, {role: name}))
    except SpecError:
        return
    problem = draw(document, "unit", CASE)
    expected = reference_results(document, problem, torch.device("cpu"))
    actual = op_results(document, module, problem, PRECISIONS["fp64"], torch.device("cpu"), "saved")
    rows = compare(document, actual, expected, PRECISIONS["fp64"], ("unit", str(CASE), "fp64", "saved"))
    assert all(row.ok for row in rows), [row for row in rows if not row.ok]


WORKER = """
import importlib.util, sys, torch
from glagen.errors import Source
from glagen.loader import import_path
from glagen.parse import parse
from glagen.pipeline import compile_spec
from glagen.regimes import Case, draw
from glagen.tolerances import PRECISIONS
from glagen.verify import compare, op_results, reference_results
from tests.interpreter import spare_the_interpreter
from pathlib import Path
torch.set_num_threads(1)
spare_the_interpreter()
text, folder = sys.argv[1:]
source = Source("names.yaml", text)
path = Path(folder) / "names.py"
path.write_text(compile_spec(source))
document, module = parse(source), import_path(path, "names")
assert module._on_triton(torch.zeros(1))
problem = draw(document, "unit", Case(1, 19, 1, 3, 2))
cpu = torch.device("cpu")
expected = reference_results(document, problem, cpu)
for mode in ("saved", "recomputed"):
    actual = op_results(document, module, problem, PRECISIONS["fp32"], cpu, mode)
    rows = compare(document, actual, expected, PRECISIONS["tf32"], ("unit", "", "fp32", mode))
    assert all(row.ok for row in rows), [row for row in rows if not row.ok]
print("fine")
"""


def test_a_spec_of_such_names_runs_in_the_interpreter(tmp_path):
    """All names at once are words of the kernels."""
    names = {"QQ": "row", "KK": "b", "VV": "same", "GG": "upper", "UU": "step", "CC": "chunk", "SC": "head"}
    names |= {"ST": "scores", "OO": "dq", "PP": "query", "AA": "half", "OP": "kernel"}
    text = re.sub(r"\b(" + "|".join(ROLES) + r")\b", lambda m: names[m.group()], FORMS["key"])
    environment = os.environ | {"TRITON_INTERPRET": "1", "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", WORKER, text, str(tmp_path)]
    run = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert run.stdout == "fine\n", run.stderr[-700:]


def test_names_that_end_alike_stay_apart():
    """`identifier` adds an underscore: a name that already ends in one is another name."""
    assert not merged("key", {"QQ": "row", "KK": "row_", "VV": "row__"})
