"""glagen's ops under flash-linear-attention's names and signatures (fla-core 0.6.0): a model changes its imports.

    from glagen.compat.fla import chunk_gla        # instead of: from fla.ops.gla import chunk_gla

Tensors are [B, T, H, D], gates natural logarithms, states [N, H, K, V] in float32. What the spec of an op says holds,
its errors included. The `fused_recurrent_*` and `fused_chunk_*` forms compute the same as the chunkwise ones, and here
they are the same. What only tells fla how to compute (`cu_seqlens_cpu`, `chunk_size`) is taken and left alone.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from glagen.compat.ops import Result, per_head, refuse, run, values_first

# -- no gate -----------------------------------------------------------------------------------------------------------


def chunk_linear_attn(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    scale: float | None = None,
    initial_state: Tensor | tuple[Tensor, Tensor] | None = None,
    output_final_state: bool = False,
    normalize: bool = True,
    cu_seqlens: Tensor | None = None,
) -> tuple[Tensor, Any]:
    """Linear attention; with `normalize`, over the sum of the keys read by the same query, and states are pairs (S, z)
    with z [N, 1, H, K]."""
    return _linear_attn(q, k, v, scale, initial_state, output_final_state, normalize, cu_seqlens)


def fused_recurrent_linear_attn(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    scale: float | None = None,
    initial_state: Tensor | tuple[Tensor, Tensor] | None = None,
    output_final_state: bool = False,
    reverse: bool = False,
    normalize: bool = False,
    cu_seqlens: Tensor | None = None,
) -> tuple[Tensor, Any]:
    """As `chunk_linear_attn`, not normalised unless asked, backwards in time if asked."""
    return _linear_attn(q, k, v, scale, initial_state, output_final_state, normalize, cu_seqlens, reverse)


def _linear_attn(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    scale: float | None,
    initial_state: Tensor | tuple[Tensor, Tensor] | None,
    output_final_state: bool,
    normalize: bool,
    cu_seqlens: Tensor | None,
    reverse: bool = False,
) -> tuple[Tensor, Any]:
    timed, fixed = {"q": q, "k": k, "v": v}, {"scale": scale}
    if not normalize:
        if isinstance(initial_state, tuple):
            raise ValueError("linear_attn: a pair of states is of use with `normalize` alone")
        return run("linear_attn", timed, fixed, initial_state, output_final_state, cu_seqlens, reverse)
    start, sums = initial_state if isinstance(initial_state, tuple) else (initial_state, None)
    states = None if start is None and sums is None else (start, None if sums is None else sums.squeeze(1))
    o, last = run("linear_attn_normalized", timed, fixed, states, output_final_state, cu_seqlens, reverse)
    return o, None if last is None else (last[0], last[1][:, None])


# -- a gate per head ---------------------------------------------------------------------------------------------------


def chunk_retention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    scale: float | None = None,
    initial_state: Tensor | None = None,
    output_final_state: bool = False,
    cu_seqlens: Tensor | None = None,
    **kwargs: Any,
) -> Result:
    """RetNet's retention, with its decays 1 - 2**(-5 - h)."""
    refuse("chunk_retention", kwargs)
    return fused_recurrent_retention(q, k, v, scale, initial_state, output_final_state, cu_seqlens=cu_seqlens)


def fused_recurrent_retention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    scale: float | None = None,
    initial_state: Tensor | None = None,
    output_final_state: bool = False,
    reverse: bool = False,
    state_v_first: bool = False,
    cu_seqlens: Tensor | None = None,
    **kwargs: Any,
) -> Result:
    """As `chunk_retention`, backwards in time or with states [N, H, V, K] if asked."""
    state_v_first = values_first("fused_recurrent_retention", state_v_first, kwargs)
    timed, fixed = {"q": q, "k": k, "v": v}, {"scale": scale}
    return run("retnet", timed, fixed, initial_state, output_final_state, cu_seqlens, reverse, state_v_first)


def chunk_lightning_attn(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    layer_idx: int,
    num_layers: int,
    scale: float | None = None,
    initial_state: Tensor | None = None,
    output_final_state: bool = False,
    cu_seqlens: Tensor | None = None,
    **kwargs: Any,
) -> Result:
    """Lightning attention: head h of H in layer l of L decays at exp(-(8 h / H) (1 - l / L))."""
    refuse("chunk_lightning_attn", kwargs)
    return fused_recurrent_lightning_attn(
        q, k, v, layer_idx, num_layers, scale, initial_state, output_final_state, cu_seqlens=cu_seqlens
    )


def fused_recurrent_lightning_attn(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    layer_idx: int,
    num_layers: int,
    scale: float | None = None,
    initial_state: Tensor | None = None,
    output_final_state: bool = False,
    reverse: bool = False,
    cu_seqlens: Tensor | None = None,
) -> Result:
    """As `chunk_lightning_attn`, backwards in time if asked."""
    timed, fixed = {"q": q, "k": k, "v": v}, {"scale": scale, "depth": layer_idx / num_layers}
    return run("lightning_attn", timed, fixed, initial_state, output_final_state, cu_seqlens, reverse)


def chunk_simple_gla(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor | None = None,
    g_gamma: Tensor | None = None,
    scale: float | None = None,
    initial_state: Tensor | None = None,
    output_final_state: bool = False,
    state_v_first: bool = False,
    cu_seqlens: Tensor | None = None,
    cu_seqlens_cpu: Tensor | None = None,
    **kwargs: Any,
) -> Result:
    """One log gate per head and step, g [B, T, H], one per head, g_gamma [H] (no gradient), both, or none."""
    refuse("chunk_simple_gla", kwargs)
    return fused_recurrent_simple_gla(
        q, k, v, g, g_gamma, scale, initial_state, output_final_state, False, state_v_first, cu_seqlens
    )


def fused_recurrent_simple_gla(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor | None = None,
    g_gamma: Tensor | None = None,
    scale: float | None = None,
    initial_state: Tensor | None = None,
    output_final_state: bool = False,
    reverse: bool = False,
    state_v_first: bool = False,
    cu_seqlens: Tensor | None = None,
    **kwargs: Any,
) -> Result:
    """As `chunk_simple_gla`, backwards in time if asked."""
    state_v_first = values_first("fused_recurrent_simple_gla", state_v_first, kwargs)
    timed, fixed = {"q": q, "k": k, "v": v}, {"scale": scale}
    name = "linear_attn"
    if g is not None:
        name, timed["g"] = "simple_gla", g if g_gamma is None else g + per_head(g_gamma, q)
    elif g_gamma is not None:
        name = "lightning_attn"  # whose decays are any numbers per head
        fixed["slope"] = -per_head(g_gamma, q)  # type: ignore[assignment]
    return run(name, timed, fixed, initial_state, output_final_state, cu_seqlens, reverse, state_v_first)


def fused_chunk_simple_gla(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor | None = None,
    g_gamma: Tensor | None = None,
    scale: float | None = None,
    initial_state: Tensor | None = None,
    output_final_state: bool = False,
    cu_seqlens: Tensor | None = None,
) -> Result:
    """As `chunk_simple_gla`."""
    return chunk_simple_gla(q, k, v, g, g_gamma, scale, initial_state, output_final_state, cu_seqlens=cu_seqlens)


# -- gates per channel -------------------------------------------------------------------------------------------------


def chunk_gla(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    scale: float | None = None,
    initial_state: Tensor | None = None,
    output_final_state: bool = False,
    state_v_first: bool = False,
    cu_seqlens: Tensor | None = None,
    cu_seqlens_cpu: Tensor | None = None,
) -> Result:
    """Gated linear attention: a log gate per key channel, g [B, T, H, K]."""
    timed, fixed = {"q": q, "k": k, "v": v, "g": g}, {"scale": scale}
    return run("gla", timed, fixed, initial_state, output_final_state, cu_seqlens, False, state_v_first)


def fused_recurrent_gla(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    gk: Tensor | None = None,
    gv: Tensor | None = None,
    scale: float | None = None,
    initial_state: Tensor | None = None,
    output_final_state: bool = False,
    reverse: bool = False,
    state_v_first: bool = False,
    cu_seqlens: Tensor | None = None,
    **kwargs: Any,
) -> Result:
    """Log gates per key channel, gk [B, T, H, K], per value channel, gv [B, T, H, V], both, or none."""
    state_v_first = values_first("fused_recurrent_gla", state_v_first, kwargs)
    timed, fixed = {"q": q, "k": k, "v": v}, {"scale": scale}
    if gk is not None and gv is not None:
        name, gates = "gla_kv", {"gk": gk, "gv": gv}
    elif gk is not None:
        name, gates = "gla", {"g": gk}
    elif gv is not None:
        name, gates = "gla_v", {"g": gv}
    else:
        name, gates = "linear_attn", {}
    return run(name, timed | gates, fixed, initial_state, output_final_state, cu_seqlens, reverse, state_v_first)


def chunk_rwkv6(
    r: Tensor,
    k: Tensor,
    v: Tensor,
    w: Tensor,
    u: Tensor,
    scale: float | None = None,
    initial_state: Tensor | None = None,
    output_final_state: bool = False,
    cu_seqlens: Tensor | None = None,
    cu_seqlens_cpu: Tensor | None = None,
    **kwargs: Any,
) -> Result:
    """RWKV-6: log decays w [B, T, H, K], a bonus u [H, K]; `scale` is K**-0.5 if None, unlike the spec's."""
    refuse("chunk_rwkv6", kwargs)
    return fused_recurrent_rwkv6(r, k, v, w, u, scale, initial_state, output_final_state, cu_seqlens=cu_seqlens)


def fused_recurrent_rwkv6(
    r: Tensor,
    k: Tensor,
    v: Tensor,
    w: Tensor,
    u: Tensor,
    scale: float | None = None,
    initial_state: Tensor | None = None,
    output_final_state: bool = False,
    reverse: bool = False,
    cu_seqlens: Tensor | None = None,
) -> Result:
    """As `chunk_rwkv6`, backwards in time if asked."""
    timed = {"r": r, "k": k, "v": v, "w": w}
    fixed = {"u": u, "scale": k.shape[-1] ** -0.5 if scale is None else scale}
    return run("rwkv6", timed, fixed, initial_state, output_final_state, cu_seqlens, reverse)


fused_chunk_linear_attn = chunk_linear_attn
fused_chunk_retention = chunk_retention


# -- slots -------------------------------------------------------------------------------------------------------------


def chunk_gsa(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    s: Tensor,
    g: Tensor | None = None,
    scale: float | None = None,
    initial_state: tuple[Tensor, Tensor] | None = None,
    output_final_state: bool = False,
    checkpoint_level: int = 2,
    cu_seqlens: Tensor | None = None,
    cu_seqlens_cpu: Tensor | None = None,
    **kwargs: Any,
) -> tuple[Tensor, Any]:
    """Gated slot attention with weights s of its writes and log gates g, both [B, T, H, S].

    States are pairs [N, H, K, S] and [N, H, S, V], of None unless asked for. `checkpoint_level` is taken and left
    alone; g cannot be left out.
    """
    refuse("chunk_gsa", kwargs)
    if g is None:
        raise ValueError("chunk_gsa: without `g` fla computes another op (ABC), which is not offered here")
    timed, fixed = {"q": q, "k": k, "v": v, "s": s, "g": g}, {"scale": scale}
    o, last = run("gsa_written", timed, fixed, initial_state, output_final_state, cu_seqlens)
    return o, (None, None) if last is None else last
