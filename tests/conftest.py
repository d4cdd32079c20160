"""What all tests share: hypothesis profiles (HYPOTHESIS_PROFILE, `ci` unless told), one thread, and golden files, which
`pytest --update-golden` rewrites where they differ."""

from __future__ import annotations

import gc
import os
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, settings

_SLOW = [HealthCheck.too_slow, HealthCheck.data_too_large]
settings.register_profile("ci", max_examples=40, deadline=None, derandomize=True, suppress_health_check=_SLOW)
settings.register_profile("long", max_examples=1000, deadline=None, suppress_health_check=_SLOW)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci"))
torch.set_num_threads(1)  # the tensors are small: threads cost more than they bring
# Dots of Triton's interpreter are numpy's. Sums of BLAS as it is for AVX2 have other bits in narrower products, where
# tests compare those of tiles; this is of the processes that they start, as numpy may have been imported here.
os.environ.setdefault("OPENBLAS_CORETYPE", "Nehalem")

GOLDEN = Path(__file__).parent / "golden"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-golden", action="store_true", help="rewrite golden files instead of comparing with them")


def pytest_collection_finish() -> None:
    _keep()


def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    if nextitem is not None and nextitem.path != item.path:
        _keep()


def _keep() -> None:
    """What is imported, compiled or cached stays: full collections look at what tests make since alone, as trees of
    generated modules. (Else a test of 7 s takes 100 s at the end of the suite.)"""
    gc.collect()
    gc.freeze()


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Callable[[str, str], None]:
    """golden(name, text): asserts that tests/golden/name holds text."""

    def compare(name: str, text: str) -> None:
        path = GOLDEN / name
        if request.config.getoption("--update-golden"):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        assert path.is_file(), f"no golden file {name}; run pytest --update-golden and read what it writes"
        assert text == path.read_text(encoding="utf-8")

    return compare
