"""torch's own finite differences against the gradients of the PyTorch twin, for every spec."""

from __future__ import annotations

import pytest
import torch

from glagen.regimes import Case, draw
from glagen.verify import MODES
from tests.numerics.helpers import SPECS, document_of, generated, one_by_one, state_names


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("path", SPECS, ids=lambda p: p.stem)
def test_gradients_are_finite_differences(path, mode):
    op, leaves = _op(path, Case(1, 19, 2, 3, 2), mode)  # more than a sub-chunk
    assert torch.autograd.gradcheck(op, leaves, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("name", ["gla", "linear_attn_norm"])
def test_second_derivatives_are_finite_differences_of_the_first(name):
    op, leaves = _op(SPECS[0].with_name(f"{name}.yaml"), Case(1, 5, 1, 2, 2), "auto")
    assert torch.autograd.gradgradcheck(op, leaves, atol=1e-6, rtol=1e-5)


def _op(path, case, mode):
    """The op as a function of all its tensors that have gradients, and such tensors."""
    document = document_of(path.read_text())
    problem = draw(document, "unit", case)
    function = one_by_one(document, getattr(generated(path.stem), document.name))
    kinds = {d.name: d.kind for d in document.declarations}
    tensors = {n: x for n, x in problem.arguments.items() if isinstance(x, torch.Tensor) and kinds[n] != "constant"}
    rest = {n: x for n, x in problem.arguments.items() if n not in tensors}

    def op(*values):
        named = dict(zip((*tensors, *state_names(document)), values, strict=True))
        return tuple(function(**named, **rest, output_final_state=True, states=mode))

    return op, [x.clone().requires_grad_() for x in (*tensors.values(), *problem.initial_states)]
