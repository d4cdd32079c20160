"""Calls in segments: one after another, with chunk states of one at a time. (Verification makes some, too.)"""

from __future__ import annotations

from types import ModuleType

import pytest
import torch
from torch import Tensor

from glagen.ir.document import Document
from glagen.regimes import Case, draw
from tests.numerics.helpers import document_of, generated, spec_text

SPECS = ["gla", "mamba2", "gsa", "mlstm"]  # a parameter's gradient; states of two parts, of which one is a maximum
SEGMENT = 40  # steps, or 64 in whole chunks


def problem_of(name: str, dtype: torch.dtype = torch.float64, T: int = 150) -> tuple[ModuleType, dict, list[Tensor]]:
    """A spec's module, arguments of a call, and those of them that have gradients."""
    document: Document = document_of(spec_text(name))
    arguments = draw(document, "mild", Case(2, T, 2, 5, 6)).arguments
    given = {n: x.to(dtype) if isinstance(x, Tensor) else x for n, x in arguments.items()}
    leaves = [x.requires_grad_() for n, x in given.items() if isinstance(x, Tensor)]
    return generated(name), given, leaves


def outputs_of(module: ModuleType, name: str, **given) -> tuple[Tensor, ...]:
    *outputs, last = getattr(module, name)(**given, output_final_state=True)
    return (*outputs, *(last if isinstance(last, tuple) else (last,)))


@pytest.mark.parametrize("name", SPECS)
def test_second_derivatives_go_through_all_segments(name):
    module, given, leaves = problem_of(name)

    def second(segment):
        total = sum(x.sin().sum() for x in outputs_of(module, name, **given, segment=segment))
        first = torch.autograd.grad(total, leaves, create_graph=True)
        return torch.autograd.grad(sum((x**2).sum() for x in first), leaves)

    for x, y in zip(second(SEGMENT), second(None), strict=True):
        torch.testing.assert_close(x, y, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("name", SPECS)
def test_transforms_and_the_compiler_see_the_same(name):
    module, given, leaves = problem_of(name, torch.float32)
    plain = outputs_of(module, name, **given, segment=SEGMENT)
    expected = torch.autograd.grad([x.sin().sum() for x in plain], leaves)
    compiled = torch.compile(getattr(module, name), fullgraph=True)
    *outputs, last = compiled(**given, output_final_state=True, segment=SEGMENT)
    outputs += last if isinstance(last, tuple) else (last,)
    found = torch.autograd.grad([x.sin().sum() for x in outputs], leaves)
    lead = next(n for n, x in given.items() if x is leaves[0])

    def loss(x):
        return sum(y.sin().sum() for y in outputs_of(module, name, **given | {lead: x}, segment=SEGMENT))

    for x, y in zip((*outputs, *found), (*plain, *expected), strict=True):
        torch.testing.assert_close(x, y)
    torch.testing.assert_close(torch.func.grad(loss)(leaves[0].detach()), expected[0])


def test_what_is_not_asked_for_is_none():
    module, given, _ = problem_of("gla", torch.float32)
    given = {n: x.detach() if isinstance(x, Tensor) else x for n, x in given.items()}
    given["v"].requires_grad_()
    start = torch.ones(2, 2, 5, 6, requires_grad=True)
    o, _ = module.gla(**given, initial_state=start, segment=SEGMENT)
    for x in torch.autograd.grad(o.sum(), (given["v"], start)):
        assert x.abs().sum() > 0
    _, last = module.gla(**given, initial_state=start, segment=SEGMENT, output_final_state=True)
    assert torch.autograd.grad(last.sum(), start)[0].abs().sum() > 0, "no cotangent of the outputs"
    assert given["q"].grad is None


def test_a_call_of_one_segment_is_a_call_as_usual(monkeypatch):
    module, given, _ = problem_of("gla", torch.float32, T=64)
    monkeypatch.setattr(module, "_InSegments", None)
    module.gla(**given, segment=33)  # comes to two chunks


@pytest.mark.parametrize("name", ["gla", "gsa"])
@pytest.mark.parametrize("wrong", [0, -64, True, 1.5, "64"])
def test_wrong_segments(name, wrong):
    module, given, _ = problem_of(name)
    with pytest.raises(
        ValueError, match=rf"^{name}: `segment` is {wrong!r}, expected a whole number of steps, 1 at least$"
    ):
        getattr(module, name)(**given, segment=wrong)


@pytest.mark.parametrize("name", ["gla", "gsa"])
def test_segments_save_no_states(name):
    module, given, _ = problem_of(name)
    with pytest.raises(ValueError, match=f"^{name}: `states` is 'saved', but with `segment`"):
        getattr(module, name)(**given, states="saved", segment=64)
