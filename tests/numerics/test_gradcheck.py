"""torch's own finite differences against the gradients of the PyTorch twin, for every spec."""

from __future__ import annotations

import pytest
import torch

from glagen.regimes import Case, draw
from glagen.verify import MODES
from tests.numerics.helpers import SPECS, document_of, generated


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("path", SPECS, ids=lambda p: p.stem)
def test_gradients_are_finite_differences(path, mode):
    document = document_of(path.read_text())
    problem = draw(document, "unit", Case(1, 19, 2, 3, 2))  # more than a sub-chunk
    function = getattr(generated(path.stem), document.name)
    kinds = {d.name: d.kind for d in document.declarations}
    tensors = {n: x for n, x in problem.arguments.items() if isinstance(x, torch.Tensor) and kinds[n] != "constant"}
    rest = {n: x for n, x in problem.arguments.items() if n not in tensors}

    def op(*values):
        named = dict(zip(tensors, values[:-1], strict=True))
        return function(**named, **rest, initial_state=values[-1], output_final_state=True, states=mode)

    leaves = [x.clone().requires_grad_() for x in (*tensors.values(), problem.initial_state)]
    assert torch.autograd.gradcheck(op, leaves, fast_mode=False, atol=1e-6, rtol=1e-5)
