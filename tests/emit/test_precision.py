"""What the dots of the committed kernels multiply, and how: by op, kernel and type of the inputs."""

from __future__ import annotations

import pytest
import torch

from tests.numerics.helpers import generated

tl = pytest.importorskip("triton.language")
FP32, FP16, BF16 = torch.float32, torch.float16, torch.bfloat16
EXACT, ROUNDED = "bf16x6", "bf16x3"


@pytest.fixture
def dots():
    """The type and precision of a kernel's dots; `config` is called what configures it."""

    def found(op: str, kernel: str, dtype: torch.dtype, tf32: bool = False, config: str = "_config"):
        module = generated(op)
        before, torch.backends.cuda.matmul.allow_tf32 = torch.backends.cuda.matmul.allow_tf32, tf32
        try:
            chosen = getattr(module, config)(kernel, 128, 128, dtype)
            return chosen["DOT"], chosen["PRECISION"]
        finally:
            torch.backends.cuda.matmul.allow_tf32 = before

    return found


def test_dots_take_the_inputs_as_they_are(dots):
    assert dots("gla", "outputs", BF16)[0] == tl.bfloat16
    assert dots("gla", "outputs", FP16)[0] == tl.float16
    assert dots("gla", "outputs", FP32) == (tl.float32, EXACT)
    assert dots("gla", "outputs", FP32, tf32=True) == (tl.float32, ROUNDED)


@pytest.mark.parametrize("kernel", ["states", "adjoint_states"])
def test_states_are_made_of_float32_where_gates_have_parameters(dots, kernel):
    assert dots("mamba2", kernel, BF16) == dots("mamba2", kernel, FP16) == (tl.float32, ROUNDED)
    assert dots("mamba2", kernel, FP32) == (tl.float32, EXACT)
    assert dots("simple_gla", kernel, BF16)[0] == tl.bfloat16
    assert dots("mamba2", "outputs", BF16)[0] == tl.bfloat16


@pytest.mark.parametrize("kernel", ["states", "outputs", "fused"])
def test_a_divisor_is_float64_or_exact(dots, kernel):
    for tf32 in (False, True):
        assert dots("mlstm", kernel, FP32, tf32, "_config_of_n") == (tl.float64, "ieee")
        assert dots("mlstm", kernel, BF16, tf32, "_config_of_n") == (tl.float32, EXACT)
        assert dots("mlstm", kernel, FP16, tf32, "_config_of_n") == (tl.float32, EXACT)


@pytest.mark.parametrize("kernel", ["adjoint_states", "key_gradients"])
def test_its_gradients_are_not(dots, kernel):
    assert dots("mlstm", kernel, FP32, config="_config_of_n") == (tl.float32, EXACT)
    assert dots("mlstm", kernel, BF16, config="_config_of_n") == (tl.float32, ROUNDED)
    assert dots("mlstm", "outputs", FP32, config="_config_of_C") == (tl.float32, EXACT)


def test_on_amd_a_divisor_is_float32(dots, monkeypatch):
    monkeypatch.setattr(torch.version, "hip", "6")
    assert dots("mlstm", "outputs", FP32, True, "_config_of_n") == (tl.float32, EXACT)
