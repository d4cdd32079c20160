"""What has one number a step is loaded a chunk ahead by walks, and before all else by other kernels."""

from __future__ import annotations

import re

import pytest

from tests.numerics.helpers import ROOT

SPECS = sorted(path.stem for path in (ROOT / "generated").glob("*.py"))


def kernels(name: str) -> dict[str, str]:
    """The texts of a module's kernels, by name."""
    text = (ROOT / "generated" / f"{name}.py").read_text(encoding="utf-8")
    found = re.split(r"^@_jit\n(?=def )", text, flags=re.MULTILINE)[1:]
    return {part[4 : part.index("(")]: part.split("\n\n\n")[0] for part in found}


@pytest.mark.parametrize("name", SPECS)
def test_walks_load_numbers_of_steps_ahead(name):
    for kernel, text in kernels(name).items():
        ahead = re.findall(r"^( *)(\w+)_next = tl\.load\(", text, re.MULTILINE)
        if "_sequence_at(" not in text:
            assert not ahead, kernel
            continue
        before, _, loop = text.partition("for n in range(0, chunks")
        numbers = re.findall(r"^ *(\w+) = .*# \[CHUNK\]$", loop, re.MULTILINE)
        numbers += re.findall(r"^ *(\w+) = \w+_next  # \[\]$", loop, re.MULTILINE)
        assert [x for _, x in ahead] == 2 * numbers, kernel
        for x in numbers:
            assert f" {x}_next = tl.load({x}_ptr" in before
            assert f" {x} = {x}_next " in loop
            assert loop.index(f" {x} = {x}_next ") < loop.index(f" {x}_next = tl.load(")


@pytest.mark.parametrize("name", SPECS)
def test_others_load_them_before_all_else(name):
    for kernel, text in kernels(name).items():
        loads = re.findall(r"= tl\.load\(.*# (\[\w.*\])$", text, re.MULTILINE)
        if "_sequence_at(" not in text:
            assert loads == sorted(loads, key=lambda shape: shape != "[CHUNK]"), kernel


def test_there_are_such():
    made = kernels("simple_gla")
    assert "g_next" in made["simple_gla_adjoint_states_kernel"]
    assert "g_next" in made["simple_gla_fused_kernel"]
    assert {"gate_whole_next", "gate_to_end_next"} <= set(re.findall(r"\w+", made["simple_gla_fused_given_kernel"]))
    assert "# [CHUNK]" in made["simple_gla_key_gradients_kernel"]
