"""The roles found in specs: gates, writes, reads, outputs."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from glagen.check import check
from glagen.errors import Source, SpecError
from glagen.ir.expr import show
from glagen.ir.recurrence import Composite, Maximum, Recurrence, Value
from glagen.parse import parse, read

SPECS = Path(__file__).parents[2] / "specs"

INPUTS = """\
  q: [t, i]
  k: [t, i]
  v: [t, j]
  x: [t, i]
  z: [t, j]
  w: [t]
  g: {axes: [t, i], domain: "[-inf, 0]"}
  gv: {axes: [t, j], domain: "[-inf, 0]"}
  gs: {axes: [t], domain: "[-inf, 0]"}
  gm: {axes: [t, s], domain: "[-inf, 0]"}
  a: {axes: [t, i], domain: "(0, 1]"}
  b: {axes: [t, j], domain: "(0, 0.5]"}
  u: {kind: parameter, axes: [i]}
  d: {kind: parameter, axes: [j]}
  A: {kind: parameter, axes: []}
  gamma: {kind: constant, axes: [], domain: "(0, 1)"}
  scale: {kind: scalar, default: K**-0.5}
"""
STATE = "S[t,i,j] = S[t-1,i,j] + k[t,i] * v[t,j]"
ALL_SIDES = [("K", "g[t,i]", "t,i"), ("V", "gv[t,j]", "t,j"), ("scalar", "gs[t]", "t")]
OUTPUT = "o[t,j] = sum(i, q[t,i] * S[t,i,j])"


def found(*equations: str) -> Recurrence:
    """The recurrence of some equations; inputs they do not mention are left out."""
    text = " ".join(equations)
    used = [line for line in INPUTS.splitlines() if f"{line.split(':')[0].strip()}" in _words(text)]
    lines = "".join(f"  - '{equation}'\n" for equation in equations)
    spec = "name: m\ninputs:\n" + "\n".join(used) + f"\nstate: S[i, j]\nequations:\n{lines}"
    meaning = check(parse(Source("m.yaml", spec)))
    assert isinstance(meaning, Recurrence)
    return meaning


def _words(text: str) -> set[str]:
    return set("".join(c if c.isalnum() or c == "_" else " " for c in text).split())


def gates(recurrence: Recurrence) -> list[tuple[str, str, str]]:
    return [(gate.side, show(gate.log), ",".join(gate.axes)) for gate in recurrence.states[0].gates]


def writes(recurrence: Recurrence) -> list[tuple[str, str]]:
    return [(show(write.key), show(write.value)) for write in recurrence.states[0].writes]


def reads(recurrence: Recurrence) -> list[tuple[str, str, bool]]:
    return [(read.name, show(read.query), read.before) for read in recurrence.reads]


def outputs(recurrence: Recurrence) -> list[tuple[str, str]]:
    return [(output.name, show(output.value)) for output in recurrence.outputs]


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("linear_attn", []),
        ("retnet", [("scalar", "log(gamma)", "")]),
        ("simple_gla", [("scalar", "g[t]", "t")]),
        ("gla", [("K", "g[t,i]", "t,i")]),
        ("gla_v", [("V", "g[t,j]", "t,j")]),
        ("gla_kv", [("K", "gk[t,i]", "t,i"), ("V", "gv[t,j]", "t,j")]),
        ("gla_sigmoid", [("K", "(1/16) * logsigmoid(x[t,i])", "t,i")]),
    ],
)
def test_specs(name: str, expected: list[tuple[str, str, str]]) -> None:
    source = read(SPECS / f"{name}.yaml")
    check(parse(source))  # the grammar is built once
    start = time.perf_counter()
    recurrence = check(parse(source))
    assert time.perf_counter() - start < 0.2
    assert recurrence.name == name and recurrence.doc
    assert gates(recurrence) == expected
    assert all(gate.domain.high <= 0 for gate in recurrence.states[0].gates)
    assert writes(recurrence) == [("k[t,i]", "v[t,j]")]
    assert reads(recurrence) == [("read", "scale * q[t,i]", False)]
    assert outputs(recurrence) == [("o", "read[t,j]")]
    assert (recurrence.chunk, recurrence.subchunk) == (None, None)


@pytest.mark.parametrize(
    ("decay", "steep"),
    [
        ("exp(g[t,i])", False),
        ("sigmoid(x[t,i])**(1/16)", False),
        ("exp(-softplus(x[t,i]))", False),
        ("a[t,i]", True),
        ("sqrt(a[t,i]) * exp(g[t,i])", True),
        ("(0.5 + 0.5 * a[t,i])", False),
        ("b[t,j]", True),
        ("(1 - b[t,j])", False),
    ],
)
def test_gates_whose_gradients_are_divided_by_them_are_steep(decay: str, steep: bool) -> None:
    recurrence = found(f"S[t,i,j] = {decay} * S[t-1,i,j] + k[t,i] * v[t,j]", OUTPUT)
    assert [gate.steep for gate in recurrence.states[0].gates] == [steep]


@pytest.mark.parametrize(
    ("decay", "expected"),
    [
        ("a[t,i]", [("K", "log(a[t,i])", "t,i")]),
        ("exp(-softplus(u[i]))", [("K", "-softplus(u[i])", "i")]),
        ("exp(-exp(A) * softplus(w[t]))", [("scalar", "(-exp(A)) * softplus(w[t])", "t")]),
        ("0.5", [("scalar", "log(1/2)", "")]),
        ("1", []),
        ("exp(g[t,i]) * exp(gv[t,j]) * exp(gs[t])", ALL_SIDES),
        ("exp(gs[t] + gv[t,j] + g[t,i])", ALL_SIDES),
        ("exp(g[t,i]) * a[t,i]**2", [("K", "g[t,i] + 2 * log(a[t,i])", "t,i")]),
        ("gamma * exp(gs[t])", [("scalar", "log(gamma) + gs[t]", "t")]),
        ("sqrt(a[t,i] * b[t,j])", [("K", "1/2 * log(a[t,i])", "t,i"), ("V", "1/2 * log(b[t,j])", "t,j")]),
        ("(1 - sigmoid(x[t,i]))", [("K", "logsigmoid(-x[t,i])", "t,i")]),
        ("(1 - b[t,j])", [("V", "log(1 - b[t,j])", "t,j")]),
        ("(0.5 * sigmoid(x[t,i]) + 0.5)", [("K", "log(1/2 * sigmoid(x[t,i]) + 1/2)", "t,i")]),
        (
            "(0.5 + 0.5 * a[t,i]) * (b[t,j] + 0.5)",
            [("K", "log(1/2 + 1/2 * a[t,i])", "t,i"), ("V", "log(b[t,j] + 1/2)", "t,j")],
        ),
    ],
)  # fmt: skip
def test_gates(decay: str, expected: list[tuple[str, str, str]]) -> None:
    recurrence = found(f"S[t,i,j] = {decay} * S[t-1,i,j] + k[t,i] * v[t,j]", OUTPUT)
    assert [(side, log.replace("(1/2)", "1/2"), axes) for side, log, axes in gates(recurrence)] == [
        (side, log.replace("(1/2)", "1/2"), axes) for side, log, axes in expected
    ]
    assert [gate.side for gate in recurrence.states[0].gates] == sorted(
        (side for side, _, _ in expected), key=("K", "V", "scalar").index
    )


def test_several_terms_of_the_old_state_are_one_gate() -> None:
    recurrence = found("S[t,i,j] = S[t-1,i,j] - b[t,j] * S[t-1,i,j] + k[t,i] * v[t,j]", OUTPUT)
    assert gates(recurrence) == [("V", "log(1 - b[t,j])", "t,j")]
    factored = found("S[t,i,j] = 0.5 * (a[t,i] * b[t,j] * S[t-1,i,j] + a[t,i] * S[t-1,i,j]) + k[t,i] * v[t,j]", OUTPUT)
    assert [gate.side for gate in factored.states[0].gates][:2] == ["K", "V"]


def test_gate_domains() -> None:
    recurrence = found("S[t,i,j] = exp(g[t,i]) * gamma * b[t,j] * S[t-1,i,j] + k[t,i] * v[t,j]", OUTPUT)
    assert [str(gate.domain) for gate in recurrence.states[0].gates] == [
        "[-inf, 0]",
        "(-inf, -0.6931471805599453]",
        "(-inf, 0)",
    ]


def test_key_of_hgrn2() -> None:
    recurrence = found(
        "alpha[t,i] = sigmoid(x[t,i])",
        "S[t,i,j] = alpha[t,i] * S[t-1,i,j] + (1 - alpha[t,i]) * v[t,j]",
        OUTPUT,
    )
    assert gates(recurrence) == [("K", "logsigmoid(x[t,i])", "t,i")]
    assert writes(recurrence) == [("sigmoid(-x[t,i])", "v[t,j]")]


@pytest.mark.parametrize(
    ("write", "expected"),
    [
        ("w[t] * (k[t,i] * v[t,j])", [("w[t] * k[t,i]", "v[t,j]")]),
        ("k[t,i] * v[t,j] / w[t]", [("k[t,i] / w[t]", "v[t,j]")]),
        ("k[t,i] / z[t,j]", [("k[t,i]", "1 / z[t,j]")]),
        ("v[t,j]", [("1", "v[t,j]")]),
        ("w[t] + 0 * v[t,j]", [("w[t]", "1"), ("0", "v[t,j]")]),
        ("-k[t,i] * v[t,j]", [("-k[t,i]", "v[t,j]")]),
        ("(k[t,i] + x[t,i]) * v[t,j]", [("k[t,i] + x[t,i]", "v[t,j]")]),
        ("(k[t,i] + v[t,j]) * z[t,j]", [("k[t,i]", "z[t,j]"), ("1", "v[t,j] * z[t,j]")]),
        ("k[t,i] * v[t,j] - x[t,i] * z[t,j]", [("k[t,i]", "v[t,j]"), ("-x[t,i]", "z[t,j]")]),
        ("(k[t,i] * v[t,j])**2", [("k[t,i] * k[t,i]", "v[t,j] * v[t,j]")]),
        ("exp(k[t,i] + w[t] - z[t,j])", [("exp(k[t,i] + w[t])", "exp(-z[t,j])")]),
        ("(k[t,i] + v[t,j])**1", [("k[t,i]", "1"), ("1", "v[t,j]")]),
    ],
)  # fmt: skip
def test_writes(write: str, expected: list[tuple[str, str]]) -> None:
    assert writes(found(f"S[t,i,j] = S[t-1,i,j] + {write}", OUTPUT)) == expected


@pytest.mark.parametrize(
    ("body", "queries", "value"),
    [
        ("sum(i, q[t,i] * S[t-1,i,j])", [("q[t,i]", True)], "read[t,j]"),
        ("w[t] * sum(i, q[t,i] * S[t,i,j]) + d[j] * v[t,j]", [("q[t,i]", False)], "w[t] * read[t,j] + d[j] * v[t,j]"),
        ("sum(i, w[t] * scale * q[t,i] * u[i] * S[t,i,j])", [("w[t] * scale * q[t,i] * u[i]", False)], "read[t,j]"),
        ("sum(i, S[t,i,j])", [("1", False)], "read[t,j]"),
        ("-sum(i, q[t,i] * S[t,i,j])", [("q[t,i]", False)], "-read[t,j]"),
        (
            "sum(i, q[t,i] * (S[t-1,i,j] + u[i] * k[t,i] * v[t,j]))",
            [("q[t,i]", True)],
            "read[t,j] + v[t,j] * sum(i, q[t,i] * u[i] * k[t,i])",
        ),
        ("sum(i, q[t,i] * z[t,j] * S[t,i,j])", [("q[t,i]", False)], "z[t,j] * read[t,j]"),
        ("sum(i, q[t,i] * S[t,i,j] / z[t,j])", [("q[t,i]", False)], "read[t,j] / z[t,j]"),
        (
            "sum(i, (q[t,i] + z[t,j]) * S[t,i,j])",
            [("q[t,i]", False), ("1", False)],
            "read_1[t,j] + z[t,j] * read_2[t,j]",
        ),
        ("sum(i, q[t,i] * S[t,i,j] + x[t,i] * S[t,i,j])", [("q[t,i] + x[t,i]", False)], "read[t,j]"),
        (
            "sum(i, q[t,i] * (S[t,i,j] - S[t-1,i,j]))",
            [("q[t,i]", False), ("q[t,i]", True)],
            "read_1[t,j] - read_2[t,j]",
        ),
        ("sum(i, exp(q[t,i] + z[t,j]) * S[t,i,j])", [("exp(q[t,i])", False)], "exp(z[t,j]) * read[t,j]"),
        ("sum(i, x[t,i] * sum(i, q[t,i] * S[t,i,j]))", [("q[t,i]", False)], "sum(i, x[t,i]) * read[t,j]"),
        ("(sum(i, q[t,i] * S[t,i,j]) + v[t,j]) * w[t]", [("q[t,i]", False)], "w[t] * read[t,j] + v[t,j] * w[t]"),
    ],
)  # fmt: skip
def test_reads(body: str, queries: list[tuple[str, bool]], value: str) -> None:
    recurrence = found(STATE, f"o[t,j] = {body}")
    assert [(query, before) for _, query, before in reads(recurrence)] == queries
    assert outputs(recurrence) == [("o", value)]


def test_identical_reads_are_shared() -> None:
    recurrence = found(
        STATE,
        "o[t,j] = sum(i, q[t,i] * S[t,i,j]) * w[t]",
        "p[t,j] = sum(i, q[t,i] * S[t,i,j]) - sum(i, x[t,i] * S[t,i,j])",
    )
    assert reads(recurrence) == [("read_1", "q[t,i]", False), ("read_2", "x[t,i]", False)]
    assert outputs(recurrence)[1] == ("p", "read_1[t,j] - read_2[t,j]")


def test_an_intermediate_may_read_the_state() -> None:
    recurrence = found(STATE, "r[t,j] = sum(i, q[t,i] * S[t,i,j])", "o[t,j] = r[t,j] * w[t]")
    assert outputs(recurrence) == [("o", "w[t] * read[t,j]")]


def test_an_intermediate_may_be_a_matrix() -> None:
    recurrence = found(
        "kv[t,i,j] = k[t,i] * v[t,j]",
        "S[t,i,j] = S[t-1,i,j] + kv[t,i,j]",
        "o[t,j] = sum(i, q[t,i] * (S[t,i,j] + u[i] * kv[t,i,j]))",
    )
    assert writes(recurrence) == [("k[t,i]", "v[t,j]")]
    assert outputs(recurrence) == [("o", "read[t,j] + v[t,j] * sum(i, q[t,i] * u[i] * k[t,i])")]


def test_the_order_of_equations_carries_no_meaning() -> None:
    equations = [
        "alpha[t,i] = beta[t,i] ** 2",
        "beta[t,i] = sigmoid(x[t,i])",
        "S[t,i,j] = alpha[t,i] * S[t-1,i,j] + k[t,i] * v[t,j]",
        OUTPUT,
    ]
    first, last = found(*equations), found(*reversed(equations))
    assert (first.states, first.reads, first.outputs) == (last.states, last.reads, last.outputs)


def test_names_of_reads_are_free() -> None:
    text = "name: m\ninputs:\n  read: [t, i]\n  read_: [t, j]\nstate: S[i, j]\nequations:\n"
    text += "  - S[t,i,j] = S[t-1,i,j] + read[t,i] * read_[t,j]\n  - o[t,j] = sum(i, read[t,i] * S[t,i,j])\n"
    recurrence = check(parse(Source("m", text)))
    assert recurrence.reads[0].name not in ("read", "read_", "m", "o", "S")


def test_a_name_may_stand_for_an_unsubscripted_constant() -> None:
    recurrence = found("S[t,i,j] = gamma * S[t-1,i,j] + A * k[t,i] * v[t,j]", OUTPUT)
    assert writes(recurrence) == [("A * k[t,i]", "v[t,j]")]


def test_faults_of_independent_equations_come_together() -> None:
    with pytest.raises(SpecError) as caught:
        found(
            "S[t,i,j] = w[t] * S[t-1,i,j] + tanh(k[t,i] * v[t,j])",
            "o[t,j] = exp(sum(i, q[t,i] * S[t,i,j]))",
            "r[t] = y[t]",
        )
    assert [d.message.split("`")[1] for d in caught.value.diagnostics] == [
        "w[t]",
        "tanh(k[t,i] * v[t,j])",
        "S",
        "r",
        "y",
    ]


# -- several states ----------------------------------------------------------------------------------------------------


def parts(states: str, *equations: str) -> Composite:
    lines = "".join(f"  - '{equation}'\n" for equation in equations)
    used = [line for line in INPUTS.splitlines() if line.split(":")[0].strip() in _words(" ".join(equations))]
    spec = "name: m\ninputs:\n" + "\n".join(used) + f"\nstate: [{states}]\nequations:\n{lines}"
    meaning = check(parse(Source("m.yaml", spec)))
    assert isinstance(meaning, Composite)
    return meaning


def test_a_normaliser_is_a_state_one_column_wide():
    found = parts(
        '"S[i, j]", "n[i]"',
        "S[t,i,j] = exp(g[t,i]) * S[t-1,i,j] + k[t,i] * v[t,j]",
        "n[t,i] = exp(g[t,i]) * n[t-1,i] + k[t,i]",
        "d1[t] = sum(i, q[t,i] * n[t-1,i])",
        "o[t,j] = sum(i, q[t,i] * S[t,i,j]) / max(abs(d1[t]), 1)",
    )
    first, second = found.parts
    assert writes(first) == [("k[t,i]", "v[t,j]")] and writes(second) == [("k[t,i]", "one[t,j]")]
    assert gates(first) == gates(second) == [("K", "g[t,i]", "t,i")]
    assert [(r.state, show(r.query), r.before) for p in found.parts for r in p.reads] == [
        ("S", "q[t,i]", False),
        ("n", "q[t,i]", True),
    ]
    assert [show(o.value) for o in found.outputs] == ["read_1[t,j] / max(abs(read_2[t]), 1)"]
    assert [d.name for d in second.declarations] == ["q", "k", "g", "one"]


def test_a_state_without_keys_is_its_own_read():
    found = parts('"y[j]"', "y[t,j] = b[t,j] * y[t-1,j] + w[t] * v[t,j]", "o[t,j] = z[t,j] * y[t-1,j] + sum(i, k[t,i])")
    (part,) = found.parts
    assert writes(part) == [("w[t] * one[t,i]", "v[t,j]")]
    assert [(show(r.query), r.before) for r in part.reads] == [("one[t,i]", True)]
    assert [show(o.value) for o in found.outputs] == ["z[t,j] * read_1[t,j] + local[t]"]


@pytest.mark.parametrize(
    ("body", "value"),
    [
        ("tanh(sum(i, q[t,i] * S[t,i,j]))", "tanh(read_1[t,j])"),
        ("v[t,j] / sum(i, q[t,i] * S[t,i,j])", "v[t,j] / read_1[t,j]"),
        ("sum(i, q[t,i] * S[t,i,j]) * sum(i, k[t,i] * S[t-1,i,j])", "read_1[t,j] * read_2[t,j]"),
        ("sum(i, q[t,i] * S[t,i,j]) * sum(i, q[t,i] * S[t,i,j])", "read_1[t,j] * read_1[t,j]"),
        ("abs(sum(i, q[t,i] * (S[t-1,i,j] + u[i] * k[t,i] * v[t,j])))",
         "abs(read_1[t,j] + v[t,j] * local[t])"),
    ],
)  # fmt: skip
def test_outputs_that_are_not_linear_in_reads(body: str, value: str) -> None:
    found = parts('"S[i, j]"', STATE, f"o[t,j] = {body}")
    assert [show(o.value) for o in found.outputs] == [value]


def test_outputs_that_are_linear_stay_in_the_kernels():
    assert isinstance(found(STATE, "o[t,j] = v[t,j] * sum(i, q[t,i] * S[t,i,j]) / w[t]"), Recurrence)


# -- states that depend on states --------------------------------------------------------------------------------------


def steps(found: Composite) -> list[str]:
    """What is computed in turn, a line each."""
    lines = []
    for step in found.steps:
        match step:
            case Value(name=name, axes=axes, expr=expr):
                lines.append(f"{name}[{','.join(axes)}] = {show(expr)}")
            case Maximum(state=state, rise=rise, floor=floor):
                lines.append(f"{state} = max({state} + {rise}, {floor})")
            case Recurrence():
                lines.append(step.states[0].name)
    return lines


def test_a_running_maximum_makes_gates_of_exponentials():
    """Neither the gate nor the weight of the write can exceed 1, by the definition of the maximum."""
    found = parts(
        'r, "S[i, j]"',
        "r[t] = max(w[t], gs[t] + r[t-1])",
        "S[t,i,j] = exp(gs[t] + r[t-1] - r[t]) * S[t-1,i,j] + exp(w[t] - r[t]) * k[t,i] * v[t,j]",
        "o[t,j] = exp(-r[t-1]) * sum(i, q[t,i] * S[t,i,j])",
    )
    assert steps(found) == ["r_rise[t] = gs[t]", "r_floor[t] = w[t]", "r = max(r + r_rise, r_floor)", "S"]
    (part,) = found.parts
    assert gates(part) == [("scalar", "min(gs[t] + r_before[t] - w[t], 0)", "t")]
    assert part.states[0].gates[0].domain.high == 0
    assert writes(part) == [("exp(min(0, w[t] - gs[t] - r_before[t])) * k[t,i]", "v[t,j]")]
    assert [show(o.value) for o in found.outputs] == ["exp(-r_before[t]) * read_1[t,j]"]


def test_a_running_maximum_of_several():
    found = parts(
        'r, "S[i, j]"',
        "r[t] = max(max(r[t-1] - 1, w[t]), max(2 * w[t], gs[t] + r[t-1]))",
        "S[t,i,j] = exp(gs[t] + r[t-1] - max(r[t], gs[t] + r[t-1])) * S[t-1,i,j] + k[t,i] * v[t,j]",
        "o[t,j] = sum(i, q[t,i] * S[t,i,j])",
    )
    assert steps(found)[:2] == ["r_rise[t] = max(-1, gs[t])", "r_floor[t] = max(w[t], 2 * w[t])"]
    assert found.parts[0].states[0].gates[0].domain.high == 0


def test_slots_are_keys_of_one_state_and_values_of_another():
    found = parts(
        '"R[s, j]", "P[i, s]"',
        "R[t,s,j] = exp(gm[t,s]) * R[t-1,s,j] + sigmoid(gm[t,s]) * v[t,j]",
        "P[t,i,s] = exp(gm[t,s]) * P[t-1,i,s] + k[t,i] * gm[t,s]",
        "o[t,j] = sum(s, softmax(s, 2 * sum(i, q[t,i] * P[t,i,s])) * R[t,s,j])",
    )
    assert steps(found) == ["P", "weights[t,s] = softmax(s, 2 * read_1[t,s])", "R"]
    keys, values = found.parts
    assert gates(keys) == [("V", "gm[t,j]", "t,j")] and gates(values) == [("K", "gm[t,i]", "t,i")]
    assert writes(keys) == [("k[t,i]", "gm[t,j]")] and writes(values) == [("sigmoid(gm[t,i])", "v[t,j]")]
    assert [show(r.query) for r in (*keys.reads, *values.reads)] == ["q[t,i]", "weights[t,i]"]


def test_what_is_read_of_one_state_is_in_the_gate_of_another():
    found = parts(
        '"S[i, j]", "n[i]"',
        "S[t,i,j] = sigmoid(sum(i, q[t,i] * n[t-1,i])) * S[t-1,i,j] + k[t,i] / sum(i, k[t,i]) * v[t,j]",
        "n[t,i] = n[t-1,i] + k[t,i]",
        "o[t,j] = sum(i, q[t,i] * S[t,i,j]) * sum(j, v[t,j])",
    )
    assert steps(found) == ["n", "local[t] = sum(i, k[t,i])", "S", "local_[t] = sum(j, v[t,j])"]
    assert gates(found.parts[1]) == [("scalar", "logsigmoid(read_1[t])", "t")]
    assert found.written >= {"q", "k", "v", "local", "read_1"} and "local_" not in found.written
