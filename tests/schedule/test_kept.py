"""What gradients of values read of states, kept by others: who keeps what, and for which specs."""

from __future__ import annotations

from dataclasses import replace

import pytest

from glagen.errors import Source
from glagen.ir.kernel import Assign, Dot, Kernel, Load, Loop, read, written
from glagen.ir.schedule import Options, Schedule
from glagen.ir.tuned import KEPT_BACK, KEPT_BY_KEYS, KEPT_KERNELS, OF_KEPT, Tuned
from glagen.loader import import_text
from glagen.pipeline import compile_spec, plan
from glagen.schedule.tiles import names_of
from tests.numerics.helpers import both_sides, document_of, reads_kept, spec_text

GLA_V = spec_text("gla_v")
STATES = {"S", "dS_end"}


def planned(text: str) -> Schedule:
    document = document_of(text)
    found = plan(document, Options(tuned=reads_kept(document, 9, (200, 300))))
    assert isinstance(found, Schedule)
    return found


def kernels(text: str) -> dict[str, Kernel]:
    return {kernel.name: kernel for kernel in planned(text).kernels}


@pytest.fixture(scope="module")
def found() -> dict[str, Kernel]:
    return kernels(GLA_V)


def test_gradients_of_values_load_no_state(found):
    """But what the forward, the walk back and gradients of keys keep, each what it has at hand, and no more of it."""
    loads = [line.name for line in found[OF_KEPT].lines if isinstance(line, Load)]
    assert not STATES & {*loads} and len(loads) == len({*loads}) and {*found[OF_KEPT].given} <= {*loads}
    kept = [name for kernel in ("fused", KEPT_BACK, KEPT_BY_KEYS) for name in found[kernel].given]
    assert sorted(kept) == sorted(found[OF_KEPT].given)
    assert {store.target for store in found[OF_KEPT].stores} == {"dv", "dg"}


@pytest.mark.parametrize(
    ("kernel", "states", "others"),
    [("fused", {"S"}, {"o"}), (KEPT_BACK, {"dS_end"}, set()), (KEPT_BY_KEYS, STATES, {"dq", "dk"})],
)
def test_what_is_kept_is_made_of_states_as_they_are(found, kernel, states, others):
    """No gate is in it, so that it is right whatever these are."""
    kept = found[kernel]
    assert {store.target for store in kept.stores} == {*others, *kept.given}
    makers = [line for line in kept.lines if {*kept.given} & {*written(line)}]
    assert makers and all(states <= {*read(line)} and isinstance(line, Assign | Dot) for line in makers)
    assert not [name for line in makers for name in read(line) if "gate" in name]


def test_sums_of_states_times_their_gradients_come_first(found):
    """Next to the loads of these, before any product."""
    (loop,) = (item for item in found[KEPT_BY_KEYS].body if isinstance(item, Loop))
    first = next(n for n, line in enumerate(loop.body) if not isinstance(line, Load))
    assert {*read(loop.body[first])} == STATES and not any(isinstance(x, Load) for x in loop.body[first:])


def test_those_of_both_sides_are_for_mild_gates_alone(found):
    """And the walk back for all: it has no growths."""
    for name in (KEPT_BY_KEYS, OF_KEPT):
        assert found[name].runs_twice and names_of(found[name]) == (name,)
    assert not found[KEPT_BACK].runs_twice and found[KEPT_BACK].judges == found["adjoint_states"].judges


@pytest.mark.parametrize(
    "text",
    [
        spec_text("gla"),
        spec_text("gla_kv"),
        spec_text("linear_attn"),
        spec_text("simple_gla"),
        GLA_V.replace("  scale:", "  u: {kind: parameter, axes: [j]}\n  scale:").replace("* v[t,j]", "* u[j] * v[t,j]"),
    ],
    ids=["gates on keys", "on both sides", "none", "scalar", "parameter"],
)
def test_no_other_spec_has_them(text):
    assert not {*KEPT_KERNELS} & kernels(text).keys()


def test_there_are_none_where_nobody_measured_them():
    found = plan(document_of(GLA_V), Options(tuned=()))
    assert isinstance(found, Schedule) and not {*KEPT_KERNELS} & {kernel.name for kernel in found.kernels}


@pytest.mark.parametrize("missing", KEPT_KERNELS)
def test_all_of_them_are_to_be_measured(monkeypatch, missing):
    """Or the forward keeps nothing; nor if no program could hold all columns of keys."""
    table = reads_kept(document_of(GLA_V), 0, (200, 300))
    rows = [x for x in table if x.kernel != missing]
    narrow = [replace(x, block_K=128) if x.kernel == KEPT_BACK else x for x in table]
    for tuned, keeps in ((table, True), (rows, False), (narrow, False)):
        module = module_of(tuple(tuned))
        torch = pytest.importorskip("torch")
        assert module._keeps_reads(200, 300, torch.bfloat16) is keeps


@pytest.mark.parametrize("table", [both_sides, reads_kept])
def test_runs_for_strong_gates_take_as_many_chunks_in_turn(table):
    """As kernels of mild gates took, of which they make the others: also where only those have rows in a table."""
    module = module_of(table(document_of(GLA_V), 0, (200, 300)))
    for role in ("key_gradients", "value_gradients"):
        assert "RUN" in getattr(module, f"gla_v_{role}_kernel").arg_names


def module_of(table: tuple[Tuned, ...]):
    pytest.importorskip("triton")
    return import_text(compile_spec(Source("gla_v.yaml", GLA_V), Options(tuned=table)))
