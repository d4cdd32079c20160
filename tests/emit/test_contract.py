"""What a training framework asks of an op: torch.compile, autocast, checkpointing, gradients of some arguments, packed
sequences, shared heads, determinism, and errors that say where. On the PyTorch form; tests/numerics/test_gpu.py asks
the kernels."""

from __future__ import annotations

import contextlib
import itertools
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import ModuleType

import pytest
import torch
import torch._dynamo.testing
from torch._subclasses import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils.checkpoint import checkpoint

from glagen.ir.document import Document
from glagen.loader import import_path
from glagen.parse import parse, read
from glagen.regimes import Case, draw
from tests.numerics.helpers import flattened, one_by_one, state_names

ROOT = Path(__file__).parents[2]
NAMES = sorted(p.stem for p in (ROOT / "specs").glob("*.yaml"))
CASE = Case(1, 70, 4, 5, 6)
ENDS = [0, 3, 3, 40, 66]  # four sequences, one empty, and four steps of none


def load(name: str) -> ModuleType:
    return import_path(ROOT / "generated" / f"{name}.py", f"contract_{name}")


class Op:
    """An op with arguments for it, in float32."""

    def __init__(self, name: str) -> None:
        self.document: Document = parse(read(ROOT / "specs" / f"{name}.yaml"))
        self.module = load(name)
        self.function = getattr(self.module, name)
        problem = draw(self.document, "unit", CASE)
        self.tensors = {n: x.float() for n, x in problem.arguments.items() if isinstance(x, torch.Tensor)}
        kinds = {d.name: d.kind for d in self.document.declarations}
        self.leaves = [n for n in self.tensors if kinds[n] in ("input", "parameter")]

    def states(self, make=torch.zeros) -> list[torch.Tensor]:
        """States for the batch, each of its own shape."""
        extents = CASE.widths
        return [make(CASE.B, CASE.H, *(extents[a] for a in state.axes)) for state in self.document.states]

    def arguments(self, *wanted: str) -> dict[str, torch.Tensor]:
        return {n: x.clone().requires_grad_(n in (wanted or self.leaves)) for n, x in self.tensors.items()}

    def results(self, function=None, **options) -> list[torch.Tensor]:
        """Outputs, final states, gradients."""
        given = self.arguments()
        out = flattened((function or self.function)(**given, **options, output_final_state=True))
        leaves = [given[n] for n in self.leaves]
        return [*out, *torch.autograd.grad(sum(x.float().square().sum() for x in out), leaves)]


@pytest.fixture(scope="module", params=NAMES)
def op(request) -> Op:
    return Op(request.param)


def same(found, expected, tolerance: float = 1e-5) -> None:
    for x, y in zip(found, expected, strict=True):
        assert x.dtype == y.dtype and torch.allclose(
            x, y, rtol=tolerance, atol=tolerance * float(y.detach().abs().max())
        )


# -- torch.compile and torch.library -----------------------------------------------------------------------------------


@pytest.mark.parametrize("packed", [False, True])
def test_compiles_whole_with_the_same_numbers(op, packed):
    torch._dynamo.reset()
    options = {"cu_seqlens": torch.tensor(ENDS)} if packed else {}

    def layer(**given):
        q, *rest = op.function(**given)
        return (2.0 * q, *rest)

    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    same(op.results(compiled, **options), op.results(layer, **options))


def test_compiles_once_for_any_length(op):
    torch._dynamo.reset()
    frames = torch._dynamo.testing.CompileCounterWithBackend("aot_eager")
    timed = {d.name for d in op.document.declarations if "t" in d.axes}

    def layer(**given):
        return 2.0 * op.function(**given)[0]

    compiled = torch.compile(layer, fullgraph=True, dynamic=True, backend=frames)
    counts = []
    for length in (33, 40, 70):
        given = {n: x[:, :length] if n in timed else x for n, x in op.arguments().items()}
        same([compiled(**given)], [layer(**given)])
        counts.append(frames.frame_count)
    assert counts == [counts[0]] * 3


def test_opcheck(op):
    given = op.arguments()
    kinds = {d.name: d.kind for d in op.document.declarations}
    module = op.module
    fixed = [d for d in op.document.declarations if kinds[d.name] in ("constant", "scalar")]
    grads = [d for d in op.document.declarations if kinds[d.name] in ("input", "parameter")]
    values = [0.5 if d.kind == "scalar" else torch.full((CASE.H,), 0.9) for d in fixed]
    values += [given[d.name] for d in grads]
    states = [x.requires_grad_() for x in op.states(torch.randn)]
    for initial, ends in ((states, None), ([None] * len(states), torch.tensor(ENDS))):
        torch.library.opcheck(module._op, (*values, *initial, ends, "auto"))


@contextlib.contextmanager
def as_if_on_a_gpu(op: Op, monkeypatch):
    """What is recorded there is recorded, and steps come to the PyTorch form in the place of their kernels."""
    with monkeypatch.context() as patch:
        names = [n for n in vars(op.module) if n.startswith("_step_triton")]  # one a state
        patch.setattr(op.module, "_on_triton", lambda x: True)
        for name in names:
            checked = vars(op.module)[name.replace("_triton", "_checked")]

            def on_torch(*given, checked=checked):
                with monkeypatch.context() as inner:
                    inner.setattr(op.module, "_on_triton", lambda x: False)
                    return checked(*given)

            patch.setattr(op.module, name, on_torch)
        yield


@pytest.mark.parametrize("inplace", [False, True])
def test_steps_compile_whole_where_they_are_kernels(op, inplace, monkeypatch):
    torch._dynamo.reset()
    kinds = {d.name: d.kind for d in op.document.declarations}
    given = {n: x[:, 0] if kinds[n] == "input" else x for n, x in op.tensors.items()}
    step = getattr(op.module, f"{op.document.name}_step")

    def layer(*states, **given):
        o, following = step(**given, state=states if len(states) > 1 else states[0], inplace=inplace)
        return (2.0 * o, *flattened([following]))

    with as_if_on_a_gpu(op, monkeypatch):
        states = op.states(torch.rand)
        expected = layer(*(x.clone() for x in states), **given)
        found = torch.compile(layer, fullgraph=True, backend="aot_eager")(
            *(again := [x.clone() for x in states]), **given
        )
    same(found, expected)
    for x, y, last in zip(states, again, found[1:], strict=True):
        assert torch.equal(y, last if inplace else x)


@pytest.mark.parametrize("name", ["gla", "mamba2", "rwkv6"])
def test_opcheck_of_steps(name, monkeypatch):
    op = Op(name)
    order = {"constant": 0, "scalar": 0, "input": 1, "parameter": 1}
    given = []
    for d in sorted(op.document.declarations, key=lambda d: order[d.kind]):  # as schemas have them
        x = 0.5 if d.kind == "scalar" else op.tensors.get(d.name, torch.full((CASE.H,), 0.9))
        given.append(x[:, 0].contiguous() if d.kind == "input" else x)
    with as_if_on_a_gpu(op, monkeypatch):
        (state,) = op.states(torch.rand)
        torch.library.opcheck(op.module._step_op, (*given, state))
        torch.library.opcheck(op.module._step_op, (*given, None))
        torch.library.opcheck(op.module._step_into_op, (*given, state))


@pytest.mark.parametrize("debug", [False, True])
@pytest.mark.parametrize("packed", [False, True])
def test_shapes_may_be_asked_for_without_data(op, packed, debug, monkeypatch):
    """By meta tensors, and by modes that record."""
    monkeypatch.setattr(op.module, "_DEBUG", debug)
    ends = torch.tensor(ENDS) if packed else None

    def call(*given):
        *given, last = given
        return op.function(**dict(zip(op.tensors, given, strict=True)), cu_seqlens=last, output_final_state=True)

    given = [*op.tensors.values(), ends]
    expected = flattened(call(*given))
    with FakeTensorMode() as mode:
        recorded = call(*(x if x is None else mode.from_tensor(x) for x in given))
    shapes = call(*(x if x is None else x.to("meta") for x in given))
    for found in (recorded, shapes):
        for x, y in zip(flattened(found), expected, strict=True):
            assert (x.shape, x.dtype) == (y.shape, y.dtype)
    for mode in ("real", "fake", "symbolic"):
        same(flattened(make_fx(call, tracing_mode=mode)(*given)(*given)), expected)


@pytest.mark.parametrize("debug", [False, True])
def test_shapes_of_a_step_may_be_asked_for_without_data(op, debug, monkeypatch):
    monkeypatch.setattr(op.module, "_DEBUG", debug)
    kinds = {d.name: d.kind for d in op.document.declarations}

    def call(*given):
        step = getattr(op.module, f"{op.document.name}_step")
        return step(**dict(zip(op.tensors, given, strict=True)))

    given = [x[:, 0] if kinds[n] == "input" else x for n, x in op.tensors.items()]
    expected = flattened(call(*given))
    for x, y in zip(flattened(call(*(x.to("meta") for x in given))), expected, strict=True):
        assert (x.shape, x.dtype) == (y.shape, y.dtype)
    same(flattened(make_fx(call, tracing_mode="symbolic")(*given)(*given)), expected)


def test_transforms_of_torch_func(op):
    """torch.func.grad goes through the op, and gives what autograd gives."""
    given = op.arguments()
    name = next(d.name for d in op.document.declarations if d.kind == "input")

    def total(x):
        o, *_ = getattr(op.module, op.document.name)(**{**given, name: x})
        return o.square().sum()

    x = given[name].detach().clone().requires_grad_()
    (expected,) = torch.autograd.grad(total(x), x)
    assert torch.equal(torch.func.grad(total)(x.detach()), expected)


def test_names_tell_versions_apart(op):
    name = str(op.module._op._qualname)
    other = load("gla" if op.document.name != "gla" else "gla_v")
    assert name.startswith(f"glagen::{op.document.name}_") and name != str(other._op._qualname)
    assert len(name.rsplit("_", 1)[1]) == 8


def test_a_module_may_be_imported_twice(op):
    """Each has ops of its own, and what the first compiles is not taken from it."""
    ops = {"_op", "_backward_op"}
    other = load(op.document.name)
    assert all(getattr(other, n)._qualname != getattr(op.module, n)._qualname for n in ops)
    given = op.arguments()
    function = getattr(other, op.document.name)
    for module in (op.module, other):
        torch._dynamo.reset()
        compiled = torch.compile(getattr(module, op.document.name), fullgraph=True, backend="aot_eager")
        same([compiled(**given)[0]], [function(**given)[0]])


def test_autocast_changes_nothing(op):
    with torch.autocast("cpu", torch.bfloat16):
        found = op.results()
    same(found, op.results(), 0.0)


def test_activation_checkpointing(op):
    def checkpointed(**given):
        return checkpoint(op.function, **given, use_reentrant=False)

    same(op.results(checkpointed), op.results(), 0.0)


# -- gradients of some arguments ---------------------------------------------------------------------------------------


def test_gradients_of_any_one_argument(op):
    for name in op.leaves:
        given = op.arguments(name)
        o, *_ = op.function(**given)
        o.square().sum().backward()
        whole = op.arguments()
        o, *_ = op.function(**whole)
        o.square().sum().backward()
        assert torch.equal(given[name].grad, whole[name].grad)
        assert all(x.grad is None for n, x in given.items() if n != name)


def test_the_same_call_gives_the_same_bits(op):
    for x, y in zip(op.results(), op.results(), strict=True):
        assert torch.equal(x, y)


# -- packed sequences --------------------------------------------------------------------------------------------------


def test_packed_sequences_stand_alone(op):
    """Each as if it were called by itself; steps of none give zero; int32 as int64."""
    function = one_by_one(op.document, op.function)
    found, *finals = function(**op.tensors, cu_seqlens=torch.tensor(ENDS, dtype=torch.int32), output_final_state=True)
    timed = {d.name for d in op.document.declarations if "t" in d.axes}
    for n, (first, end) in enumerate(itertools.pairwise(ENDS)):
        if first == end:
            assert not any(last[n].any() for last in finals)
            continue
        part = {m: x[:, first:end] if m in timed else x for m, x in op.tensors.items()}
        same([found[:, first:end], *(x[n : n + 1] for x in finals)], function(**part, output_final_state=True))
    assert not found[:, ENDS[-1] :].any()


def test_what_is_not_a_number_stays_in_its_sequence(op):
    """With all its gradients: those of the others are what they are without it."""
    ends = torch.tensor(ENDS)
    for first, end in ((0, 3), (3, 40)):
        results = []
        for spoiled in (False, True):
            given = op.arguments()
            for n, x in given.items():
                if spoiled and x.dim() > 2:
                    given[n] = x.detach().clone().index_fill_(1, torch.tensor(end - 1), float("nan")).requires_grad_()
            leaves = [given[n] for n in op.leaves if given[n].dim() > 2]
            out = flattened(op.function(**given, cu_seqlens=ends, output_final_state=True))
            gradients = torch.autograd.grad(sum(x.square().sum() for x in out), leaves)
            rest = [t for t in range(ENDS[-1]) if not first <= t < end]
            results.append([*(x[:, rest] for x in (out[0], *gradients)), *(x[3:] for x in out[1:])])
        same(results[1], results[0], 0.0)


@pytest.mark.parametrize("ends", [[3, 8], [0, 5, 3], [0, 71], [0, -5]])
def test_wrong_packing_is_told_by_what_was_compiled(ends):
    torch._dynamo.reset()
    op = Op("gla")
    compiled = torch.compile(op.function, fullgraph=True, backend="aot_eager")
    with pytest.raises(ValueError, match=r"gla: `cu_seqlens` is \[.*expected 0 and then ends in order"):
        compiled(**op.tensors, cu_seqlens=torch.tensor(ends))


@pytest.mark.parametrize(
    ("wrong", "error", "said"),
    [
        ([0, 3], TypeError, "list"),
        (torch.tensor([0.0, 3.0]), TypeError, "int32 or torch.int64"),
        (torch.tensor([0]), ValueError, "shape"),
        (torch.tensor([[0, 3]]), ValueError, "shape"),
        (torch.tensor([1, 3]), ValueError, "expected 0"),
        (torch.tensor([0, 5, 3]), ValueError, "in order"),
        (torch.tensor([0, 71]), ValueError, "T = 70"),
        (torch.tensor([0, 3], device="meta"), ValueError, "meta"),
    ],
    ids=lambda x: type(x).__name__,
)
def test_wrong_packing(op, wrong, error, said):
    with pytest.raises(error, match=said) as caught:
        op.function(**op.tensors, cu_seqlens=wrong)
    assert "`cu_seqlens`" in str(caught.value) and op.document.name in str(caught.value)


def test_packing_needs_one_batch(op):
    timed = {d.name for d in op.document.declarations if "t" in d.axes}
    two = {n: torch.cat([x, x]) if n in timed else x for n, x in op.tensors.items()}
    with pytest.raises(ValueError, match=r"`cu_seqlens`.*B = 2"):
        op.function(**two, cu_seqlens=torch.tensor([0, 3]))
    starts = dict(zip(state_names(op.document), op.states(), strict=True))
    with pytest.raises(ValueError, match=r"`initial_state(\[0\])?` has shape"):
        one_by_one(op.document, op.function)(**op.tensors, cu_seqlens=torch.tensor([0, 3, 4]), **starts)


# -- heads -------------------------------------------------------------------------------------------------------------


def test_heads_that_do_not_divide_are_refused(op):
    for d in op.document.declarations:
        if d.kind == "input":
            three = op.tensors[d.name][:, :, :3]
            with pytest.raises(ValueError, match=r"has \d heads, expected a number that (divides|the \d of the state)"):
                op.function(**(op.tensors | {d.name: three}))


def test_queries_have_heads_for_each_state():
    op = Op("gla")
    two = {n: x if n == "q" else x[:, :, :2] for n, x in op.tensors.items()}
    with pytest.raises(ValueError, match="`q` has 3 heads, expected a number that the 2 of the state divide"):
        op.function(**(two | {"q": two["q"][:, :, :3]}))


def test_more_numbers_a_step_than_a_chunk_can_count_are_refused(op):
    given = [d for d in op.document.declarations if d.name in op.tensors]
    heads = 2**23 // max(op.tensors[d.name].shape[-1] for d in given if {"i", "j"} & set(d.axes)) + 1
    many = {}
    for d in given:
        x = op.tensors[d.name][:, :1] if d.kind == "input" else op.tensors[d.name]
        axis = 2 if d.kind == "input" else 0
        many[d.name] = x.narrow(axis, 0, 1).expand(*x.shape[:axis], heads, *x.shape[axis + 1 :])
    with pytest.raises(ValueError, match=r"numbers a step, expected fewer than 8388608"):
        op.function(**many)


# -- decoding ----------------------------------------------------------------------------------------------------------


def test_prefill_and_step_on(op):
    """The chunked op for a prompt, then steps that overwrite the state, is the chunked op for all of it."""
    kinds = {d.name: d.kind for d in op.document.declarations}
    timed = {n for n in op.tensors if kinds[n] == "input"}
    step = getattr(op.module, f"{op.document.name}_step")
    whole, last = op.function(**op.tensors, output_final_state=True)
    prompt = {n: x[:, :60] if n in timed else x for n, x in op.tensors.items()}
    _, state = op.function(**prompt, output_final_state=True)
    for t in range(60, CASE.T):
        o, following = step(
            **{n: x[:, t] if n in timed else x for n, x in op.tensors.items()}, state=state, inplace=True
        )
        each = zip(flattened([following]), flattened([state]), strict=True)
        assert all(x is y for x, y in each) and o.dtype == whole.dtype
        same([o], [whole[:, t]])
    same(flattened([state]), flattened([last]))


def test_a_state_that_has_a_gradient_may_be_overwritten(op):
    """What a prefill gives is the caller's: no view of what the op keeps, which autograd would refuse to change."""
    kinds = {d.name: d.kind for d in op.document.declarations}
    leaves = {n: x.clone().requires_grad_(kinds[n] in ("input", "parameter")) for n, x in op.tensors.items()}
    _, state = op.function(**leaves, output_final_state=True)
    given = {n: x[:, 0] if kinds[n] == "input" else x for n, x in op.tensors.items()}
    getattr(op.module, f"{op.document.name}_step")(**given, state=state, inplace=True)
    assert all(x.requires_grad and x._version for x in flattened([state]))


def test_what_a_step_refuses(op):
    kinds = {d.name: d.kind for d in op.document.declarations}
    given = {n: x[:, 0] if kinds[n] == "input" else x for n, x in op.tensors.items()}
    step = getattr(op.module, f"{op.document.name}_step")
    first, *others = op.states()

    def states(x):
        return (x, *others) if others else x

    state = states(first)
    for wrong in (None, first.bfloat16(), first.transpose(0, 1).contiguous().transpose(0, 1)[..., ::2]):
        with pytest.raises(ValueError, match=r"`inplace` needs|`state(\[0\])?` has shape"):
            step(**given, state=states(wrong), inplace=True)
    with pytest.raises(ValueError, match=r"`state(\[0\])?` has shape"):
        step(**given, state=states(first[..., 1:]))
    if others:
        for wrong, found in ((first, "a Tensor"), ((first,), "1 states")):
            with pytest.raises(TypeError, match=f"`state` is {found}, expected a tuple of {1 + len(others)} tensors"):
                step(**given, state=wrong)
    for d in op.document.declarations:
        if d.kind == "input":
            with pytest.raises(ValueError, match=f"`{d.name}` has shape"):
                step(**(given | {d.name: given[d.name][None]}), state=state)


# -- values ------------------------------------------------------------------------------------------------------------

DEBUG = """
import sys, torch
sys.path.insert(0, sys.argv[1])
from generated.gla import gla
q, k, v, g = (torch.randn(1, 5, 2, 3) for _ in range(4))
g = -g.abs()
gla(q, k, v, g)
for name, at, x in (("k", (0, 3, 1, 2), float("nan")), ("g", (0, 2, 0, 1), 0.5)):
    given = {"q": q, "k": k, "v": v, "g": g}
    spoiled = given[name].clone()
    spoiled[at] = x
    spoiled[0, 4] = x
    try:
        gla(**(given | {name: spoiled}))
    except ValueError as error:
        print(error)
    gla(**(given | {name: spoiled}), cu_seqlens=torch.tensor([0, 2]))
torch.compile(gla, fullgraph=True, backend="aot_eager")(q, k, v, g)
"""


@pytest.mark.parametrize("debug", ["0", "1"])
def test_debug_mode_says_which_number_is_wrong(debug):
    environment = os.environ | {"GLAGEN_DEBUG": debug}
    run = subprocess.run([sys.executable, "-c", DEBUG, str(ROOT)], capture_output=True, text=True, env=environment)
    assert run.returncode == 0, run.stderr[-800:]
    lines = run.stdout.splitlines()
    if debug == "0":
        assert not lines
    else:
        assert lines == [
            "gla: `k`[0, 3, 1, 2] is nan, expected a number",
            "gla: `g`[0, 2, 0, 1] is 0.5, expected a number in [-inf, 0]",
        ]


def test_autograd_takes_part_where_a_gradient_may_be_asked_for(monkeypatch):
    """And says that there is no derivative in forward mode."""
    module, calls = load("gla"), []
    apply = module._Function.apply
    monkeypatch.setattr(module._Function, "apply", lambda *x: calls.append(1) or apply(*x))
    x, g = torch.randn(1, 5, 2, 4), torch.zeros(1, 5, 2, 4)
    o, _ = module.gla(x, x, x, g)
    assert not calls and not o.requires_grad
    leaf = x.clone().requires_grad_()
    assert module.gla(x, leaf, x, g)[0].requires_grad and len(calls) == 1
    with torch.no_grad():
        assert not module.gla(x, leaf, x, g)[0].requires_grad and len(calls) == 1
    with torch.autograd.forward_ad.dual_level(), pytest.raises(RuntimeError):
        module.gla(torch.autograd.forward_ad.make_dual(x, x), x, x, g)


def test_arguments_that_agreed_once_are_still_told_from_others():
    module = load("gla")
    x, g = torch.randn(1, 5, 2, 4), torch.zeros(1, 5, 2, 4)
    for _ in range(2):
        module.gla(x, x, x, g)
        with pytest.raises(ValueError, match="`g` has shape"):
            module.gla(x, x, x, g[..., :3])
        with pytest.raises(TypeError, match=r"`v` is torch\.float64"):
            module.gla(x, x, x.double(), g)
        with pytest.raises(TypeError, match="`k` is a list"):
            module.gla(x, [x], x, g)
        with pytest.raises(ValueError, match="initial_state"):
            module.gla(x, x, x, g, initial_state=x)
    step = (x[:, 0], x[:, 0], x[:, 0], g[:, 0])
    module.gla_step(*step)
    with pytest.raises(ValueError, match="`q` has shape"):
        module.gla(*step)
    for n in range(1001):
        module._check({"q": x, "k": x, "v": x[..., :1].expand(1, 5, 2, n + 1), "g": g}, module._LAYOUT, {}, None)
    assert 0 < len(module._agreed) <= 1000


def test_kernels_without_wgmma_leave_the_environment_as_it_was(monkeypatch):
    """Whoever compiles: two modules in many threads, one within the other, and after an error."""
    pytest.importorskip("triton")
    monkeypatch.delenv("DISABLE_MMA_V3", raising=False)
    modules = [load("gla"), load("retnet")]
    seen = []

    def work(n: int) -> None:
        with contextlib.suppress(KeyError), modules[n % 2]._without_wgmma():
            with modules[1 - n % 2]._without_wgmma():
                seen.append(os.environ["DISABLE_MMA_V3"])
            seen.append(os.environ["DISABLE_MMA_V3"])
            raise KeyError

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(work, range(200)))
    assert seen == ["1"] * 400
    assert "DISABLE_MMA_V3" not in os.environ
    monkeypatch.setenv("DISABLE_MMA_V3", "0")
    work(0)
    assert os.environ["DISABLE_MMA_V3"] == "0"
