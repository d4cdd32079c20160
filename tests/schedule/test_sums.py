"""Dots that sum into what they are added to."""

from __future__ import annotations

from glagen.ir.chunk import Operand
from glagen.ir.expr import apply, ref
from glagen.ir.kernel import Assign, Dot, Scan, Store
from glagen.schedule.sums import added_to_tiles

TJ = ("t", "j")
OF_STATE = Dot("inter", TJ, Operand("q", ("t", "i")), Operand("S", ("i", "j")))
OF_SCORES = Dot("intra", TJ, Operand("scores", ("t", "s")), Operand("v", ("s", "j")))
SCANS = (Scan("S", ref("S", ("i", "j")), "S_initial", "S_final", None),)
STORES = [Store("o", "o", TJ)]


def both(first: str, second: str) -> Assign:
    return Assign("o", TJ, apply("add", ref(first, TJ), ref(second, TJ)))


def test_a_sum_begins_with_the_dot_that_reads_the_state():
    """Whichever way round it is written."""
    for total in (both("inter", "intra"), both("intra", "inter")):
        first, second = added_to_tiles([OF_SCORES, OF_STATE, total], SCANS, STORES)
        assert isinstance(first, Dot) and (first.name, first.y.name, first.accumulate) == ("o", "S", False)
        assert isinstance(second, Dot) and (second.name, second.y.name, second.accumulate) == ("o", "v", True)


def test_a_dot_that_is_used_again_stays():
    again = Assign("twice", TJ, apply("mul", ref("intra", TJ), ref("intra", TJ)))
    found = added_to_tiles([OF_SCORES, OF_STATE, both("inter", "intra"), again], SCANS, STORES)
    assert OF_SCORES in found and again in found
