"""Scores of keys by shares: what one growth from the chunk's start reaches, and what blocks make of the rest."""

from __future__ import annotations

from dataclasses import replace

import pytest

from glagen.ir.kernel import Assign, Blocks, Depth, Dot, Kernel, Loop, RowSum, written
from glagen.ir.schedule import Options, Schedule
from glagen.pipeline import plan
from glagen.schedule.reach import by_reach, is_growth, with_share
from tests.numerics.helpers import document_of, spec_text

OWN_WITHIN = ("gla", "gla_kv", "hgrn2")  # reads come after the write
SPECS = (*OWN_WITHIN, "rwkv6")


def kernel_of(text: str, name: str) -> Kernel:
    schedule = plan(document_of(text), Options())
    assert isinstance(schedule, Schedule)
    return next(kernel for kernel in schedule.kernels if kernel.name == name)


def blocks_of(kernel: Kernel, kind: str) -> list[Blocks]:
    return [x for x in kernel.lines if isinstance(x, Blocks) and x.kind == kind]


def lines_read(kernel: Kernel, name: str) -> list[str]:
    """Which lines of a kernel, inside of blocks and out of them, have a tile in them, by name."""
    flat = (y for x in kernel.lines for y in (x.body if isinstance(x, Blocks) else (x,)))
    return [x.name for x in flat if isinstance(x, Assign) and name in str(x.expr)]


@pytest.mark.parametrize("name", SPECS)
def test_each_key_counts_by_a_share_in_the_whole_chunk_and_by_the_rest_in_blocks(name):
    maker = kernel_of(spec_text(name), "scores")
    (depth,) = (x for x in maker.lines if isinstance(x, Depth))
    assert depth.always and not blocks_of(maker, "guard")
    growths = [x.name for x in maker.lines if is_growth(x, "gate_k")]
    assert lines_read(maker, "gate_k_reached") == ["gate_k_unreached", *growths] and len(growths) == 1
    shared = [x for kind in ("eights", "bisect") for blocks in blocks_of(maker, kind) for x in blocks.body]
    keys = [o.name for x in shared if isinstance(x, Dot) for o in (x.x, x.y) if "s" in o.indices]
    assert keys and lines_read(maker, "gate_k_unreached") == keys


@pytest.mark.parametrize("name", SPECS)
def test_a_step_by_itself_is_in_blocks_of_eight_rows_if_in_the_whole_chunk(name):
    maker = kernel_of(spec_text(name), "scores")
    masks = {x for blocks in blocks_of(maker, "eights") for x in map(str, blocks.body)}
    assert any("%decayed" in x for x in masks) == (name in OWN_WITHIN) != any("%same" in x for x in masks)
    assert all(not blocks.depth for blocks in blocks_of(maker, "own")), "only where steps are few"


def test_kernels_that_are_not_as_it_takes_them_stay_as_they_are():
    outputs = kernel_of(spec_text("gla"), "outputs")
    (loop,) = (x for x in outputs.body if isinstance(x, Loop))
    assert by_reach(outputs) != outputs
    for change in (
        lambda x: replace(x, shifted=False) if isinstance(x, Depth) else x,
        lambda x: replace(x, kind="strips") if isinstance(x, Blocks) and x.kind == "bisect" else x,
        lambda x: replace(x, body=tuple(grown(y) for y in x.body)) if isinstance(x, Blocks) else x,
    ):
        body = tuple(replace(x, body=tuple(map(change, x.body))) if x is loop else x for x in outputs.body)
        other = replace(outputs, body=body)
        assert by_reach(other) is other


def grown(line: Assign | Dot | RowSum) -> Assign | Dot | RowSum:
    """A growth that is something else in runs for strong gates."""
    return replace(line, strong=line.expr) if is_growth(line, "gate_k") else line


def test_what_is_read_has_no_share():
    (bisect,) = blocks_of(kernel_of(spec_text("gla"), "outputs"), "bisect")
    shared = with_share(bisect, "gate_k", "i")
    assert shared is not None and written(shared) == written(bisect)
    (changed,) = (x for x, y in zip(shared.body, bisect.body, strict=True) if x != y)
    text = str(changed.expr)
    assert text.index("'query'") < text.index("'k'") < text.index("'gate_k_unreached'")
