"""The committed modules as Python: they lint, they compile, they need torch alone, and they say what does not fit."""

from __future__ import annotations

import importlib.util
import math
import os
import py_compile
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch

from glagen.ir.document import Document
from glagen.parse import parse, read
from glagen.regimes import Case, draw
from tests.numerics.helpers import one_by_one, state_names

ROOT = Path(__file__).parents[2]
SPECS = sorted((ROOT / "specs").glob("*.yaml"))
NAMES = [p.stem for p in SPECS]
CASE = Case(2, 70, 3, 5, 6)

WITHOUT_TRITON = """
import sys
class NoTriton:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] == "triton":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, NoTriton())
import importlib.util, torch
torch.set_num_threads(1)
for path in sys.argv[1:]:
    spec = importlib.util.spec_from_file_location("op", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert module.triton is None
    name = path.rsplit("/", 1)[-1][:-3]
    layouts = {n: l for n, l in module._LAYOUT.items() if n not in module._OPTIONAL}
    sizes = {"B": 1, "T": 70, "H": 2, "K": 4, "S": 5, "V": 3}
    signs = {n: 1 if module._DOMAINS.get(n, (-1,))[0] >= 0 else -1 for n in layouts}
    tensors = {n: (signs[n] * torch.rand([sizes[a] for a in l])).requires_grad_() for n, l in layouts.items()}
    o, last = getattr(module, name)(**tensors, output_final_state=True)
    finals = last if isinstance(last, tuple) else (last,)
    (o.sum() + sum(x.sum() for x in finals)).backward()
    assert all(torch.isfinite(x.grad).all() for x in tensors.values())
    now = {n: (x[:, 0] if "T" in layouts[n] else x).detach() for n, x in tensors.items()}
    out, state = getattr(module, name + "_step")(**now)
    assert torch.allclose(out, o[:, 0], atol=1e-5)
print("fine")
"""


def load(name: str) -> ModuleType:
    description = importlib.util.spec_from_file_location(f"generated_{name}", ROOT / "generated" / f"{name}.py")
    assert description and description.loader
    module = importlib.util.module_from_spec(description)
    description.loader.exec_module(module)
    return module


@pytest.fixture(scope="module", params=NAMES)
def op(request) -> tuple[Document, object]:
    document = parse(read(ROOT / "specs" / f"{request.param}.yaml"))
    return document, one_by_one(document, getattr(load(request.param), request.param))


def arguments(document: Document, dtype=torch.float64) -> dict:
    """Arguments of a call; the initial states among them, in their own type."""
    problem = draw(document, "unit", CASE)
    tensors = {n: x.to(dtype) for n, x in problem.arguments.items() if isinstance(x, torch.Tensor)}
    state = torch.float64 if dtype == torch.float64 else torch.float32
    starts = (x.to(state) for x in problem.initial_states)
    return tensors | dict(zip(state_names(document), starts, strict=True))


# -- as Python ---------------------------------------------------------------------------------------------------------


def test_modules_lint():
    """Undefined and unused names, imports and locals; syntax."""
    command = [sys.executable, "-m", "ruff", "check", "--isolated", "--no-cache", "--select", "F,E9", "--force-exclude"]
    run = subprocess.run([*command, *(str(p) for p in sorted((ROOT / "generated").glob("*.py")))], capture_output=True)
    assert run.returncode == 0, run.stdout.decode()[-4000:]


@pytest.mark.parametrize("name", NAMES)
def test_modules_compile(name, tmp_path):
    py_compile.compile(str(ROOT / "generated" / f"{name}.py"), cfile=str(tmp_path / "x.pyc"), doraise=True)


@pytest.mark.parametrize("name", NAMES)
def test_the_width_of_a_step_is_one_product(name):
    """A row times heads, times columns, is a shift of a product, which ptxas got wrong once: see TOOLCHAIN.md."""
    text = (ROOT / "generated" / f"{name}.py").read_text()
    steps = re.findall(r"= row\[.*?\] \* (\S+|\(.*\)) \+ \w\[", text)
    assert steps and all(re.fullmatch(r"\(\(?H[^+]*\)? \* \w\)", step) for step in steps)
    assert "(row * " not in text


def test_modules_work_without_triton():
    paths = [str(ROOT / "generated" / f"{name}.py") for name in NAMES]
    run = subprocess.run([sys.executable, "-c", WITHOUT_TRITON, *paths], capture_output=True, text=True)
    assert run.stdout == "fine\n", run.stderr[-500:]


@pytest.mark.parametrize("name", NAMES)
def test_modules_import_torch_and_triton_alone(name):
    text = (ROOT / "generated" / f"{name}.py").read_text()
    found = {line.split()[1].split(".")[0] for line in text.splitlines() if line.strip().startswith(("import", "from"))}
    assert found <= {
        "__future__",
        "concurrent",
        "contextvars",
        "contextlib",
        "functools",
        "os",
        "math",
        "operator",
        "re",
        "threading",
        "torch",
        "triton",
    }


# -- what does not fit -------------------------------------------------------------------------------------------------


def faults() -> list[tuple[str, object, type, tuple[str, ...]]]:
    """What is done to an argument, the error it must raise, and what the message must say besides the argument."""
    return [
        ("rank", lambda x: x[..., None], ValueError, ("shape", "expected")),
        ("less rank", lambda x: x[0], ValueError, ("shape", "expected")),
        ("number", lambda x: 1.5, TypeError, ("float", "expected")),
        ("list", lambda x: [1.0], TypeError, ("list", "expected")),
        ("integers", lambda x: x.long(), TypeError, ("torch.int64", "expected")),
        ("complex", lambda x: x.to(torch.complex64), TypeError, ("torch.complex64", "expected")),
        ("device", lambda x: x.to("meta"), ValueError, ("meta", "expected", "cpu")),
        ("empty", lambda x: x[..., :0], ValueError, ("shape", "expected")),
    ]


@pytest.mark.parametrize("fault", faults(), ids=lambda f: f[0])
def test_every_argument_is_checked(op, fault):
    document, function = op
    _, spoil, error, said = fault
    good = arguments(document)
    lead = next(d.name for d in document.declarations if d.kind == "input")
    for name in good:
        with pytest.raises(error) as caught:
            function(**(good | {name: spoil(good[name])}))
        message = str(caught.value)
        blamed = name if fault[0] != "device" or name != lead else ""  # all others are elsewhere then
        assert document.name in message and (not blamed or f"`{blamed}`" in message), message
        assert all(word in message for word in said) or (not blamed and "expected" in message), message


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
def test_float64_does_not_mix(op, dtype):
    document, function = op
    good = arguments(document, dtype)
    other = torch.float32 if dtype == torch.float64 else torch.float64
    for name in good:
        with pytest.raises(TypeError) as caught:
            function(**(good | {name: good[name].to(other)}))
        assert ("`" in str(caught.value) and str(other) in str(caught.value)) or str(dtype) in str(caught.value)


def test_every_extent_is_checked(op):
    document, function = op
    good = arguments(document)
    for name, x in good.items():
        for axis in range(x.dim()):
            with pytest.raises(ValueError, match=r"has (shape|\d+ heads)") as caught:
                function(**(good | {name: torch.cat([x, x.narrow(axis, 0, 1)], axis)}))
            assert "expected" in str(caught.value)


def test_missing_arguments(op):
    document, function = op
    good = arguments(document)
    required = [d.name for d in document.declarations if d.default is None]
    for name in required:
        with pytest.raises(TypeError, match=name):
            function(**{n: x for n, x in good.items() if n != name})
        with pytest.raises(TypeError) as caught:
            function(**(good | {name: None}))
        assert f"`{name}`" in str(caught.value) and "None" in str(caught.value), caught.value


def test_unknown_modes(op):
    document, function = op
    for wrong in ("save", None, 1, ["saved"]):
        with pytest.raises(ValueError, match=r"`states`.*expected 'auto', 'saved' or 'recomputed'"):
            function(**arguments(document), states=wrong)


def test_scalars_are_numbers(op):
    document, function = op
    for d in document.declarations:
        if d.kind == "scalar":
            for wrong in ("1", torch.ones(3), [1.0]):
                with pytest.raises(TypeError, match=f"`{d.name}`"):
                    function(**(arguments(document) | {d.name: wrong}))
            with pytest.raises(ValueError, match=f"`{d.name}` is nan, expected a number"):
                function(**(arguments(document) | {d.name: float("nan")}))
            if d.domain:
                wrong = d.domain.high + 1 if math.isfinite(d.domain.high) else d.domain.low - 1
                said = re.escape(f"expected a number in {d.domain}")
                with pytest.raises(ValueError, match=rf"`{d.name}` is .*, {said}"):
                    function(**(arguments(document) | {d.name: wrong}))


# -- what comes back ---------------------------------------------------------------------------------------------------


def test_the_final_state_is_returned_when_asked_for(op):
    document, function = op
    given = arguments(document, torch.bfloat16)
    *outputs, last = function(**given)
    assert last is None
    results = function(**given, output_final_state=True)
    outputs, finals = results[: len(outputs)], results[len(outputs) :]
    extents = CASE.widths
    for state, last in zip(document.states, finals, strict=True):
        assert last.shape == (CASE.B, CASE.H, *(extents[a] for a in state.axes)) and last.dtype == torch.float32
    assert all(o.shape == (CASE.B, CASE.T, CASE.H, CASE.V) and o.dtype == torch.bfloat16 for o in outputs)


def test_gradients_go_where_they_are_wanted(op):
    document, function = op
    given = arguments(document)
    kinds = {d.name: d.kind for d in document.declarations}
    names = [n for n in given if kinds.get(n) != "constant"]
    for name in names:
        leaf = given[name].clone().requires_grad_()
        outputs = function(**(given | {name: leaf}), output_final_state=True)
        sum(x.sum() for x in outputs).backward()
        assert leaf.grad is not None and leaf.grad.shape == leaf.shape and bool(leaf.grad.abs().sum() > 0)
        assert all(x.grad is None for n, x in given.items() if n != name)
    assert not any(x.requires_grad for x in function(**given, output_final_state=True))


def test_gradients_have_the_type_of_their_arguments(op):
    document, function = op
    mixed = arguments(document, torch.bfloat16)
    kinds = {d.name: d.kind for d in document.declarations}
    first = next(n for n in mixed if kinds.get(n) == "input")
    mixed = {n: x if n in (first, *state_names(document)) else x.float() for n, x in mixed.items()}
    leaves = {n: x.requires_grad_() for n, x in mixed.items() if kinds.get(n) != "constant"}
    outputs = function(**mixed, output_final_state=True)
    sum(x.float().sum() for x in outputs).backward()
    assert {n: x.grad.dtype for n, x in leaves.items()} == {n: x.dtype for n, x in leaves.items()}


def test_a_result_that_nothing_uses_has_no_say(op):
    """The gradient by the output alone, and by the final state alone, add up."""
    document, function = op
    given = arguments(document)
    kinds = {d.name: d.kind for d in document.declarations}
    leaves = [x.requires_grad_() for n, x in given.items() if kinds.get(n) != "constant"]
    results = function(**given, output_final_state=True)
    parts = [torch.autograd.grad(x.sum(), leaves, retain_graph=True, allow_unused=True) for x in results]
    whole = torch.autograd.grad(sum(x.sum() for x in results), leaves)
    for expected, *terms in zip(whole, *parts, strict=True):
        assert torch.allclose(expected, sum(x for x in terms if x is not None), atol=1e-12)


def test_arguments_are_left_as_they_were(op):
    document, function = op
    given = arguments(document, torch.float32)
    before = {n: x.clone() for n, x in given.items()}
    kinds = {d.name: d.kind for d in document.declarations}
    leaves = [x.requires_grad_() for n, x in given.items() if kinds.get(n) != "constant"]
    results = function(**given, output_final_state=True)
    cotangents = [torch.ones_like(x) for x in results]
    torch.autograd.grad(results, leaves, cotangents)
    assert all(torch.equal(before[n], x) for n, x in given.items())
    assert all(torch.equal(c, torch.ones_like(c)) for c in cotangents)


def test_layout_in_memory_does_not_matter(op):
    document, function = op
    given = arguments(document)

    def results(tensors: dict) -> list:
        kinds = {d.name: d.kind for d in document.declarations}
        leaves = [x.requires_grad_() for n, x in tensors.items() if kinds.get(n) != "constant"]
        outputs = function(**tensors, output_final_state=True)
        return [*outputs, *torch.autograd.grad([o.square().sum() for o in outputs], leaves)]

    strided = {n: x.clone().transpose(0, -1).contiguous().transpose(0, -1) for n, x in given.items()}
    assert any(not x.is_contiguous() for x in strided.values())
    for x, y in zip(results({n: x.clone() for n, x in given.items()}), results(strided), strict=True):
        assert torch.allclose(x, y, atol=1e-12)

    one = {n: x.narrow(0, 0, 1).clone() for n, x in given.items()}
    expanded = {n: x.detach().expand(given[n].shape) for n, x in one.items()}
    copied = {n: x.clone() for n, x in expanded.items()}
    for x, y in zip(results(copied), results(expanded), strict=True):
        assert torch.allclose(x, y, atol=1e-12)


def test_a_long_sequence_in_one_head_and_a_single_step():
    module = load("gla")
    for length in (1, 300):
        q, k, v, g = (torch.randn(1, length, 1, 2) for _ in range(4))
        o, last = module.gla(q, k, v, -g.abs(), output_final_state=True)
        assert o.shape == (1, length, 1, 2) and bool(o.isfinite().all()) and bool(last.isfinite().all())


@pytest.mark.skipif(os.environ.get("TRITON_INTERPRET") == "1", reason="the twin serves double backward")
def test_second_derivatives_on_the_twin():
    module = load("gla")
    q, k, v, g = (torch.randn(1, 5, 1, 2, dtype=torch.float64) for _ in range(4))
    leaves = [q.requires_grad_(), k.requires_grad_(), v.requires_grad_(), (-g.abs()).requires_grad_()]
    assert torch.autograd.gradgradcheck(lambda *x: module.gla(*x)[0], leaves, atol=1e-5)
