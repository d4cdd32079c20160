"""The committed modules on a GPU: the table of tests/numerics/h200.py, one spec a test. Skipped without CUDA."""

from __future__ import annotations

import pytest
import torch

from glagen.regimes import Case
from glagen.verify import CUDA_CASES, verify
from tests.numerics.helpers import SPECS, document_of, generated

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


@pytest.mark.parametrize("path", SPECS, ids=lambda p: p.stem)
def test_every_regime_and_precision(path):
    report = verify(document_of(path.read_text()), generated(path.stem), "cuda", cases=CUDA_CASES[:2])
    assert not [f"{row}" for row in report.failures]


@pytest.mark.parametrize("path", SPECS, ids=lambda p: p.stem)
def test_odd_extents(path):
    cases = [Case(1, 1, 1, 64, 64), Case(2, 2, 1, 1, 1), Case(1, 77, 3, 20, 40, False), Case(1, 129, 2, 256, 33)]
    document, module = document_of(path.read_text()), generated(path.stem)
    report = verify(document, module, "cuda", cases=cases, precisions=["bf16", "fp32"], regimes=["mild", "reset"])
    assert not [f"{row}" for row in report.failures]
