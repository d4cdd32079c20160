"""The reference against loops and closed forms written by hand for single specs."""

from __future__ import annotations

import dataclasses
import math

import pytest
import torch
from torch import Tensor

from glagen import reference
from glagen.errors import InternalError
from glagen.reference import output_names, run, run_states
from tests.numerics.helpers import close, document_of, randn

GLA = """
name: op
inputs:
  q: [t, i]
  k: [t, i]
  v: [t, j]
  g: {axes: [t, i], domain: "[-inf, 0]"}
  scale: {kind: scalar, default: K**-0.5}
state: S[i, j]
equations:
  - S[t,i,j] = exp(g[t,i]) * S[t-1,i,j] + k[t,i] * v[t,j]
  - o[t,j] = sum(i, scale * q[t,i] * S[t,i,j])
"""
B, T, H, K, V = 2, 11, 3, 5, 4


def spec(inputs: str, *equations: str) -> str:
    lines = "\n".join(f"  {line}" for line in inputs.split("; "))
    return f"name: op\ninputs:\n{lines}\nstate: S[i, j]\nequations:\n" + "\n".join(f"  - {e}" for e in equations)


LINEAR = "q: [t, i]; k: [t, i]; v: [t, j]"


def qkv(length: int = T) -> dict[str, Tensor]:
    shapes = {"q": (B, length, H, K), "k": (B, length, H, K), "v": (B, length, H, V)}
    return {name: randn(*shape, seed=n).requires_grad_() for n, (name, shape) in enumerate(shapes.items())}


def gradients(op, arguments: dict[str, Tensor], state: Tensor | None) -> dict[str, Tensor]:
    """Output, final state and all gradients for fixed cotangents."""
    leaves = arguments | ({} if state is None else {"state": state})
    o, final = op(arguments, state)
    found = torch.autograd.grad([o, final], list(leaves.values()), [randn(*o.shape, seed=7), randn(*final.shape)])
    return {"o": o.detach(), "final": final.detach()} | dict(zip(leaves, found, strict=True))


def reference_op(text: str):
    def op(arguments, state):
        (o,), final = run(document_of(text), arguments, state)
        return o, final

    return op


def test_gla_is_the_loop_of_the_paper():
    def loop(arguments, state):
        q, k, v, g = (arguments[n] for n in "qkvg")
        outputs = []
        for t in range(T):
            state = g[:, t].exp()[..., None] * state + torch.einsum("bhi,bhj->bhij", k[:, t], v[:, t])
            outputs.append(torch.einsum("bhi,bhij->bhj", q[:, t], state) / math.sqrt(K))
        return torch.stack(outputs, dim=1), state

    gates = torch.nn.functional.logsigmoid(randn(B, T, H, K)).requires_grad_()
    arguments = qkv() | {"g": gates}
    state = randn(B, H, K, V).requires_grad_()
    close(gradients(reference_op(GLA), arguments, state), gradients(loop, arguments, state), 1e-13)


def test_linear_attention_is_attention_without_softmax():
    def closed(arguments, state):
        q, k, v = (arguments[n] for n in "qkv")
        scores = torch.einsum("bthi,bshi->bhts", q, k).tril()
        return torch.einsum("bhts,bshj->bthj", scores, v), torch.einsum("bthi,bthj->bhij", k, v)

    text = spec(LINEAR, "S[t,i,j] = S[t-1,i,j] + k[t,i] * v[t,j]", "o[t,j] = sum(i, q[t,i] * S[t,i,j])")
    close(gradients(reference_op(text), qkv(), None), gradients(closed, qkv(), None), 1e-13)


def test_reading_before_the_write_leaves_the_step_out_and_a_bonus_puts_it_back():
    u = randn(H, K).requires_grad_()

    def closed(arguments, state):
        q, k, v = (arguments[n] for n in "qkv")
        scores = torch.einsum("bthi,bshi->bhts", q, k).tril(-1)
        scores = scores + torch.diag_embed(torch.einsum("bthi,hi,bthi->bht", q, arguments["u"], k))
        return torch.einsum("bhts,bshj->bthj", scores, v), torch.einsum("bthi,bthj->bhij", k, v)

    text = spec(
        f"{LINEAR}; u: {{axes: [i], kind: parameter}}",
        "S[t,i,j] = S[t-1,i,j] + k[t,i] * v[t,j]",
        "o[t,j] = sum(i, q[t,i] * S[t-1,i,j]) + sum(i, q[t,i] * u[i] * k[t,i]) * v[t,j]",
    )
    arguments = qkv() | {"u": u}
    close(gradients(reference_op(text), arguments, None), gradients(closed, arguments, None), 1e-13)


RETNET = spec(
    f'{LINEAR}; gamma: {{axes: [], kind: constant, value: 1 - 2**(-5 - h), domain: "(0, 1)"}}',
    "S[t,i,j] = gamma * S[t-1,i,j] + k[t,i] * v[t,j]",
    "o[t,j] = sum(i, q[t,i] * S[t,i,j])",
)


@pytest.mark.parametrize("override", [False, True])
def test_retnet_is_attention_with_powers_of_gamma(override):
    gamma = torch.tensor([0.5, 0.9, 0.25]) if override else torch.tensor([1 - 2.0 ** (-5 - h) for h in range(H)])
    lag = torch.arange(T)[:, None] - torch.arange(T)
    decay = (gamma.double()[:, None, None] ** lag.clamp(min=0)).tril()

    def closed(arguments, state):
        q, k, v = (arguments[n] for n in "qkv")
        scores = torch.einsum("bthi,bshi->bhts", q, k) * decay
        rest = gamma.double()[:, None] ** torch.arange(T - 1, -1, -1)
        return torch.einsum("bhts,bshj->bthj", scores, v), torch.einsum("ht,bthi,bthj->bhij", rest, k, v)

    def op(arguments, state):
        return reference_op(RETNET)(arguments | ({"gamma": gamma} if override else {}), state)

    close(gradients(op, qkv(), None), gradients(closed, qkv(), None), 1e-13)


def test_gates_on_both_sides_and_a_scalar_one_multiply():
    inputs = f"{LINEAR}; gk: [t, i]; gv: [t, j]; gs: [t]"
    text = spec(
        inputs,
        "o[t,j] = sum(i, q[t,i] * S[t,i,j])",
        "decay[t,j] = exp(gv[t,j] + gs[t])",
        "S[t,i,j] = exp(gk[t,i]) * S[t-1,i,j] * decay[t,j] + k[t,i] * v[t,j]",
    )

    def loop(arguments, state):
        outputs = []
        for t in range(T):
            q, k, v, gk, gv, gs = (x[:, t] for x in arguments.values())
            state = state * torch.exp(gk[..., :, None] + gv[..., None, :] + gs[..., None, None])
            state = state + k[..., :, None] * v[..., None, :]
            outputs.append((q[..., :, None] * state).sum(-2))
        return torch.stack(outputs, dim=1), state

    gates = {"gk": -randn(B, T, H, K).abs(), "gv": -randn(B, T, H, V).abs(), "gs": -randn(B, T, H).abs()}
    arguments = qkv() | {n: g.requires_grad_() for n, g in gates.items()}
    state = randn(B, H, K, V).requires_grad_()
    close(gradients(reference_op(text), arguments, state), gradients(loop, arguments, state), 1e-13)


@pytest.mark.parametrize("gate", ["exp(g[t,i])", "sigmoid(g[t,i]) ** (1/16)", "exp(log(sigmoid(g[t,i])) / 16)"])
def test_a_reset_forgets_and_its_gradients_are_zero(gate):
    text = GLA.replace("exp(g[t,i])", gate)
    gates = torch.full((B, T, H, K), -0.5, dtype=torch.float64)
    gates[:, 6] = -math.inf
    gates.requires_grad_()
    arguments = qkv() | {"g": gates}
    state = randn(B, H, K, V).requires_grad_()
    whole = gradients(reference_op(text), arguments, state)
    assert all(x.isfinite().all() for x in whole.values())
    assert whole["g"][:, 5].any() and not whole["g"][:, 6].any()
    (o,), final = run(document_of(text), {n: x[:, 6:] for n, x in arguments.items()})
    close({"o": o, "final": final}, {"o": whole["o"][:, 6:], "final": whole["final"]}, 1e-14)
    _, final = run(document_of(text), arguments, state)
    assert not any(g[:, :6].any() for g in torch.autograd.grad(final.sum(), [arguments["k"], gates]))


def test_what_multiplies_an_infinite_gate_has_a_gradient():
    text = GLA.replace("  scale:", "  w: {axes: [i], kind: parameter}\n  scale:")
    text = text.replace("exp(g[t,i])", "exp(-exp(w[i]) * softplus(g[t,i]))")
    gates = torch.zeros(B, T, H, K, dtype=torch.float64)
    gates[:, 6] = math.inf
    arguments = qkv() | {"g": gates.requires_grad_(), "w": randn(H, K).requires_grad_()}
    found = gradients(reference_op(text), arguments, None)
    assert all(x.isfinite().all() for x in found.values()) and found["w"].all()


@pytest.mark.parametrize("length", [T, 80])
def test_several_states_with_some_of_the_axes(length):
    """A normaliser: a state without j, and a ratio of two reads. 80 steps are checkpointed."""
    text = spec(
        LINEAR, "S[t,i,j] = S[t-1,i,j] + k[t,i] * v[t,j]", "z[t,i] = z[t-1,i] + k[t,i]",
        "o[t,j] = sum(i, q[t,i] * S[t,i,j]) / (1 + sum(i, q[t,i] * z[t,i]) ** 2)",
    ).replace("state: S[i, j]", 'state: ["S[i, j]", "z[i]"]')  # fmt: skip
    given = qkv(length)
    q, k, v = given.values()
    start, sums = randn(B, H, K, V).requires_grad_(), randn(B, H, K, seed=1).requires_grad_()
    (o,), (final, total) = run_states(document_of(text), given, (start, sums))
    scores = torch.einsum("bthi,bshi->bhts", q, k).tril()
    read = torch.einsum("bhts,bshj->bthj", scores, v) + torch.einsum("bthi,bhij->bthj", q, start)
    weight = scores.sum(-1).transpose(1, 2) + torch.einsum("bthi,bhi->bth", q, sums)
    expected = [read / (1 + weight**2)[..., None], start + torch.einsum("bshi,bshj->bhij", k, v), sums + k.sum(1)]
    leaves = [q, k, v, start, sums]
    cotangents = [randn(*x.shape) for x in expected]
    for x, y in zip([o, final, total], expected, strict=True):
        assert torch.allclose(x, y, rtol=1e-10, atol=1e-10)
    found = torch.autograd.grad([o, final, total], leaves, cotangents)
    for x, y in zip(found, torch.autograd.grad(expected, leaves, cotangents), strict=True):
        assert torch.allclose(x, y, rtol=1e-9, atol=1e-9)


def test_checkpoints_change_nothing(monkeypatch):
    arguments = qkv(70) | {"g": (-randn(B, 70, H, K).abs()).requires_grad_()}
    whole = gradients(reference_op(GLA), arguments, randn(B, H, K, V).requires_grad_())
    monkeypatch.setattr(reference, "SEGMENT", 13)
    close(gradients(reference_op(GLA), arguments, randn(B, H, K, V).requires_grad_()), whole, 1e-14)


def test_scalars_take_their_default_and_other_numbers():
    arguments = qkv() | {"g": -randn(B, T, H, K).abs()}
    (o,), _ = run(document_of(GLA), arguments)
    (doubled,), _ = run(document_of(GLA), arguments | {"scale": 2 * K**-0.5})
    close({"o": doubled}, {"o": 2 * o}, 1e-14)


def test_a_sum_over_an_axis_that_a_term_lacks_counts_it_once_each():
    text = spec(LINEAR, "S[t,i,j] = S[t-1,i,j] + k[t,i] * v[t,j]", "o[t,j] = sum(i, v[t,j]) + 0 * sum(i, q[t,i])")
    arguments = qkv()
    (o,), _ = run(document_of(text), arguments)
    close({"o": o}, {"o": K * arguments["v"]}, 1e-14)


def test_half_the_slope_at_a_tie_and_none_at_a_kink():
    text = spec(
        f"{LINEAR}; z: [t, j]",
        "S[t,i,j] = S[t-1,i,j] + k[t,i] * v[t,j]",
        "p[t,j] = max(z[t,j], 0) / 2 + min(0, z[t,j]) / 2 + 10 * relu(z[t,j]) + 100 * abs(z[t,j])",
        "o[t,j] = p[t,j] + 0 * sum(i, q[t,i] * S[t,i,j])",
    )
    z = torch.zeros(B, T, H, V, requires_grad=True)
    (o,), _ = run(document_of(text), qkv() | {"z": z})
    (slope,) = torch.autograd.grad(o.sum(), z)
    assert (slope == 0.5).all()


FUNCTIONS_BY_HAND = {
    "exp(z[t,j])": math.exp,
    "log(z[t,j] ** 2)": lambda z: 2 * math.log(abs(z)),
    "sigmoid(z[t,j])": lambda z: 1 / (1 + math.exp(-z)),
    "logsigmoid(z[t,j])": lambda z: -math.log1p(math.exp(-z)),
    "softplus(z[t,j])": lambda z: math.log1p(math.exp(z)),
    "tanh(z[t,j])": math.tanh,
    "relu(z[t,j])": lambda z: max(z, 0.0),
    "elu(z[t,j])": lambda z: z if z > 0 else math.expm1(z),
    "silu(z[t,j])": lambda z: z / (1 + math.exp(-z)),
    "sqrt(z[t,j] ** 2)": abs,
    "abs(-z[t,j] / 2)": lambda z: abs(z) / 2,
    "min(z[t,j], 1)": lambda z: min(z, 1.0),
    "max(z[t,j], -1)": lambda z: max(z, -1.0),
}


@pytest.mark.parametrize("written", FUNCTIONS_BY_HAND)
def test_functions_have_their_values_and_slopes(written):
    function = FUNCTIONS_BY_HAND[written]
    text = spec(
        f"{LINEAR}; z: [t, j]",
        "S[t,i,j] = S[t-1,i,j] + k[t,i] * v[t,j]",
        f"o[t,j] = {written} + 0 * sum(i, q[t,i] * S[t,i,j])",
    )
    points = [-30.0, -3.0, -0.5, 0.25, 2.0, 25.0]
    z = torch.tensor(points, dtype=torch.float64).repeat(B * T * H * V)[: B * T * H * V].reshape(B, T, H, V)
    z.requires_grad_()
    (o,), _ = run(document_of(text), qkv() | {"z": z})
    (slopes,) = torch.autograd.grad(o.sum(), z)
    for point, value, slope in zip(points, o.flatten()[:6].tolist(), slopes.flatten()[:6].tolist(), strict=True):
        assert value == pytest.approx(function(point), rel=1e-14, abs=1e-300)
        step = 1e-4 * abs(point)
        difference = (function(point + step) - function(point - step)) / (2 * step)
        assert slope == pytest.approx(difference, rel=1e-5, abs=1e-8)


def test_outputs_are_what_no_equation_uses_in_order():
    text = spec(
        LINEAR,
        "p[t,j] = sum(i, k[t,i] * S[t-1,i,j])",
        "w[t,i] = 2 * k[t,i]",
        "r[t,j] = sum(i, q[t,i] * S[t,i,j])",
        "S[t,i,j] = S[t-1,i,j] + w[t,i] * v[t,j]",
        "o[t,j] = r[t,j] + v[t,j]",
    )
    assert output_names(document_of(text)) == ("p", "o")


def test_equations_in_a_circle_are_no_recurrence():
    document = document_of(GLA)
    first = document.equations[1]
    turned = dataclasses.replace(document, equations=(first, dataclasses.replace(first, target=first.target)))
    looped = dataclasses.replace(first, body=dataclasses.replace(first.target))
    with pytest.raises(InternalError, match="circle"):
        run(dataclasses.replace(turned, equations=(document.equations[0], looped)), qkv() | {"g": randn(B, T, H, K)})
