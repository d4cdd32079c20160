"""What stands behind glagen.compat.fla: our ops by name, with what fla's functions ask for besides."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from glagen.errors import Source
from glagen.files import packaged
from glagen.loader import load

Result = tuple[Tensor, Tensor | None]
LEFT_ALONE = ("chunk_size", "cu_seqlens_cpu")
FORMER_NAME = "transpose_state_layout"  # of `state_v_first`
_modules: dict[str, ModuleType] = {}
# What fla's functions compute where the specs of the papers are something else.
OWN_SPECS = {
    "linear_attn_normalized": """
name: linear_attn_normalized
doc: Linear attention over the sum of the keys, which are as they are given
inputs:
  q: [t, i]
  k: [t, i]
  v: [t, j]
  scale: {kind: scalar, default: K**-0.5}
state: ["S[i, j]", "z[i]"]
equations:
  - S[t,i,j] = S[t-1,i,j] + k[t,i] * v[t,j]
  - z[t,i] = z[t-1,i] + k[t,i]
  - o[t,j] = sum(i, scale * q[t,i] * S[t,i,j]) / (sum(i, scale * q[t,i] * z[t,i]) + 1e-10)
""",
    "gsa_written": """
name: gsa_written
doc: Gated slot attention with weights of its writes apart from the gates
inputs:
  q: [t, i]
  k: [t, i]
  v: [t, j]
  s: {axes: [t, s], doc: how much is written to each slot}
  g: {axes: [t, s], domain: "[-inf, 0]", doc: log forget gate of each slot}
  scale: {kind: scalar, default: K**-0.5}
state: ["P[i, s]", "R[s, j]"]
equations:
  - P[t,i,s] = exp(g[t,s]) * P[t-1,i,s] + k[t,i] * s[t,s]
  - R[t,s,j] = exp(g[t,s]) * R[t-1,s,j] + s[t,s] * v[t,j]
  - p[t,s] = softmax(s, sum(i, scale * q[t,i] * P[t,i,s]))
  - o[t,j] = sum(s, p[t,s] * R[t,s,j])
""",
}


def _op(name: str) -> Callable[..., Result]:
    if name not in _modules:  # a dict, for torch.compile looks into what functools caches
        own = Source(f"{name}.yaml", OWN_SPECS[name]) if name in OWN_SPECS else packaged("specs") / f"{name}.yaml"
        _modules[name] = load(own)
    op: Callable[..., Result] = getattr(_modules[name], name)
    return op


def refuse(function: str, options: dict[str, Any]) -> None:
    """Raise TypeError for what fla does not take, or for tensors that are not [B, T, H, D]."""
    unknown = [name for name, x in options.items() if name not in LEFT_ALONE and (name, x) != ("head_first", False)]
    if unknown:
        raise TypeError(f"{function}: unknown argument `{unknown[0]}`; tensors are [B, T, H, D]")


def values_first(function: str, state_v_first: bool, options: dict[str, Any]) -> bool:
    """Are states [N, H, V, K]? Under either name of that argument; all others of `options` are refused."""
    refuse(function, {name: x for name, x in options.items() if name != FORMER_NAME})
    return state_v_first or bool(options.get(FORMER_NAME))


def per_head(gate: Tensor, beside: Tensor) -> Tensor:
    """A log gate per head, [H], as the op takes it beside other tensors: without a gradient, in 32 bits or more."""
    return gate.detach().to(torch.promote_types(beside.dtype, torch.float32))


def run(
    name: str,
    timed: dict[str, Tensor],
    fixed: dict[str, Any],
    initial_state: Any,
    output_final_state: bool,
    cu_seqlens: Tensor | None,
    reverse: bool = False,
    state_v_first: bool = False,
) -> tuple[Tensor, Any]:
    """One of our ops; backwards in time, or with its states transposed, if asked."""
    if reverse and cu_seqlens is not None:
        raise ValueError(f"{name}: `reverse` and `cu_seqlens` do not go together here")
    if reverse:
        timed = {n: x.flip(1) for n, x in timed.items()}
    if state_v_first and initial_state is not None:
        initial_state = initial_state.transpose(-1, -2)
    o, last = _op(name)(
        **timed, **fixed, initial_state=initial_state, output_final_state=output_final_state, cu_seqlens=cu_seqlens
    )
    if state_v_first and last is not None:
        last = last.transpose(-1, -2).contiguous()
    return (o.flip(1) if reverse else o), last
