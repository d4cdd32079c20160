"""Tables of measured configurations: read, merged, written, and what they make of a module."""

from __future__ import annotations

import json
from dataclasses import asdict, replace

import pytest
import torch
from click.testing import CliRunner

from glagen.cli import main
from glagen.errors import Source
from glagen.ir.kernel import Blocks
from glagen.ir.schedule import Options
from glagen.ir.tuned import (
    CROWDED,
    GIVEN,
    GIVEN_KERNELS,
    IN_HALVES,
    STRONG,
    Tuned,
    merged,
    read_table,
    write_table,
)
from glagen.loader import import_text
from glagen.parse import parse
from glagen.pipeline import compile_spec, plan
from glagen.schedule.sums import adds_in_order
from glagen.schedule.tiles import fused_tiles, gated_sides, shipped
from tests.mutation.judge import plan_of
from tests.numerics.helpers import ROOT, spec_text

ONE = Tuned(9, "K", 32, "outputs", "bfloat16", 128, 128, 64, 128, 8, 2, 1, 0.85, 0.7, "B1", "a GPU, torch 2, Triton 3")
FEWER = replace(ONE, kernel=f"fused{CROWDED}", block_K=128, warps=4, stages=3)


def test_a_table_comes_back(tmp_path):
    path, other = tmp_path / "tuned.json", replace(ONE, kernel="states")
    write_table(path, [ONE, other])
    assert read_table(path) == (ONE, other)


def test_later_entries_take_the_place_of_earlier_ones():
    better, other = replace(ONE, warps=4, measured=0.6), replace(ONE, K=64)
    assert merged([ONE, other], [better]) == (other, better)


def test_the_shipped_table_is_in_order():
    assert shipped() == merged(shipped())


def test_a_crowd_has_tiles_like_those_it_is_in_the_place_of():
    """By which its programs were counted: it is not taken beside others."""
    crowded = [x for x in shipped() if x.kernel.endswith(CROWDED)]
    assert {(x.gates, x.kernel.removesuffix(CROWDED)) for x in crowded} == {("K", "fused"), ("KV", GIVEN), ("", GIVEN)}
    rule = fused_tiles(plan_of("gla", "").program).bfloat16
    for x in crowded:
        like = [y for y in shipped() if y.key == replace(x, kernel=x.kernel.removesuffix(CROWDED)).key]
        assert (x.block_K, x.block_V) == ((like[0].block_K, like[0].block_V) if like else rule)


@pytest.mark.parametrize(
    ("old", "new", "fits"),
    [
        ("", "", True),
        ("name: gla\n", "name: another\n", True),
        ("q[t,i] * S", "silu(q[t,i]) * S", False),
        ("k[t,i] * v", "sigmoid(k[t,i]) * v", False),
        ("S[t,i,j])\n", "(S[t-1,i,j] + k[t,i] * v[t,j]))\n", False),
    ],
    ids=["as it is", "by any name", "queries computed", "keys computed", "a write of its own step"],
)
def test_half_as_many_threads_take_what_leaves_them_room(old, new, fits, monkeypatch):
    """Of kernels that compute more of tensors none does: they were slower so."""
    pytest.importorskip("triton")
    text = spec_text("gla")
    assert old in text
    module = import_text(compile_spec(Source("gla.yaml", text.replace(old, new)), Options(tuned=(FEWER,))))
    assert (("fused_crowded", 9, torch.bfloat16, 128, 128) in getattr(module, "TUNED", {})) == fits
    if fits:
        monkeypatch.setattr(module, "_multiprocessors", lambda: 132)
        monkeypatch.setattr(module, "_capability", lambda: 9)
        config = module._config("fused", 128, 128, torch.bfloat16)
        found = {n: module._crowded("fused", config, n, 128, 128, torch.bfloat16) for n in (1, 132, 133, 1000)}
        assert [x["num_warps"] for x in found.values()] == [8, 8, 4, 4] and found[1] is config
        assert {**found[133], "num_warps": 8} == config  # tiles alike, and all else
        narrow = {**config, "BLOCK_V": 64}  # its programs were counted by other tiles
        assert module._crowded("fused", narrow, 1000, 128, 128, torch.bfloat16) is narrow
        assert module._crowded("fused", config, 1000, 64, 128, torch.bfloat16) is config
        assert module._crowded("fused", config, 1000, 128, 128, torch.float16) is config


def test_small_tiles_of_strong_walks_have_fewer_registers_where_programs_are_many(monkeypatch):
    """Two of the usual size a multiprocessor run at once anyway. Wider tiles need all, and so do those of a rule."""
    pytest.importorskip("triton")
    module = import_text(compile_spec(Source("gla.yaml", spec_text("gla")), Options()))
    monkeypatch.setattr(module, "_capability", lambda: 9)
    monkeypatch.setattr(module, "_multiprocessors", lambda: 132)
    small, wide = (module._config("fused", n, n, torch.bfloat16) for n in (64, 128))
    assert module._spared(small, 264) is small
    assert module._spared(small, 265) == small | {"maxnreg": 128}
    assert module._spared(small, 265) is module._spared(small, 1000)  # what was built is looked up by that
    assert module._spared(wide, 1000) is wide
    ruled = module._config("fused", 64, 64, torch.float16)
    assert module._spared(ruled, 1000) is ruled


@pytest.mark.parametrize(("name", "spares"), [("gla", True), ("hgrn2", True), ("gla_v", False), ("gla_kv", False)])
def test_which_walks_may_have_fewer_registers(name, spares):
    """Those given scores of strong gates; what holds values back would spill. Without a table nobody has."""
    source = Source(f"{name}.yaml", spec_text(name))
    assert ("_spared(" in compile_spec(source, Options())) == spares
    assert "_spared(" not in compile_spec(source, Options(tuned=()))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "not JSON"),
        ("{}", "not a list"),
        ("[1]", "entry 0 does not have the keys architecture, gates"),
        (json.dumps([asdict(ONE) | {"more": 1}]), "entry 0 does not have the keys"),
        (json.dumps([asdict(ONE), asdict(ONE) | {"warps": "4"}]), "entry 1: `warps` is '4'"),
        (json.dumps([asdict(ONE) | {"stages": True}]), "`stages` is True"),
        (json.dumps([asdict(ONE) | {"block_K": 48}]), "`block_K` is 48, not a power of two"),
        (json.dumps([asdict(ONE) | {"stages": -3}]), "`stages` is -3, not 1 or more"),
        (json.dumps([asdict(ONE) | {"dtype": "bflot16"}]), "`dtype` is 'bflot16', not one of bfloat16"),
        ("[" * 100_000, "not JSON"),
        (json.dumps([asdict(ONE) | {"V": 0}]), "`V` is 0, not a power of two"),
    ],
)
def test_what_is_no_table_is_told(text, message, tmp_path):
    path = tmp_path / "tuned.json"
    path.write_text(text)
    with pytest.raises(ValueError, match=message.replace("[", r"\[")):
        read_table(path)
    command = ["compile", str(ROOT / "specs" / "gla.yaml"), "-o", str(tmp_path), "--tuned", str(path)]
    result = CliRunner().invoke(main, command)
    assert result.exit_code == 2 and message in result.output and not (tmp_path / "gla.py").exists()


def test_a_module_takes_what_was_measured_for_its_kernels(monkeypatch):
    pytest.importorskip("triton")
    source = Source("gla.yaml", spec_text("gla"))
    others = (replace(ONE, gates="V"), replace(ONE, chunk=16))
    assert compile_spec(source, Options(tuned=others)) == compile_spec(source, Options(tuned=()))
    module = import_text(compile_spec(source, Options(tuned=(ONE, *others))))

    def row(kernel="outputs", capability=9, dtype=torch.bfloat16, K=128, V=128):
        monkeypatch.setattr(module, "_capability", lambda: capability)
        config = module._config(kernel, K, V, dtype)
        return tuple(config[n] for n in ("BLOCK_K", "BLOCK_V", "num_warps", "num_stages"))

    assert row() == row(K=100, V=65) == (64, 128, 8, 2)
    rule = (128, 128, 4, 1)
    assert row(capability=8) == row(K=256) == row(V=256) == rule
    assert row(K=64) == (64, 128, 4, 1) and row(dtype=torch.float16) == (64, 64, 4, 1)
    assert row("value_gradients") == rule


@pytest.mark.parametrize(
    ("name", "kernel", "fits"),
    [
        ("gla", "outputs", True),
        ("gla", "states", False),
        ("linear_attn", "outputs", False),
        ("a factor of each step", "key_gradients", False),
    ],
    ids=["that runs twice", "that walks", "without gates", "with a sum for each tile"],
)
def test_strong_gates_may_have_tiles_of_their_own(name, kernel, fits, monkeypatch):
    pytest.importorskip("triton")
    text = spec_text(name if name == "linear_attn" else "gla")
    if name not in ("gla", "linear_attn"):
        text = text.replace("  v: [t, j]\n", "  v: [t, j]\n  b: [t]\n").replace("* v[t,j]", "* b[t] * v[t,j]")
    source = Source("spec.yaml", text)
    planned = plan(parse(source), Options(tuned=()))
    own = replace(
        ONE,
        gates=gated_sides(planned.program),
        chunk=planned.chunk,
        kernel=f"{kernel}{STRONG}",
        block_K=128,
        block_V=64,
    )
    found = compile_spec(source, Options(tuned=(own,)))
    assert (found != compile_spec(source, Options(tuned=()))) == fits
    if fits:
        module = import_text(found)
        monkeypatch.setattr(module, "_capability", lambda: 9)
        config = module._config(kernel, 128, 128, torch.bfloat16)
        strong = module._strong(kernel, config, 128, 128, 33, torch.bfloat16)
        assert (config["num_warps"], strong["num_warps"], strong["BLOCK_V"]) == (4, 8, 64)
        assert module._strong(kernel, config, 64, 128, 33, torch.bfloat16) is config
        assert module._strong(kernel, config, 128, 128, 32, torch.bfloat16) is config
        assert module._strong("states", config, 128, 128, 33, torch.bfloat16) is config


@pytest.mark.parametrize(
    ("dtype", "block_K", "fits"),
    [("bfloat16", 32, True), ("float32", 32, False), ("float16", 64, False), ("float16", 128, True)],
)
def test_scores_for_walks_are_of_all_keys_at_once_beside_other_types(dtype, block_K, fits):
    """Or what comes before strong gates would have other bits."""
    source, none = Source("gla.yaml", spec_text("gla")), Options(tuned=())
    for kernel in ("scores", f"scores{STRONG}"):
        row = replace(ONE, kernel=kernel, dtype=dtype, block_K=block_K, block_V=16)
        planned = plan(parse(source), Options(tuned=(row,)))
        assert planned.tuned == ((row,) if fits else ())
    assert plan(parse(source), none).tuned == ()


@pytest.mark.parametrize(("name", "in_order"), [("gla", True), ("gla_kv", True), ("hgrn2", True), ("rwkv6", False)])
def test_outputs_have_the_bits_of_the_run_for_mild_gates(name, in_order, monkeypatch):
    """Of tiles with other columns of keys, where sums go through them in order; rwkv6 has one that does not."""
    pytest.importorskip("triton")
    source = Source("spec.yaml", spec_text(name))
    planned = plan(parse(source), Options(tuned=()))
    outputs = next(kernel for kernel in planned.kernels if kernel.name == "outputs")
    assert adds_in_order(outputs) == ("outputs" not in planned.by_tiles) == in_order
    masked = [x for line in outputs.lines if isinstance(line, Blocks) for x in line.body if getattr(x, "mask", "")]
    assert masked and all(x.accumulate for x in masked)
    own = replace(ONE, gates=gated_sides(planned.program), kernel=f"outputs{STRONG}")
    module = import_text(compile_spec(source, Options(tuned=(own,))))
    monkeypatch.setattr(module, "_capability", lambda: 9)
    config = module._config("outputs", 128, 128, torch.bfloat16)
    strong = module._strong("outputs", config, 128, 128, 100, torch.bfloat16)
    assert (config["BLOCK_K"], strong["BLOCK_K"]) == (128, 64 if in_order else 128)
    assert in_order or strong is config


def test_chunks_have_twice_as_many_steps_for_heads_measured_so(monkeypatch):
    pytest.importorskip("triton")
    source, wide = Source("gla.yaml", spec_text("gla")), replace(ONE, K=256)
    twice = replace(wide, kernel="states", chunk=64)
    module = import_text(compile_spec(source, Options(tuned=(ONE, wide, twice))))
    assert ("outputs", 9, torch.bfloat16, 128, 128) in module.TUNED
    assert ("outputs", 9, torch.bfloat16, 256, 128) not in module.TUNED, "measured in shorter chunks"

    def chunk(K=256, V=128, dtype=torch.bfloat16, capability=9):
        monkeypatch.setattr(module, "_capability", lambda: capability)
        assert module._config("states", K, V, dtype)["CHUNK"] == module._chunk(K, V, dtype)
        return module._chunk(K, V, dtype)

    assert chunk() == chunk(K=200, V=65) == 64
    assert chunk(K=128) == chunk(V=256) == chunk(dtype=torch.float16) == chunk(capability=8) == 32


@pytest.mark.parametrize(
    ("name", "old", "new"),
    [
        ("gla", "chunk: auto", "chunk: 32"),
        ("gla", "subchunk: auto", "subchunk: 16"),
        ("gla", 'domain: "[-inf, 0]"', 'domain: "[-1, 0]"'),
    ],
    ids=["the spec's chunk", "the spec's sub-chunks", "blocks of a fixed size"],
)
def test_chunks_that_have_no_more_steps(name, old, new):
    source = Source("spec.yaml", spec_text(name).replace(old, new))
    rows = tuple(replace(ONE, kernel=kernel) for kernel in ("states", "outputs"))
    twice = tuple(replace(x, chunk=64, warps=1) for x in rows)
    assert compile_spec(source, Options(tuned=(*rows, *twice))) == compile_spec(source, Options(tuned=rows))


def test_chunks_as_they_are_by_the_rule_are_not_halved():
    """Of a table that somebody wrote: there are states of whole ones alone."""
    source, like = Source("simple_gla.yaml", spec_text("simple_gla")), replace(ONE, gates="s")
    halves = (replace(like, kernel=f"fused{IN_HALVES}"),)
    assert compile_spec(source, Options(tuned=(like, *halves))) == compile_spec(source, Options(tuned=(like,)))


@pytest.mark.parametrize("lacking", ["", "scores", *GIVEN_KERNELS])
def test_walks_take_halves_only_if_what_they_are_given_is_made_so(lacking, monkeypatch):
    """And what they are given of whole chunks does not stand beside it."""
    pytest.importorskip("triton")
    source, walks = Source("linear_attn.yaml", spec_text("linear_attn")), ("scores", *GIVEN_KERNELS)
    like = replace(ONE, gates="", chunk=128)
    halves = tuple(replace(like, kernel=f"{kernel}{IN_HALVES}", warps=2) for kernel in walks if kernel != lacking)
    whole = tuple(replace(like, kernel=kernel, warps=8) for kernel in walks)
    module = import_text(compile_spec(source, Options(tuned=(*whole, *halves))))
    monkeypatch.setattr(module, "_capability", lambda: 9)
    found = {kernel: module._config(kernel, 128, 128, torch.bfloat16) for kernel in walks}
    assert {config["CHUNK"] for config in found.values()} == {128 if lacking else 64}
    assert {config["num_warps"] for config in found.values()} == {8 if lacking else 2}


@pytest.mark.parametrize(
    ("old", "new", "longer"),
    [
        ("", "", True),
        ("k[t,i] * v[t,j]", "k[t,i] * silu(v[t,j])", True),
        ("k[t,i] * v[t,j]", "silu(k[t,i]) * v[t,j]", False),
        ("scale * q[t,i]", "scale * silu(q[t,i])", False),
        ("S[t,i,j])", "S[t,i,j]) + tanh(sum(i, q[t,i] * k[t,i])) * v[t,j]", False),
    ],
    ids=["as it is", "values computed", "keys computed", "queries computed", "more than scores"],
)
def test_chunks_without_gates_have_as_many_steps_as_walks_can_halve(old, new, longer):
    """By the table that glagen comes with: else walks are given what they multiply in chunks as they are."""
    planned = plan(parse(Source("spec.yaml", spec_text("linear_attn").replace(old, new))), Options())
    assert bool(planned.doubled) == longer
    rows = {x.kernel for x in planned.tuned if (x.K, x.V) == (256, 512)}
    assert {f"{kernel}{IN_HALVES * longer}" for kernel in GIVEN_KERNELS} <= rows


def test_walks_that_multiply_float32_take_nothing():
    source = Source("mamba2.yaml", spec_text("mamba2"))
    walks = tuple(replace(ONE, gates="s", kernel=kernel) for kernel in ("states", "adjoint_states"))
    assert compile_spec(source, Options(tuned=walks)) == compile_spec(source, Options(tuned=()))
    assert compile_spec(source, Options(tuned=(replace(ONE, gates="s"),))) != compile_spec(source, Options(tuned=()))


def test_explain_tells_of_it():
    from glagen.explain import explain

    document = parse(Source("gla.yaml", spec_text("gla")))
    text = " ".join(explain(document, plan(document, Options(tuned=(ONE,))), "text").split())
    where = "compute capability 9, bfloat16, heads of 128 by 128 and a little less"
    assert f"{where}: 64 by 128; 8 warps, 2 stages" in text


def test_states_of_several_take_nothing():
    source = Source("norm.yaml", spec_text("linear_attn_norm"))
    table = (replace(ONE, gates="", chunk=64),)
    assert compile_spec(source, Options(tuned=table)) == compile_spec(source, Options(tuned=()))
