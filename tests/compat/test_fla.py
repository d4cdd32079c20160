"""glagen.compat.fla against the recurrences as one would write them with loops, and its signatures against fla's."""

from __future__ import annotations

import inspect

import pytest
import torch

from glagen.compat import fla

B, T, H, K, V = 2, 37, 4, 5, 3
STATE = "initial_state output_final_state"
# As fla-core 0.6.0 has them, without `**kwargs`.
SIGNATURES = {
    "chunk_linear_attn": f"q k v scale {STATE} normalize cu_seqlens",
    "fused_chunk_linear_attn": f"q k v scale {STATE} normalize cu_seqlens",
    "fused_recurrent_linear_attn": f"q k v scale {STATE} reverse normalize cu_seqlens",
    "chunk_retention": f"q k v scale {STATE} cu_seqlens",
    "fused_chunk_retention": f"q k v scale {STATE} cu_seqlens",
    "fused_recurrent_retention": f"q k v scale {STATE} reverse state_v_first cu_seqlens",
    "chunk_simple_gla": f"q k v g g_gamma scale {STATE} state_v_first cu_seqlens cu_seqlens_cpu",
    "fused_chunk_simple_gla": f"q k v g g_gamma scale {STATE} cu_seqlens",
    "fused_recurrent_simple_gla": f"q k v g g_gamma scale {STATE} reverse state_v_first cu_seqlens",
    "chunk_gla": f"q k v g scale {STATE} state_v_first cu_seqlens cu_seqlens_cpu",
    "fused_recurrent_gla": f"q k v gk gv scale {STATE} reverse state_v_first cu_seqlens",
    "chunk_lightning_attn": f"q k v layer_idx num_layers scale {STATE} cu_seqlens",
    "fused_recurrent_lightning_attn": f"q k v layer_idx num_layers scale {STATE} reverse cu_seqlens",
    "chunk_gsa": f"q k v s g scale {STATE} checkpoint_level cu_seqlens cu_seqlens_cpu",
    "chunk_rwkv6": f"r k v w u scale {STATE} cu_seqlens cu_seqlens_cpu",
    "fused_recurrent_rwkv6": f"r k v w u scale {STATE} reverse cu_seqlens",
}


def randn(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(sum(shape)))


def tensors():
    q, k, v = randn(B, T, H, K), randn(B, T, H, K + 0) + 0.1, randn(B, T, H, V)
    return q, k, v, randn(B, H, K, V)


def recurrence(q, k, v, state, gk=None, gv=None, scale=K**-0.5, u=None, reverse=False):
    """Step by step; gates [B, T, H, K or 1] and [B, T, H, V]; with u the state is read before the write."""
    outputs = []
    for t in reversed(range(T)) if reverse else range(T):
        new = k[:, t, :, :, None] * v[:, t, :, None, :]
        if u is not None:
            outputs.append(torch.einsum("bhi,bhij->bhj", scale * q[:, t], state + u[..., None] * new))
        decayed = state if gk is None else state * gk[:, t].exp()[..., None]
        state = (decayed if gv is None else decayed * gv[:, t].exp()[..., None, :]) + new
        if u is None:
            outputs.append(torch.einsum("bhi,bhij->bhj", scale * q[:, t], state))
    return torch.stack(outputs[::-1] if reverse else outputs, 1), state


def agree(found, expected):
    for x, y in zip(found, expected, strict=True):
        assert torch.allclose(x, y, rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("name", SIGNATURES)
def test_signatures(name):
    parameters = inspect.signature(getattr(fla, name)).parameters.values()
    assert [p.name for p in parameters if p.kind is not p.VAR_KEYWORD] == SIGNATURES[name].split()


def gate(*shape: int) -> torch.Tensor:
    return -randn(*shape).abs() / 8


HEADS = torch.arange(H, dtype=torch.float64)
RETNET = (1 - 2 ** (-5 - HEADS)).log()
LIGHTNING = -8 * HEADS / H * (1 - 3 / 12)


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize(
    ("name", "options", "gates"),
    [
        ("linear_attn", {}, {}),
        ("retention", {}, {"gk": RETNET}),
        ("lightning_attn", {"layer_idx": 3, "num_layers": 12}, {"gk": LIGHTNING}),
        ("simple_gla", {}, {}),
        ("simple_gla", {"g": gate(B, T, H)}, {"gk": gate(B, T, H)[..., None]}),
        ("simple_gla", {"g_gamma": 2 * RETNET}, {"gk": 2 * RETNET}),
        ("simple_gla", {"g": gate(B, T, H), "g_gamma": RETNET}, {"gk": (gate(B, T, H) + RETNET)[..., None]}),
        ("gla", {"gk": gate(B, T, H, K)}, {"gk": gate(B, T, H, K)}),
        ("gla", {"gv": gate(B, T, H, V)}, {"gv": gate(B, T, H, V)}),
        ("gla", {"gk": gate(B, T, H, K), "gv": gate(B, T, H, V)}, {"gk": gate(B, T, H, K), "gv": gate(B, T, H, V)}),
        ("gla", {}, {}),
    ],
    ids=lambda x: x if isinstance(x, str) else "+".join(x) if isinstance(x, dict) else str(x),
)
def test_recurrent_forms(name, options, gates, reverse):
    q, k, v, state = tensors()
    gates = {n: g[None, None, :, None].expand(B, T, H, 1) if g.dim() == 1 else g for n, g in gates.items()}
    for scale in (None, 0.3):
        found = getattr(fla, f"fused_recurrent_{name}")(
            q, k, v, **options, scale=scale, initial_state=state, output_final_state=True, reverse=reverse
        )
        agree(found, recurrence(q, k, v, state, **gates, scale=K**-0.5 if scale is None else scale, reverse=reverse))


def test_chunk_forms():
    q, k, v, state = tensors()
    g, gk = gate(B, T, H), gate(B, T, H, K)
    final = {"initial_state": state, "output_final_state": True}

    def per_head(x):
        return recurrence(q, k, v, state, gk=x[None, None, :, None].expand(B, T, H, 1))

    agree(fla.chunk_retention(q, k, v, **final), per_head(RETNET))
    agree(fla.chunk_lightning_attn(q, k, v, 3, 12, **final), per_head(LIGHTNING))
    agree(fla.chunk_gla(q, k, v, gk, **final), recurrence(q, k, v, state, gk=gk))
    agree(fla.chunk_simple_gla(q, k, v, g, **final), recurrence(q, k, v, state, gk=g[..., None]))
    agree(fla.chunk_simple_gla(q, k, v, g_gamma=RETNET, **final), per_head(RETNET))
    agree(fla.fused_chunk_simple_gla(q, k, v, g, **final), recurrence(q, k, v, state, gk=g[..., None]))


def test_gsa():
    q, k, v, _ = tensors()
    s, g = randn(B, T, H, 6).abs(), gate(B, T, H, 6)
    first, second = randn(B, H, K, 6), randn(B, H, 6, V)
    found, states = fla.chunk_gsa(q, k, v, s, g, initial_state=(first, second), output_final_state=True)
    read, keys = recurrence(q, k, s, first, gv=g)
    expected, values = recurrence(read.softmax(-1), s, v, second, gk=g, scale=1.0)
    agree((found, *states), (expected, keys, values))
    with pytest.raises(ValueError, match="`g`"):
        fla.chunk_gsa(q, k, v, s)


def test_rwkv6():
    q, k, v, state = tensors()
    w, u = gate(B, T, H, K), randn(H, K)
    found = fla.chunk_rwkv6(q, k, v, w, u, initial_state=state, output_final_state=True)
    agree(found, recurrence(q, k, v, state, gk=w, u=u))


def test_states_may_be_transposed():
    q, k, v, state = tensors()
    g = gate(B, T, H, K)
    options = {"initial_state": state.mT.contiguous(), "output_final_state": True, "state_v_first": True}
    o, last = fla.chunk_gla(q, k, v, g, **options)
    expected, final = recurrence(q, k, v, state, gk=g)
    agree((o, last), (expected, final.mT))


@pytest.mark.parametrize("reverse", [False, True])
def test_normalised(reverse):
    q, k, v, state = tensors()
    q, k = q.exp(), k.exp()
    sums = randn(B, 1, H, K).abs()
    found, (last, z) = fla.fused_recurrent_linear_attn(
        q, k, v, initial_state=(state, sums), output_final_state=True, normalize=True, reverse=reverse
    )
    o, final = recurrence(q, k, v, state, reverse=reverse)
    steps = k.flip(1).cumsum(1).flip(1) if reverse else k.cumsum(1)
    divisor = K**-0.5 * (q * (steps + sums)).sum(-1, keepdim=True)
    agree((found, last, z), (o / divisor, final, sums + k.sum(1, keepdim=True)))
    if not reverse:
        o, none = fla.chunk_linear_attn(q, k, v)
        plain, _ = recurrence(q, k, v, torch.zeros_like(state))
        assert none is None
        agree((o,), (plain / (K**-0.5 * (q * k.cumsum(1)).sum(-1, keepdim=True)),))


def test_packed():
    q, k, v, _ = tensors()
    row = [x.flatten(0, 1)[None] for x in (q, k, v, gate(B, T, H, K))]
    o, last = fla.chunk_gla(*row, output_final_state=True, cu_seqlens=torch.tensor([0, T, 2 * T]))
    expected, final = recurrence(q, k, v, torch.zeros(B, H, K, V).double(), gk=gate(B, T, H, K))
    agree((o, last), (expected.flatten(0, 1)[None], final))


def test_a_gate_per_head_beside_narrow_gates_keeps_its_digits():
    q, k, v, state = (x.float() for x in tensors())
    g, gamma = gate(B, T, H).bfloat16(), RETNET.requires_grad_()
    o, _ = fla.chunk_simple_gla(q, k, v, g=g, g_gamma=gamma)
    expected, _ = recurrence(
        q.double(), k.double(), v.double(), 0 * state.double(), gk=(g.double() + RETNET.detach())[..., None]
    )
    assert not o.requires_grad and (o - expected).square().mean() < 1e-12 * expected.square().mean()


def test_what_fla_takes_is_taken():
    """Names of old, what only tells how to compute, layouts that tensors have anyway, states that nobody asks for."""
    q, k, v, state = tensors()
    g = gate(B, T, H, K)
    options = {"initial_state": state.mT.contiguous(), "output_final_state": True}
    found = fla.fused_recurrent_gla(q, k, v, g, transpose_state_layout=True, head_first=False, **options)
    agree(found, fla.fused_recurrent_gla(q, k, v, g, state_v_first=True, **options))
    for name in ("retention", "simple_gla"):
        function = getattr(fla, f"fused_recurrent_{name}")
        found, expected = (
            function(q, k, v, **{n: True}, **options) for n in ("transpose_state_layout", "state_v_first")
        )
        agree(found, expected)
    fla.chunk_retention(q, k, v, chunk_size=64, cu_seqlens_cpu=None)
    fla.chunk_simple_gla(q.float(), k.float(), v.float(), g_gamma=RETNET.detach())
    o, (first, second) = fla.chunk_gsa(q, k, v, randn(B, T, H, 6).abs(), gate(B, T, H, 6))
    assert o.shape == v.shape and first is second is None


def test_a_layer_that_was_run_compiles_whole():
    q, k, v, _ = (x.float() for x in tensors())
    g = gate(B, T, H, K).float()
    expected, _ = fla.chunk_gla(q, k, v, g)
    torch._dynamo.reset()
    found, _ = torch.compile(fla.chunk_gla, fullgraph=True, backend="aot_eager")(q, k, v, g)
    assert torch.allclose(found, expected)


def test_what_is_refused():
    q, k, v, state = tensors()
    with pytest.raises(TypeError, match=r"chunk_retention: unknown argument `head_first`"):
        fla.chunk_retention(q, k, v, head_first=True)
    with pytest.raises(ValueError, match="`reverse` and `cu_seqlens`"):
        fla.fused_recurrent_retention(q[:1], k[:1], v[:1], reverse=True, cu_seqlens=torch.tensor([0, T]))
    with pytest.raises(ValueError, match="pair of states"):
        fla.chunk_linear_attn(q, k, v, initial_state=(state, state), normalize=False)
    fla.chunk_retention(q, k, v, chunk_size=64)
