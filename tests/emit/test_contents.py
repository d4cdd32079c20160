"""A module's table of contents: what it lists is there, in that order, and all kernels are listed."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.numerics.helpers import SPECS

GENERATED = Path(__file__).parents[2] / "generated"


@pytest.mark.parametrize("name", [path.stem for path in SPECS])
def test_it_lists_what_the_module_has(name):
    text = (GENERATED / f"{name}.py").read_text()
    header, body = text.split('\n"""\n', 1)
    listed = [line.strip().split(":")[0] for line in header.split("Contents, from top to bottom\n")[1].splitlines()]
    places = [re.search(rf"^(?:def {re.escape(x)}\(|# -- {re.escape(x)} -)", body, re.MULTILINE) for x in listed]
    assert all(places) and [x.start() for x in places if x] == sorted(x.start() for x in places if x)
    assert [*re.findall(r"^def ([a-z]\w*_kernel)\(", body, re.MULTILINE)] == [x for x in listed if x[-7:] == "_kernel"]
    assert listed[-3:] == ["interface", name, f"{name}_step"]
