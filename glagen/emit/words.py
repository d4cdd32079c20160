"""Identifiers of the generated code: names of a spec must not meet the words the code itself uses."""
    from __future__ import annotations keyword WORDS = frozenset( """ at_ti at_tj at_ij in_ti in_tj in_ij inside
    alike lower side scan at torch triton tl F math os step row head chunk chunks program b h B T H K V N i j t s
    n in_T in_K in_V rows causal earlier causal_T earlier_T diagonal upper same same_T between leaf level half
    offset strip span shift unshift on_offset on_offset_T within block_i block_j blocks_i blocks_j anchor group
    CHUNK BLOCK_K BLOCK_V DOT WIDE PRECISION TERMS FLOOR LEAF select device dtype ctx args states needs grid size
    final_state initial_state output_final_state state cu_seqlens range float int max min sum abs len tuple list
    """.split()  # noqa: SIM905 (a list of words reads better than 90 strings)
)


def identifier(name: str) -> str:
    """`name` as the generated code writes it; different names stay different."""
    if name in WORDS or keyword.iskeyword(name) or name.rstrip("_") in WORDS:
        return name + "_"
    return name
