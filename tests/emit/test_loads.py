"""What has one number a step is loaded a chunk ahead by walks, and by no other kernel."""

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
        if not kernel.endswith("states_kernel"):
            assert not ahead, kernel
            continue
        before, _, loop = text.partition("for n in range(0, chunks):")
        of_steps = re.findall(r"^ *(\w+) = .*# \[CHUNK\]$", loop, re.MULTILINE)
        assert [x for _, x in ahead] == 2 * of_steps, kernel
        for x in of_steps:
            assert f" {x}_next = tl.load({x}_ptr" in before
            assert f" {x} = {x}_next " in loop
            assert loop.index(f" {x} = {x}_next ") < loop.index(f" {x}_next = tl.load(")


def test_there_are_such():
    assert "g_next" in kernels("simple_gla")["simple_gla_adjoint_states_kernel"]
