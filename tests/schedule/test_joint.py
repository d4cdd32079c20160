"""Keys share a growth with scores where what is left out of them goes to the state, and nowhere else."""

from __future__ import annotations

from dataclasses import replace

import pytest

from glagen.ir.chunk import Operand
from glagen.ir.expr import Apply, Ref, apply, number, ref, refs, times
from glagen.ir.kernel import Assign, Blocks, Dot, Kernel, Line, Scan, read
from glagen.schedule.joint import joined
from tests.mutation.judge import plan_of

BY_WGMMA = ["gla", "gla_sigmoid", "hgrn2", "rwkv6"]
KEYS, WHOLE = ("t", "i"), ("i",)
DECAY = Assign("g_to_end", KEYS, ref("decay", KEYS), mild=times(ref("g_up", KEYS), ref("g_rest", WHOLE)))
FADED = Assign("k_to_end", KEYS, times(ref("k", KEYS), ref("g_to_end", KEYS)), rounded="narrow")
UPDATE = times(ref("S", ("i", "j")), ref("g_whole", WHOLE))
ADDED = Dot("S", ("i", "j"), Operand("k_to_end", ("s", "i")), Operand("v", ("s", "j")), accumulate=True)
FORWARD = Scan("S", UPDATE, "S_initial", "S_final", None, added=(ADDED,))
READ = Dot("made", ("t", "j"), Operand("k_to_end", KEYS), Operand("S", ("i", "j")))
BACK = replace(FORWARD, added=(Dot("S", ("i", "j"), Operand("q", ("t", "i")), Operand("do", ("t", "j")), True),))


def kernel_of(name: str, role: str) -> Kernel:
    return next(k for k in plan_of(name, "guarded").kernels if k.name == role)


def assigns(lines) -> dict[str, Assign]:
    single = [x for line in lines for x in (line.body if isinstance(line, Blocks) else (line,))]
    return {x.name: x for x in single if isinstance(x, Assign)}


@pytest.mark.parametrize("name", BY_WGMMA)
def test_forwards_on_chip_share_it(name):
    kernel = kernel_of(name, "fused")
    made, (scan,) = assigns(kernel.lines), kernel.scans
    (decay,) = (x for n, x in made.items() if n.startswith("gate_") and n.endswith("_to_end"))
    assert isinstance(decay.mild, Ref) and "_up_anchored" in decay.mild.name
    (keys,) = (x for x in made.values() if decay.name in {r.name for r in refs(x.expr)})
    assert keys.rounded == "wide", "a growth may outgrow float16"
    assert scan.late == ref(decay.name.removesuffix("_to_end") + "_late", WHOLE)
    assert all(dot.wide for dot in scan.added if keys.name in (dot.x.name, dot.y.name))


@pytest.mark.parametrize("name", BY_WGMMA)
def test_beside_strong_gates_growths_begin_further_on(name):
    """So that a state needs no product before the sum; and they are made before the state is read."""
    kernel = kernel_of(name, "fused")
    made, (scan,) = assigns(kernel.lines), kernel.scans
    assert made["gate_k_soon"].strong == made["gate_k_soon"].mild == number(1)
    decay, late = made["gate_k_to_end"], made["gate_k_late"]
    assert decay.near and late.near
    anchor = made["log_gate_k_anchor"].expr
    whole = ref("log_gate_k_whole", WHOLE)
    most = apply("max", whole, number(-60))
    assert anchor == apply("sub", whole, most) and late.strong == apply("exp", most)
    assert isinstance(decay.strong, Apply) and decay.strong.function == "grow"
    assert {r.name for r in refs(decay.strong)} == {"log_gate_k_since", "log_gate_k_anchor"}
    lines = list(kernel.lines)
    keys, first = (next(n for n, x in enumerate(lines) if of in read(x)) for of in (decay.name, scan.tile))
    assert keys < first


def test_keys_alone_have_it_where_values_have_gates_too():
    """The product of two growths of up to 60 nats each would be more than float32 holds."""
    kernel = kernel_of("gla_kv", "fused")
    made, (scan,) = assigns(kernel.lines), kernel.scans
    decays = {n: x.mild for n, x in made.items() if n.startswith("gate_") and n.endswith("_to_end")}
    assert isinstance(decays["gate_k_to_end"], Ref) and "_up_anchored" in decays["gate_k_to_end"].name
    assert {r.name for r in refs(decays["gate_v_to_end"])} == {"gate_v_up_anchored", "gate_v_rest"}
    assert scan.late == ref("gate_k_late", WHOLE)


@pytest.mark.parametrize("role", ["states", "key_gradients", "value_gradients", "fused_value_gradients"])
def test_others_do_not(role):
    kernel = kernel_of("gla", role)
    assert not [n for n in assigns(kernel.lines) if n.endswith(("_soon", "_late"))]
    assert all(scan.late is None for scan in kernel.scans)


def value(expr, given: dict[str, float]) -> float:
    """An expression of one number a tile."""
    match expr:
        case Ref(name=name):
            return given[name]
        case _ if not hasattr(expr, "args"):
            return float(expr.value)
    x, y = (value(arg, given) for arg in expr.args)
    return {"mul": x * y, "add": x + y}[expr.function]


def run(lines: list[Line], scan: Scan, mild: bool, given: dict[str, float]) -> dict[str, float]:
    """What lines and a scan make of one number a tile."""
    given = dict(given)
    for line in lines:
        match line:
            case Assign(name=name, expr=expr, mild=other):
                given[name] = value(other if mild and other is not None else expr, given)
    state = value(scan.update, given) + sum(given[d.x.name] * given[d.y.name] for d in scan.added)
    return given | {"next": state * (1.0 if scan.late is None else given[scan.late.name])}


def test_both_forms_give_the_same_numbers():
    """With and without, in runs for mild gates and in others."""
    given = {"k": 3.0, "v": 5.0, "S": 13.0, "decay": 0.5, "g_whole": 0.125, "%UNIT": 0.25}
    given |= {"g_up": 4.0 * 0.25, "g_rest": 0.125 / 0.25}  # a unit less, and a unit more
    lines: list[Line] = [DECAY, FADED]
    changed, (after,) = joined(lines, (FORWARD,))
    assert changed != lines
    for mild in (False, True):
        assert run(changed, after, mild, given)["next"] == run(lines, FORWARD, mild, given)["next"]


@pytest.mark.parametrize(
    ("lines", "scan"),
    [
        ([DECAY, FADED, READ], FORWARD),  # both: the one would have to leave the factor in
        ([DECAY, FADED, READ], BACK),
        ([DECAY, FADED, Assign("more", KEYS, ref("k_to_end", KEYS))], FORWARD),
        ([DECAY, FADED, Assign("more", KEYS, apply("neg", ref("g_to_end", KEYS)))], FORWARD),
        ([replace(DECAY, mild=None), FADED], FORWARD),
        ([DECAY, replace(FADED, rounded="")], FORWARD),
    ],
    ids=["read and added", "read", "read by more", "scales more", "no growth", "not for dots"],
)
def test_what_something_else_needs_stays(lines, scan):
    assert joined(lines, (scan,)) == (lines, (scan,))
