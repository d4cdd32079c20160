"""Tables of measured configurations: read, merged, written, and what they make of a module."""

from __future__ import annotations

import json
from dataclasses import asdict, replace

import pytest
import torch
from click.testing import CliRunner

from glagen.cli import main
from glagen.errors import Source
from glagen.ir.schedule import Options
from glagen.ir.tuned import Tuned, merged, read_table, write_table
from glagen.loader import import_text
from glagen.pipeline import compile_spec
from glagen.schedule.tiles import shipped
from tests.numerics.helpers import ROOT, spec_text

ONE = Tuned(9, "K", 32, "outputs", "bfloat16", 128, 128, 64, 128, 8, 2, 1, 0.85, 0.7, "B1", "a GPU, torch 2, Triton 3")


def test_a_table_comes_back(tmp_path):
    path, other = tmp_path / "tuned.json", replace(ONE, kernel="states")
    write_table(path, [ONE, other])
    assert read_table(path) == (ONE, other)


def test_later_entries_take_the_place_of_earlier_ones():
    better, other = replace(ONE, warps=4, measured=0.6), replace(ONE, K=64)
    assert merged([ONE, other], [better]) == (other, better)


def test_the_shipped_table_is_in_order():
    assert shipped() == merged(shipped())


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
    others = (replace(ONE, gates="V"), replace(ONE, chunk=64))
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


def test_walks_that_multiply_float32_take_nothing():
    source = Source("mamba2.yaml", spec_text("mamba2"))
    walks = tuple(replace(ONE, gates="s", kernel=kernel) for kernel in ("states", "adjoint_states"))
    assert compile_spec(source, Options(tuned=walks)) == compile_spec(source, Options(tuned=()))
    assert compile_spec(source, Options(tuned=(replace(ONE, gates="s"),))) != compile_spec(source, Options(tuned=()))


def test_explain_tells_of_it():
    from glagen.explain import explain
    from glagen.parse import parse
    from glagen.pipeline import plan

    document = parse(Source("gla.yaml", spec_text("gla")))
    text = " ".join(explain(document, plan(document, Options(tuned=(ONE,))), "text").split())
    where = "compute capability 9, bfloat16, heads of 128 by 128 and a little less"
    assert f"{where}: 64 by 128; 8 warps, 2 stages" in text


def test_states_of_several_take_nothing():
    source = Source("norm.yaml", spec_text("linear_attn_norm"))
    table = (replace(ONE, gates="", chunk=64),)
    assert compile_spec(source, Options(tuned=table)) == compile_spec(source, Options(tuned=()))
