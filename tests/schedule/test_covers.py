"""Covers tile the causal triangle once, and every pair of a block meets at its anchor."""

from __future__ import annotations

import math
import random

import pytest
import torch

from glagen.emit.blocks import IN_TORCH, opening_text
from glagen.emit.helpers import TWIN_HELPERS
from glagen.ir.chunk import Operand
from glagen.ir.expr import ref
from glagen.ir.interval import Interval
from glagen.ir.kernel import Assign, Blocks, RowSum
from glagen.schedule.covers import GROWTH_LIMIT, anchored_rows, choose_cover

SIZES = [(chunk, leaf) for chunk in (16, 32, 64) for leaf in (1, 2, 4, 8, 16, 32, 64) if leaf <= chunk]
LOWS = (0.0, -1e-3, -0.5, -0.9375, -1.0, -2.0, -3.75, -5.0, -7.5, -15.0, -30.0, -30.1, -60.0, -1e4, -math.inf)


MASKS = ("upper", "lower", "same", "on_offset", "inside")
SELECTS = ("between", "leaf", "span", "shift")


def blocks(kind: str, leaf: int, chunk: int, depth: torch.Tensor | None = None) -> list[dict[str, torch.Tensor]]:
    """The masks of every pass of a cover's loop, by running the text that the modules contain. `depth`: how often the
    chunk is halved [1, 1], or for each row [chunk]."""
    selects = [f"{s}{b}{t}" for s in SELECTS for b in ("", "_before") for t in ("", "_T")]
    masks = [f"{m}{t}" for m in MASKS for t in ("", "_T")]
    body = [RowSum("x", ("t", "i"), Operand("y", ("t", "i")), s) for s in selects]
    body += [Assign("x", ("t", "s"), ref(f"%{m}", ("t", "s"))) for m in masks]
    by_row = depth is not None and depth.dim() == 1
    line = Blocks(kind, leaf, "g", tuple(body), "" if depth is None else "g_depth", by_row)
    headers, definitions = opening_text(line, chunk, IN_TORCH)
    found: list[dict[str, torch.Tensor]] = []
    lines = [*(headers or ["if True:"]), *(f"    {text}" for text in definitions)]
    lines.append("    keep({n: x for n, x in globals().items() if isinstance(x, torch.Tensor)})")
    names = {"row": torch.arange(chunk), "CHUNK": chunk, "torch": torch, "keep": found.append, "g_depth": depth}
    exec(TWIN_HELPERS["_blockwise"] + "\n".join(lines), names)
    return found


def covered(kind: str, leaf: int, chunk: int, mark: str = "", depth: torch.Tensor | None = None) -> torch.Tensor:
    """How often each pair [t, s] is taken (mark _T: [s, t])."""
    name = "on_offset" if kind == "offsets" else "same"
    return sum((b[f"{name}{mark}"].long() for b in blocks(kind, leaf, chunk, depth)), torch.zeros(chunk, chunk).long())


def admitted(chunk: int) -> list[tuple[tuple[str, int], ...]]:
    """The parts of every cover that can be chosen for a chunk."""
    found = {}
    for wanted in ("auto", "anchored", "subchunk", "bisect"):
        for subchunk in (None, 1, 2, 4, 8, 16, chunk):
            for low in LOWS:
                cover = choose_cover(Interval(low, 0.0), chunk, subchunk, wanted)
                if cover:
                    found[cover.parts] = None
    return list(found)


@pytest.mark.parametrize("chunk", [16, 32, 64])
def test_covers_tile_the_strict_triangle_once(chunk):
    below = torch.ones(chunk, chunk, dtype=torch.long).tril(-1)
    choices = admitted(chunk)
    assert len(choices) > 8
    for parts in choices:
        depths = [torch.tensor([[n]]) for n in range(chunk.bit_length())] if parts[0][0] == "guard" else [None]
        for depth in depths:
            assert torch.equal(sum(covered(kind, leaf, chunk, "", depth) for kind, leaf in parts), below), parts
            assert torch.equal(sum(covered(kind, leaf, chunk, "_T", depth) for kind, leaf in parts), below.mT), parts


@pytest.mark.parametrize("chunk", [16, 32, 64])
def test_rows_take_the_strict_triangle_once_each_in_its_way(chunk):
    below = torch.ones(chunk, chunk, dtype=torch.long).tril(-1)
    parts = (("guard", chunk), ("eights", chunk // 4), ("bisect", 1))
    for seed in range(5):
        generator = torch.Generator().manual_seed(seed)
        depth = torch.tensor([0, 2, chunk.bit_length() - 1])[torch.randint(3, (chunk,), generator=generator)]
        assert torch.equal(sum(covered(kind, leaf, chunk, "", depth) for kind, leaf in parts), below)
        assert torch.equal(sum(covered(kind, leaf, chunk, "_T", depth) for kind, leaf in parts), below.mT)


def interval(chunk: int, lower: int, upper: int) -> torch.Tensor:
    """Steps lower < tau <= upper, counted; negative where the interval runs backward."""
    tau = torch.arange(chunk)
    forward = ((tau > lower) & (tau <= upper)).long()
    return forward - ((tau > upper) & (tau <= lower)).long()


@pytest.mark.parametrize("before", [False, True], ids=["after", "before"])
@pytest.mark.parametrize(("chunk", "leaf"), SIZES)
@pytest.mark.parametrize("kind", ["bisect", "strips", "leaf", "offsets"])
def test_halves_of_a_decay_make_the_whole(kind, chunk, leaf, before):
    """Decay(s->r) Decay(r->t) = Decay(s->t): the steps that both rows sum are those between them, each once."""
    if kind != "bisect" and leaf == 1:
        return
    mark = "_before" if before else ""
    pairs = random.Random(chunk * leaf).sample([(t, s) for t in range(chunk) for s in range(t)], 60)
    met = 0
    for b in blocks(kind, leaf, chunk):
        for t, s in pairs:
            whole = interval(chunk, s, t - before)
            if kind == "offsets":
                if b["on_offset"][t, s]:
                    met += 1
                    assert torch.equal(b[f"span{mark}"][t].long(), whole)
                    assert b["shift"][t].nonzero().tolist() == [[s]] and b["shift_T"][s].nonzero().tolist() == [[t]]
            elif kind == "leaf":
                if b["same"][t, s]:  # the writing row's factor is a growth: 1 over the steps from the leaf's first
                    met += 1
                    assert torch.equal(b[f"leaf{mark}"][t].long() - b["leaf"][s].long(), whole)
            elif b["same"][t, s]:
                met += 1
                down, up = b[f"between{mark}"][t].long(), b["between"][s].long()
                assert torch.equal(down + up, whole)
                assert int(torch.maximum(down, up).max()) <= 1
    assert met or leaf == chunk or kind in ("leaf", "offsets")


@pytest.mark.parametrize(("chunk", "leaf"), SIZES)
@pytest.mark.parametrize("kind", ["bisect", "strips", "leaf", "offsets"])
def test_what_is_summed_into_a_row_is_gathered_from_it(kind, chunk, leaf):
    for masks in blocks(kind, leaf, chunk):
        pairs = [n for n in masks if f"{n}_T" in masks]
        assert len(pairs) >= 2
        assert all(torch.equal(masks[n].mT, masks[f"{n}_T"]) for n in pairs if masks[n].dim() == 2)


@pytest.mark.parametrize("kind", ["bisect", "strips"])
def test_a_block_has_one_anchor_whichever_way_reads_go(kind):
    """Rows that write sum up to the same anchor in `between` and `between_before`: one factor serves both."""
    for b in blocks(kind, 8, 32):
        writes = b.get("lower", ~b["upper"])
        assert torch.equal(b["between"][writes], b["between_before"][writes])


@pytest.mark.parametrize("before", [False, True], ids=["after", "before"])
@pytest.mark.parametrize("depth", [0, 2, 4])
def test_rows_of_a_block_have_their_growth_from_its_first_step(depth, before):
    chunk, mark = 32, "_before" if before else ""
    for kind, leaf, given in (("guard", chunk, torch.tensor([[depth]])), ("eights", 8, torch.full((chunk,), 2))):
        (masks,) = blocks(kind, leaf, chunk, given)
        for t, s in masks["same"].nonzero().tolist():
            whole = interval(chunk, s, t - before)
            assert torch.equal(masks[f"leaf{mark}"][t].long() - masks["leaf"][s].long(), whole)


@pytest.mark.parametrize("chunk", [16, 32, 64, 128])
@pytest.mark.parametrize("low", LOWS)
def test_growths_stay_within_their_limit(chunk, low):
    domain = Interval(low, 0.0)
    rows = anchored_rows(domain, chunk)
    assert rows == 1 or rows * -low <= GROWTH_LIMIT
    assert rows == chunk or rows * 2 * -low > GROWTH_LIMIT, "as large as the bound allows"
    for wanted in ("auto", "anchored", "subchunk", "bisect"):
        for subchunk in (None, 1, 2, 4, 8, 16):
            cover = choose_cover(domain, chunk, subchunk, wanted)
            if cover is None:
                assert wanted == "anchored" and rows < chunk
                continue
            for kind, leaf in cover.parts:
                assert kind != "leaf" or leaf * -low <= GROWTH_LIMIT, cover
                assert chunk % leaf == 0
            if wanted not in ("auto", "anchored"):
                assert cover.name == wanted


def test_the_cover_a_spec_asks_for():
    mild, any_gate = Interval(-0.5, 0.0), Interval(-math.inf, 0.0)
    assert choose_cover(mild, 64, None).name == "anchored"
    assert choose_cover(mild, 64, 16).name == "anchored"
    assert choose_cover(any_gate, 64, 16).parts == (("strips", 16), ("offsets", 16))
    assert choose_cover(any_gate, 64, None).parts == (("guard", 64), ("bisect", 1))
    assert choose_cover(any_gate, 64, None, "bisect").parts == (("bisect", 1),)
    assert choose_cover(any_gate, 64, None, "anchored") is None
    assert choose_cover(Interval(-5.0, 0.0), 64, None, "bisect").parts == (("bisect", 8), ("leaf", 8))
