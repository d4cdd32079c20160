"""Texts joined: what they agree on stands once, what differs has a suffix, what nobody needs is gone."""

from __future__ import annotations

import pytest

from glagen.emit.link import link
from glagen.errors import InternalError

PART = """from __future__ import annotations

import math
import os

SIZE = {size}  # of this part


# -- helpers ------
def half(x):
    # of a number
    return x / 2


def scaled(x):
    return SIZE * half(x)


def unused(x):
    return scaled(x)


def {name}_kernel(x):
    return scaled(x)


def run(x):
    return {name}_kernel(x) + math.pi


registry = []
registry.append(run)
registry.append(unused)
"""
WHOLE = """
def half(x):
    # of a number
    return x / 2


def run(x):
    return half(run_of_a(x) + run_of_b(x)), registry_of_a
"""


def joined(part: str = PART) -> str:
    parts = {s: part.format(size=n, name=f"op_{s}") for n, s in enumerate("ab", 2)}
    return link(parts, WHOLE, ("run", "registry"))


def test_the_whole_runs():
    space: dict = {}
    exec(joined(), space)
    value, registry = space["run"](1.0)
    assert value == pytest.approx(0.5 * (2 * 0.5 + 3 * 0.5 + 2 * 3.141592653589793))
    assert registry == [space["run_of_a"], space["unused_of_a"]]


def test_what_is_shared_stands_once_and_first():
    text = joined()
    assert text.startswith("from __future__ import annotations\n\nimport math")
    for once in (
        "def half(x)",
        "import math",
        "def run_of_a(x)",
        "def run_of_b(x)",
        "def run(x)",
        "def op_a_kernel(x)",
    ):
        assert text.count(once) == 1
    assert "SIZE_of_a = 2  # of this part" in text and "SIZE_of_b = 3" in text and "return SIZE_of_b * half(x)" in text
    assert text.index("def half") < text.index("# -- state a") < text.index("# -- state b") < text.index("def run(x)")


def test_a_comment_alone_goes_with_what_is_next():
    alone = "# of numbers\n# of any size\n\n\ndef scaled_of_a(x):"
    text = joined(PART.replace("def scaled(x):", alone.replace("_of_a", "")))
    assert text.count("# of numbers") == 2 and text.count(alone) == 1


def test_what_nobody_needs_is_left_out():
    text = joined()
    assert not any(word in text for word in ("import os", "unused_of_b", "registry_of_b", "# -- helpers"))


def test_a_name_that_is_missing_is_said():
    with pytest.raises(InternalError, match="nothing defines run"):
        link({"a": PART.format(size=1, name="op_a")}, "def whole(x):\n    return run(x)\n", ("run",))


def test_an_argument_is_no_name_from_outside():
    """That of a lambda, here called like what differs between the parts."""
    wrapped = "wrap = lambda run: run\n"
    parts = {s: wrapped + PART.format(size=2, name=f"op_{s}") + "registry.append(wrap)\n" for s in "ab"}
    text = link(parts, WHOLE, ("run", "registry"))
    assert text.count("lambda run: run") == 1
