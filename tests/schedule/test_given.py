"""Walks on chip that are given their operands: what is left to them, and who makes the rest."""

from __future__ import annotations

import pytest

from glagen.ir.expr import Apply, factors, ref, refs, walk
from glagen.ir.kernel import Assign, Blocks, Dot, Kernel, Load, lines_of, read, written
from glagen.ir.schedule import Options, Schedule
from glagen.ir.tuned import GIVEN, GIVEN_BACK, GIVEN_KERNELS, SHARED, SHARING
from glagen.pipeline import plan
from glagen.schedule.given import has_lefts_in_memory
from glagen.schedule.reach import is_growth
from glagen.schedule.tiles import WGMMA_ROWS
from glagen.schedule.turn import single_lines
from tests.numerics.helpers import document_of, operands_shared, spec_text, twice_as_long, walks_given

HEADS = (200, 300)
WITH_GATES_ON_KEYS = ["gla", "gla_sigmoid", "hgrn2", "rwkv6"]


def planned(text: str) -> Schedule:
    document = document_of(text)
    found = plan(document, Options(tuned=twice_as_long(document, 9, HEADS)))
    assert isinstance(found, Schedule)
    return found


@pytest.fixture(scope="module")
def kernels() -> dict[str, Kernel]:
    return {kernel.name: kernel for kernel in planned(spec_text("gla")).kernels}


@pytest.mark.parametrize("name", GIVEN_KERNELS)
def test_walks_are_left_with_products_of_what_lies_in_memory(kernels, name):
    kernel = kernels[name]
    loads = {line.name: line for line in kernel.lines if isinstance(line, Load)}
    dots = [*(line for line in kernel.lines if isinstance(line, Dot)), *(d for s in kernel.scans for d in s.added)]
    assert len(dots) == 3 and all(dot.x.name in loads for dot in dots)
    assert all(isinstance(line, Load | Dot) for line in kernel.lines), "nothing is computed"
    assert not kernel.judges and not kernel.runs_twice, "whatever the gates are"
    assert {scan.tile for scan in kernel.scans} == {"S" if name == GIVEN else "dS_end"}
    assert not any("j" in loads[given].axes for given in kernel.given)


def test_one_kernel_makes_all_that_both_walks_are_given(kernels):
    """Block by block of the columns that it loops over, and scores, which it sums over them, at last."""
    maker = kernels["scores"]
    stored = {store.target: store.axes for store in maker.stores}
    assert stored.keys() == {n.removesuffix("_T") for k in GIVEN_KERNELS for n in kernels[k].given}
    assert set(maker.given) == stored.keys() - {"scores"} and stored["scores"] == ("t", "s")
    assert maker.judges and maker.runs_twice and maker.direction is None
    (loop,) = (item for item in maker.body if not isinstance(item, Load | Assign | Dot) and len(lines_of(item)) > 1)
    made = {line.name: line for line in lines_of(loop) if isinstance(line, Assign)}
    assert set(maker.given) <= made.keys()
    assert any(isinstance(x, Apply) and x.function == "exp" for line in made.values() for x in walk(line.expr))
    outside = [x for x in made.values() if (x.mild or x.still_mild) and not is_growth(x, "gate_k")]
    assert [line.name for line in outside] == ["gate_k_to_end"] and outside[0].still_mild is None
    assert {x.name for x in refs(outside[0].mild)} == {"log_gate_k_whole", "log_gate_k_since"}


@pytest.mark.parametrize("name", WITH_GATES_ON_KEYS)
def test_what_walks_are_given_is_right_at_once_whatever_the_gates_are(name):
    """The first run makes it of sums of log gates, and of decays that scores have, times a power of two: of no growth,
    nor of anything that counts for mild gates alone."""
    maker = next(kernel for kernel in planned(spec_text(name)).kernels if kernel.name == "scores")
    makers = {n: line for line in single_lines(maker.lines) for n in written(line) if not isinstance(line, Load)}

    def leads(name: str) -> set[str]:
        return {name}.union(*(leads(n) for n in read(makers[name]) if n in makers))

    for given in maker.given:
        used = {n: makers[n] for n in leads(given)}
        growths = [
            n for n, x in used.items() if isinstance(x, Assign) for y in functions(x) if y in ("grow", "lowered")
        ]
        assert not growths, given
        raised = [n for n, x in used.items() if isinstance(x, Assign) and "raised" in functions(x)]
        units = [n for n, x in used.items() if isinstance(x, Assign) and ref("%UNIT") in factors(x.expr)]
        assert len(raised) == len(units) == given.startswith("query"), given
        mild = [n for n, x in used.items() if isinstance(x, Assign) and x.mild is not None]
        assert mild == ["gate_k_to_end"] * given.endswith("to_end"), given


def functions(line: Assign) -> set[str]:
    return {x.function for expr in (line.expr, line.mild) if expr for x in walk(expr) if isinstance(x, Apply)}


def test_the_walk_back_sums_over_the_same_decays(kernels):
    ahead, back = (set(kernels[name].given) for name in (GIVEN, GIVEN_BACK))
    assert {n.removesuffix("_T") for n in back} == ahead == {*back - {"scores_T"}, "scores"}


@pytest.fixture(scope="module")
def ungated() -> Schedule:
    document = document_of(spec_text("linear_attn"))
    found = plan(document, Options(tuned=walks_given(document, 9, HEADS)))
    assert isinstance(found, Schedule)
    return found


@pytest.mark.parametrize("name", GIVEN_KERNELS)
def test_without_gates_walks_are_given_scores_and_read_all_else_as_it_lies(ungated, name):
    """Numbers go to the tile with value columns, so that no left operand is computed."""
    kernel = next(k for k in ungated.kernels if k.name == name)
    assert [given.removesuffix("_T") for given in kernel.given] == ["scores"]
    assert name in ungated.from_shared and has_lefts_in_memory(kernel) and not ungated.doubled
    computed = [line for line in kernel.lines if isinstance(line, Assign)]
    assert all("j" in line.axes for line in computed) and len(computed) == 1, "a multiple of what is read, or of it"


@pytest.mark.parametrize("query", ["q[t,i]", "(-q[t,i])", "silu(q[t,i])", "(-silu(q[t,i]))"])
def test_walks_are_given_no_multiples_of_scores(query):
    """Which no kernel makes: numbers go to the other operand."""
    document = document_of(spec_text("linear_attn").replace("scale * q[t,i]", f"scale * {query}"))
    found = plan(document, Options(tuned=walks_given(document, 9, HEADS)))
    assert isinstance(found, Schedule)
    for kernel in (k for k in found.kernels if k.name in GIVEN_KERNELS):
        matrices = [x.name for x in kernel.lines if isinstance(x, Load) and "s" in x.axes]
        assert [name.removesuffix("_T") for name in matrices] == ["scores"]
        assert kernel.name in found.from_shared


def test_their_scores_are_no_others(ungated):
    """A kernel makes them for these walks alone, unless a table says that others load them too."""
    maker = next(k for k in ungated.kernels if k.name == "scores")
    assert not maker.judges and not maker.given
    assert "scores" not in {x.kernel for x in ungated.tuned}


def test_walks_of_fewer_rows_than_wgmma_has_are_given_nothing():
    document = document_of(spec_text("linear_attn").replace("chunk: auto", "chunk: 32"))
    found = plan(document, Options(tuned=walks_given(document, 9, HEADS)))
    assert isinstance(found, Schedule) and not {*GIVEN_KERNELS} & {kernel.name for kernel in found.kernels}


@pytest.mark.parametrize("name", ["rwkv6", "hgrn2", "gla_sigmoid"])
def test_whatever_gates_on_keys_are_made_of_walks_are_given_as_much(name):
    found = planned(spec_text(name))
    kernels = {kernel.name: kernel for kernel in found.kernels}
    assert found.doubled and 2 * found.chunk == WGMMA_ROWS
    for walk_name in GIVEN_KERNELS:
        kernel = kernels[walk_name]
        assert sum("i" in x.axes and "t" in x.axes for x in kernel.lines if isinstance(x, Load)) == 2
        assert walk_name in found.from_shared and has_lefts_in_memory(kernel)
        assert not kernel.judges and not kernel.runs_twice, "whatever the gates are"


@pytest.mark.parametrize("name", ["gla_v", "gla_kv", "mamba2"])
def test_no_walk_is_given_operands_where_chunks_have_no_more_steps(name):
    found = planned(spec_text(name))
    assert not found.doubled and not {*GIVEN_KERNELS} & {kernel.name for kernel in found.kernels}


@pytest.mark.parametrize("name", ["simple_gla", "retnet", "lightning_attn"])
def test_with_scalar_gates_walks_are_given_scores_and_numbers_a_step(name):
    """In chunks of as many rows as wgmma has; keys and queries are read as they lie."""
    found = planned(spec_text(name))
    kernels = {kernel.name: kernel for kernel in found.kernels}
    assert found.doubled and 2 * found.chunk == WGMMA_ROWS
    for kernel in (kernels[name] for name in GIVEN_KERNELS):
        numbers = {"gate_from_start", "gate_to_end", "gate_whole"}
        assert {given.removesuffix("_T") for given in kernel.given} == {"scores", *numbers}
        assert kernel.name in found.from_shared and has_lefts_in_memory(kernel)
    assert not kernels["scores"].runs_twice and not kernels["scores"].judges


@pytest.fixture(scope="module")
def sharing() -> dict[str, Kernel]:
    return shared(spec_text("gla_kv"))


def shared(text: str) -> dict[str, Kernel]:
    document = document_of(text)
    found = plan(document, Options(tuned=operands_shared(document, 9, HEADS)))
    assert isinstance(found, Schedule)
    return {kernel.name: kernel for kernel in found.kernels}


def test_a_backward_with_gates_on_both_sides_shares_what_it_multiplies(sharing):
    """What one kernel makes of keys, and one of values, is just what three others are given."""
    made = {name: {store.target for store in sharing[name].stores} for name in SHARED}
    assert made["key_operands"] == {"scores", "query_from_start", "k_to_end", "gate_k_whole"}
    assert made["value_operands"] == {"dscores", "do_from_start", "v_to_end", "gate_v_whole"}
    given = {name: set(sharing[name].given) for name in SHARING}
    assert set().union(*given.values()) == set().union(*made.values())
    assert given["key_gradients_given"] == made["value_operands"]
    assert given["value_gradients_given"] == made["key_operands"]
    for name in SHARING:
        loads = {line.name for line in sharing[name].lines if isinstance(line, Load)}
        dots = [
            *(x for x in sharing[name].lines if isinstance(x, Dot)),
            *(d for s in sharing[name].scans for d in s.added),
        ]
        assert dots and all({dot.x.name, dot.y.name} <= loads for dot in dots), "with states, or added to them"


def test_scores_that_are_shared_are_rounded_once(sharing):
    """Where they are kept: they are made of what nothing rounds, and nothing takes them in two terms."""
    for name in SHARED:
        dots = [x for line in sharing[name].lines if isinstance(line, Blocks) for x in line.body if isinstance(x, Dot)]
        assert any(dot.exact for dot in dots)
        rounded = {x.name for x in single_lines(sharing[name].lines) if isinstance(x, Assign) and x.rounded}
        assert not any(dot.exact and {dot.x.name, dot.y.name} & rounded for dot in dots)
    alone = {name: [x.split for x in single_lines(sharing[name].lines) if isinstance(x, Dot)] for name in sharing}
    assert not any(any(alone[name]) for name in SHARING)
    assert any(alone["key_gradients"]) and any(alone["value_gradients"])


def test_each_side_finds_out_whether_its_own_gates_are_strong(sharing):
    for name, axis in zip(SHARED, "ij", strict=True):
        assert [judge.axis for judge in sharing[name].judges] == [axis]
    assert not any(sharing[name].judges for name in SHARING)


PARAMETER = "exp(gk[t,i] + gv[t,j] - exp(a[i]))"  # whose gradient adds up what the rounding of states adds to it


@pytest.mark.parametrize("gates", ["exp(gk[t,i])", "exp(gv[t,j])", PARAMETER], ids=["keys", "values", "parameter"])
def test_others_share_nothing(gates):
    text = spec_text("gla_kv").replace("exp(gk[t,i] + gv[t,j])", gates)
    unused = [name for name in ("gk", "gv") if name not in gates]
    text = "\n".join(line for line in text.splitlines() if not any(line.strip().startswith(f"{x}:") for x in unused))
    if gates == PARAMETER:
        text = text.replace("  scale:", "  a: {axes: [i], kind: parameter}\n  scale:")
    assert not {*SHARED, *SHARING} & shared(text).keys()


def test_without_a_row_nothing_is_shared():
    found = plan(document_of(spec_text("gla_kv")), Options(tuned=()))
    assert isinstance(found, Schedule)
    assert not {*SHARED, *SHARING} & {kernel.name for kernel in found.kernels}


def test_numbers_of_steps_are_made_where_they_are_used():
    """Those of a matrix's diagonal, which bounded gates have a line for outside of blocks."""
    text = spec_text("gla_kv").replace('"[-inf, 0]"', '"[-1, 0]"').replace("chunk: auto", "chunk: 16")
    kernels = shared(text)
    assert any("diagonal" in x.name for x in single_lines(kernels["key_gradients_given"].lines))
    given = [x for k in SHARING for x in kernels[k].lines if isinstance(x, Load) and x.name in kernels[k].given]
    assert given and not any(x.axes == ("t",) for x in given)
