"""States wait for what a chunk adds where both of its operands are computed, and nowhere else."""

from __future__ import annotations

import pytest

from glagen.emit import emit
from glagen.errors import SpecError
from glagen.ir.chunk import Operand
from glagen.ir.expr import apply, ref
from glagen.ir.kernel import Blocks, Dot, Load, Scan, read, written
from glagen.ir.schedule import Options, Schedule
from glagen.ir.tuned import ADJOINT_GIVEN
from glagen.pipeline import plan
from glagen.schedule.given import has_lefts_in_memory
from glagen.schedule.turn import single_lines
from glagen.schedule.wait import adds_from_shared, had_better_wait, waiting
from tests.mutation.judge import COVERS, SPECS, plan_of
from tests.numerics.helpers import document_of, spec_text
from tests.strategies import COMPUTED_GRADIENTS, COMPUTED_VALUES, READ_TWICE

STATE = ("i", "j")
KEYS, VALUES = ("t", "i"), ("t", "j")


def planned(text: str, cover: str = "auto") -> Schedule:
    return plan(document_of(text), Options(cover=cover))


def waits(schedule: Schedule) -> set[str]:
    return {k.name for k in schedule.kernels if k.waits}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (spec_text("gla_kv"), {"fused"}),
        (COMPUTED_VALUES, {"fused"}),  # its walk back adds gradients of outputs, as they lie in memory
        (COMPUTED_GRADIENTS, {"fused_value_gradients"}),  # and here these are computed
        (spec_text("gla"), set()),
        (spec_text("gla_v"), set()),
        (spec_text("simple_gla"), set()),
    ],
    ids=["both sides", "values computed", "gradients computed", "keys", "values", "scalar"],
)
def test_states_wait_whose_operands_are_both_computed(text, expected):
    schedule = planned(text)
    assert waits(schedule) == expected
    for kernel in schedule.kernels:
        assert all(scan.axes == STATE for scan in kernel.scans if scan.waits), "rows are those of keys"
        assert not kernel.waits or (kernel.name in schedule.from_shared and kernel.name not in schedule.stored_by_tma)


@pytest.mark.parametrize("old_new", [("chunk: auto", "chunk: 64"), ("", "")], ids=["as many rows as wgmma", "halves"])
def test_they_do_not_where_wgmma_would_multiply_more_than_that(old_new):
    text = spec_text("gla_kv").replace(*old_new)
    schedule = planned(text, "auto" if old_new[0] else "bisect")
    assert not waits(schedule) and not schedule.faster_fused
    assert not {*schedule.from_shared} - {ADJOINT_GIVEN}, "which carries what it reads as it lies"


def test_a_walk_back_that_adds_otherwise_stays_in_memory():
    """Of two products one has its operands computed: they do not wait, and may not be wgmma's."""
    scaled = "sum(i, q[t,i] * S[t,i,j])\n  - p[t,j] = tanh(v[t,j]) * sum(i, k[t,i] * S[t,i,j])"
    schedule = planned(COMPUTED_VALUES.replace("silu(v[t,j])", "v[t,j]").replace("sum(i, q[t,i] * S[t,i,j])", scaled))
    assert schedule.from_shared == ("fused", "fused_given") and not waits(schedule)
    assert not {"fused_value_gradients", "fused_given_value_gradients"} & {k.name for k in schedule.kernels}


def test_tiles_are_narrower_of_the_kernel_that_waits_alone():
    for text, name in ((COMPUTED_VALUES, "fused"), (COMPUTED_GRADIENTS, "fused_value_gradients")):
        assert f'if kernel in ("{name}",):' in emit(planned(text), "0" * 16)


@pytest.mark.parametrize("text", [COMPUTED_GRADIENTS, COMPUTED_VALUES], ids=["gradients", "values"])
def test_what_may_be_wgmma_has_no_left_operand_that_was_just_computed(text):
    schedule = planned(text)
    shared = [k for k in schedule.kernels if k.name in schedule.from_shared]
    assert shared and all(adds_from_shared(k) or has_lefts_in_memory(k) for k in shared)


@pytest.mark.parametrize(("name", "cover"), [(n, c) for n in SPECS for c in COVERS])
def test_nor_have_those_of_specs(name, cover):
    schedule = plan_of(name, cover)
    for kernel in schedule.kernels:
        assert kernel.name not in schedule.from_shared or adds_from_shared(kernel) or has_lefts_in_memory(kernel)


def test_no_name_of_a_spec_is_that_of_what_waits():
    with pytest.raises(SpecError, match="could meet a name of the generated code"):
        document_of(spec_text("gla_kv").replace("q: [t, i]", "k_to_end_waiting: [t, i]"))


def scan(update, *added: Dot) -> Scan:
    return Scan("S", update, "S_initial", "S_final", None, added=added)


def test_one_operand_in_memory_is_enough_to_add_at_once():
    dot = Dot("S", STATE, Operand("k_to_end", KEYS), Operand("v", VALUES), accumulate=True)
    decayed = apply("mul", ref("S", STATE), ref("whole", ("i",)))
    assert had_better_wait([scan(decayed, dot)], [Load("k", KEYS)])
    assert not had_better_wait([scan(decayed, dot)], [Load("v", VALUES)])
    assert not had_better_wait([scan(decayed)], [Load("k", KEYS)]), "nothing is added"
    more = apply("add", decayed, ref("other", STATE))
    assert not had_better_wait([scan(more, dot)], [Load("k", KEYS)]), "before the first chunk there is no other"
    (found,) = waiting([scan(decayed, dot)])
    assert found.waits and found.added == (dot,)


def test_a_turn_more_adds_what_the_last_chunk_made():
    """And stores nothing of a chunk that is not there."""
    text = emit(planned(spec_text("gla_kv")), "0" * 16)
    body = text[text.index("def gla_kv_fused_kernel(") : text.index("def gla_kv_adjoint_states_kernel(")]
    assert "for n in range(0, chunks + 1):" in body and "left = tl.where(n < chunks, length - chunk * CHUNK, 0)" in body
    assert "in_ij = in_K[:, None] & in_V[None, :] & (n < chunks)" in body
    reads, scores = "read_inter_undecayed = tl.dot(query_from_start", "scores_block = tl.dot(query_down_anchored"
    assert body.index("k_up_anchored = (k") < body.index(reads) < body.index(scores)
    turn = body.index("S += tl.dot(tl.trans(k_to_end_waiting.to(WIDE)), v_to_end_waiting.to(WIDE)")
    assert turn < body.index("tl.store(S_ptr") < body.index("v_to_end_waiting = v_to_end.to(WIDE)")
    for name, one in (("gate_k_soon", "[BLOCK_K]"), ("gate_v_whole", "[BLOCK_V]"), ("gate_k_late", "[BLOCK_K]")):
        assert f"{name}_waiting = tl.full({one}, 1.0, tl.float32)" in body and f"{name}_waiting = {name}\n" in body
    for name, none in (("k_to_end", "[CHUNK, BLOCK_K]"), ("v_to_end", "[CHUNK, BLOCK_V]")):
        assert f"{name}_waiting = tl.zeros({none}, dtype=WIDE)" in body


@pytest.mark.parametrize("text", [spec_text("gla_kv"), COMPUTED_VALUES, COMPUTED_GRADIENTS, READ_TWICE])
def test_a_state_that_waits_is_read_after_all_that_is_multiplied_with_it(text):
    """Beside scores in forwards; walking back keys need what blocks make, and have decays of their own."""
    for kernel in planned(text).kernels:
        if kernel.waits and not (kernel.late and kernel.of_gradients):
            known = {scan.tile for scan in kernel.scans}
            made = {name for line in kernel.lines for name in written(line)}
            for x in single_lines(kernel.lines):
                assert set(read(x)) & made <= known | {x.name}
                known |= set(written(x))
            guards = [x for x in kernel.lines if isinstance(x, Blocks) and x.kind == "guard"]
            dots = [x for x in (guards[0].body if guards else kernel.lines) if isinstance(x, Dot)]
            beside = [n for n, x in enumerate(dots) if x.y.name in {s.tile for s in kernel.scans}]
            assert len(beside) == (kernel.direction == "forward")
            assert all("s" in dots[n + 1].axes for n in beside)
