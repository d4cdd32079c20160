"""Identifiers of the generated code: names of a spec must not meet the words the code itself uses."""

from __future__ import annotations

import keyword

WORDS = frozenset(
    """
    torch triton tl F math operator os threading functools at_ti at_tj at_ij in_ti in_tj in_ij in_T in_K in_V
    B T H K V N i j t s n b h row rows step chunk chunks program head causal earlier causal_T earlier_T diagonal
    upper lower side half
    same same_T alike between between_T between_before between_before_T inside leaf leaf_T leaf_before leaf_before_T
    level strip offset span span_T span_before span_before_T shift shift_T on_offset on_offset_T block_i block_j
    blocks_i blocks_j M sequence start length first left line slot slots first_slot place packing member group GROUP
    READS needs kept wide strong STRONG x y given sizes starts finals rest packed parts part end ends zeros
    total axis axes steps adjoint gradient inplace of_state next_state followed inputs output numbers run out
    contextlib enumerate RuntimeError ValueError TypeError CHUNK BLOCK_K BLOCK_V DOT WIDE PRECISION TERMS FLOOR TILES
    BFLOAT16 config device dtype carried ctx args states fused state last outputs results tensors gradients needed
    cotangents named reversed dict any all isinstance initial_state final_state output_final_state cu_seqlens range
    float int max min sum abs len tuple list zip map print pieces wanted LONG PIECE REAL
    RUN runs narrow number programs turn SHARE PEEK FROM_SHARED TUNED WIDEST MILD NOTES on_chip again each none fits
    reached later begun backward FEW past past_T own own_T decayed decayed_T
    contextvars TMA TMA_LOADS ahead step AHEAD FAR SHIFTED UNIT LIMIT MOST LEVELS DOUBLED note JUDGED
    operands saved alone both strong_keys strong_values into segment entering above below adjoints arguments found new
    nothing extents timed other heads notes known met made reads LATER ROWS BITS early deep every
    num_warps num_stages num_ctas maxnreg debug arch enable_fp_fusion instrumentation_mode launch_pdl COMPILED
    """.split()  # noqa: SIM905 (a list of words reads better than a hundred strings)
)


def prose(text: str) -> str:
    """A spec's words as docstrings have them: on one line, and nothing in them ends the string or is an escape."""
    line = " ".join("".join(c if c.isprintable() else " " for c in text).split())
    return line.replace("\\", "\\\\").replace('"', r"\"")


def identifier(name: str) -> str:
    """`name` as the generated code writes it; different names stay different."""
    if keyword.iskeyword(name) or name.rstrip("_") in WORDS:
        return name + "_"
    return name
