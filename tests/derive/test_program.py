"""What derive promises: forward intervals, fresh names, a statement for every gradient, nothing dead."""

from __future__ import annotations

import pytest

from glagen.check import check
from glagen.derive import derive
from glagen.ir.chunk import END, START, Carry, Contract, GateGradient, Map, Point, inputs_of
from glagen.ir.schedule import Options
from glagen.schedule import schedule
from tests.mutation.judge import SPECS, document_of


@pytest.fixture(params=SPECS)
def program(request):
    return derive(check(document_of(request.param)))


def decays_of(statement):
    match statement:
        case Contract(decays=decays) | Carry(decays=decays):
            return decays
        case GateGradient(crossings=crossings):
            return tuple(d for c in crossings for d in (c.decay, *c.factors))
        case _:
            return ()


def test_every_decay_runs_forward(program):
    """From the chunk's start or a writing step to a reading step or the chunk's end."""
    axes = {g.name: g.axes for g in program.gates}
    for statement in (*program.forward, *program.backward):
        for decay in decays_of(statement):
            assert decay.lower in (START, Point("s")) and decay.upper in (END, Point("t"), Point("t", True))
            assert decay.axes == axes[decay.gate]
            late = isinstance(statement, Contract) and statement.order == "<=" and decay.upper.before
            assert not late, "at s = t the interval would run backward"


def test_names_are_defined_once_and_before_use(program):
    declared = {d.name for d in program.recurrence.declarations}
    known = declared | {s.name for s in program.states} | {s.adjoint_end for s in program.states}
    known |= set(program.cotangents)
    for statement in (*program.forward, *program.backward):
        assert set(inputs_of(statement)) <= known, statement.out
        assert statement.out.name not in known, f"{statement.out} is defined twice"
        known.add(statement.out.name)
    assert {p.name for g in program.gradients for p in g.parts} <= known


def test_every_statement_leads_somewhere(program):
    wanted = {o.name for o in program.outputs} | {s.end for s in program.states} | {s.adjoint for s in program.states}
    wanted |= {p.name for g in program.gradients for p in g.parts}
    for statement in reversed((*program.forward, *program.backward)):
        assert statement.out.name in wanted, f"nothing uses {statement.out}"
        wanted |= set(inputs_of(statement))


def test_every_differentiable_input_has_a_gradient(program):
    kinds = {d.name: d.kind for d in program.recurrence.declarations}
    assert [g.name for g in program.gradients] == [n for n, k in kinds.items() if k in ("input", "parameter")]
    assert all(g.parts for g in program.gradients)


def test_a_gradient_has_the_axes_of_its_input(program):
    declared = {d.name: d.axes for d in program.recurrence.declarations}
    for gradient in program.gradients:
        for part in gradient.parts:
            assert [a for a in part.indices if a != "t"] == [a for a in declared[gradient.name] if a != "t"]


def test_every_decay_of_the_forward_is_crossed_once(program):
    """A gate's gradient has a crossing for each Decay of each forward statement, no more and no fewer."""
    crossed = [c.decay for s in program.backward if isinstance(s, GateGradient) for c in s.crossings]
    used = [d for s in program.forward for d in decays_of(s)]
    gates = {s.gate for s in program.backward if isinstance(s, GateGradient)}
    assert sorted(map(str, crossed)) == sorted(str(d) for d in used if d.gate in gates)


def test_a_path_between_two_steps_is_found_by_either(program):
    """Each a factor of the product that has the decay, with what the adjoint of that product gives for it."""
    made = {s.out.name: s for s in program.backward}
    for gradient in (s for s in program.backward if isinstance(s, GateGradient)):
        for crossing in gradient.crossings:
            between = crossing.upper is not None and crossing.lower is not None
            assert crossing.rows is None if not between else crossing.rows or crossing.decay.axes
            for (value, part), end in zip(crossing.rows or (), ("t", "s"), strict=False):
                assert end in value.indices and value.indices == part.indices
                assert crossing.decay in made[part.name].decays


def test_the_backward_has_the_adjoints_of_the_forward(program):
    """Two contractions for each contraction, with the same decays; a carry the other way for each carry."""
    forward = [s for s in program.forward if isinstance(s, Contract)]
    backward = [s for s in program.backward if isinstance(s, Contract)]
    assert sorted(map(str, (s.decays for s in forward for _ in (1, 2)))) == sorted(str(s.decays) for s in backward)
    carries = [s for s in program.backward if isinstance(s, Carry)]
    assert [s.reverse for s in carries] == [True] * len(program.states)
    assert not any(isinstance(s, Map) and not s.out.indices for s in program.forward)


@pytest.mark.parametrize("name", ["linear_attn_norm", "mlstm"])
def test_a_normalisers_ones_have_no_gradient(name):
    """Nor do kernels make one: what a normaliser writes depends on nothing that a call gives on the value side."""
    spec = check(document_of(name))
    for part in spec.parts:
        ones = [d for d in part.declarations if d.name == spec.one]
        assert all(d.timed and not d.differentiable for d in ones)
        assert spec.one not in {g.name for g in derive(part).gradients}
    kernels = {part.name: {k.name for k in schedule(derive(part), Options()).kernels} for part in spec.parts}
    normaliser = next(part.name for part in spec.parts if any(d.name == spec.one for d in part.declarations))
    assert "key_gradients" in kernels[normaliser] and "value_gradients" not in kernels[normaliser]
