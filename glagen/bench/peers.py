"""What else computes the same, or does the same job: flash-linear-attention, and softmax attention as wide."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from glagen.bench.workloads import Call

Forward = Callable[[], tuple[Tensor, ...]]
# By spec: fla-core's functions for the recurrence and what they are called with; a name is an argument of ours.
FLA: dict[str, tuple[tuple[str, str, dict[str, Any]], ...]] = {
    "gla": (("gla", "chunk_gla", {"g": "g"}),),
    "hgrn2": (("gla", "chunk_gla", {"g": "g", "k": "1 - alpha", "scale": 1.0}),),
    "simple_gla": (
        ("simple_gla", "fused_chunk_simple_gla", {"g": "g"}),
        ("simple_gla", "chunk_simple_gla", {"g": "g"}),
    ),
    "retnet": (("retention", "chunk_retention", {}), ("retention", "fused_chunk_retention", {})),
    "linear_attn": (
        ("linear_attn", "chunk_linear_attn", {"normalize": False}),
        ("linear_attn", "fused_chunk_linear_attn", {"normalize": False}),
    ),
    "lightning_attn": (("lightning_attn", "chunk_lightning_attn", {"layer_idx": 0, "num_layers": 12}),),
    "rwkv6": (("rwkv6", "chunk_rwkv6", {"r": "r", "w": "w", "u": "u", "scale": 1.0}),),
}


def peers(name: str, call: Call) -> Iterator[tuple[str, Forward]]:
    """Each peer that is installed and can take these tensors, by name, as a function of nothing."""
    yield from _fla(name, call)
    yield from _softmax(call)


def _fla(name: str, call: Call) -> Iterator[tuple[str, Forward]]:
    given = call.arguments
    for module, function, options in FLA.get(name, ()):
        try:
            run = getattr(importlib.import_module(f"fla.ops.{module}"), function)
        except (ImportError, AttributeError):
            continue
        arguments: dict[str, Any] = {n: given[n] for n in ("q", "k", "v") if n in given}
        for n, value in options.items():
            if value == "1 - alpha":
                g = given["g"]
                assert isinstance(g, Tensor)
                arguments[n] = -torch.expm1(g.detach().float()).to(g.dtype)
            else:
                arguments[n] = given[value] if isinstance(value, str) else value
        yield f"fla {function}", _first(run, arguments)


def _first(run: Callable[..., Any], arguments: dict[str, Any]) -> Forward:
    return lambda: (run(**arguments)[0],)


def _softmax(call: Call) -> Iterator[tuple[str, Forward]]:
    """Causal softmax attention with as many heads, of width V."""
    from torch.nn.attention import SDPBackend, sdpa_kernel

    o = call.cotangents[0]
    if not o.is_cuda or o.shape[-1] > 256 or o.dtype not in (torch.bfloat16, torch.float16):
        return
    q, k, v = (torch.randn_like(o.transpose(1, 2)).requires_grad_() for _ in range(3))

    def attention(backend: SDPBackend) -> Forward:
        def run() -> tuple[Tensor, ...]:
            with sdpa_kernel(backend):
                return (F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2),)

        return run

    for label, backend in (
        ("softmax flash", SDPBackend.FLASH_ATTENTION),
        ("softmax cuDNN", SDPBackend.CUDNN_ATTENTION),
    ):
        yield label, attention(backend)


def leaves_of(forward: Forward) -> tuple[Tensor, ...]:
    """The tensors that a peer's outputs have gradients by."""
    found: list[Tensor] = []
    outputs = forward()  # a peer's nodes tell of others as long as their outputs are there
    waiting = [o.grad_fn for o in outputs]
    seen = set()
    while waiting:
        node = waiting.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        variable = getattr(node, "variable", None)
        if isinstance(variable, Tensor):
            found.append(variable)
        waiting += [n for n, _ in node.next_functions]
    return tuple(found)
