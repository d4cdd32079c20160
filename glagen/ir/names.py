"""Names that a spec must leave to the generated code."""

from __future__ import annotations

import builtins
import re

# How later stages name what they derive from a name: `q_down`, `log_gate_k_whole`, `dq_out`. A spec whose names follow
# none of these patterns can never meet a derived name.
_SUFFIXES = (
    r"T|after|all|anchored|before|between|block|by_eight|combine|crossed_\d+|decayed|depth|diagonal|down|end|fade|final|from|(?:from|after)_start|given|half|initial"
    r"|kept|keys|late|leaf|moved|next|offset|out|own|pairs_\d+|part|path_\d+|paths|ptr|reached|remains|rest|read_later_\d+|rounded|rows|same|scaled|sent|soon|span|steps"
    r"|sum|tiles|to_end|total|undecayed|unreached|unscaled|up|values(?:_\d+)?|waiting|whole|within"
)
_DERIVED = re.compile(rf"^(?:log|crossed|at|of|in|GROUP)_|^local_\d+$|_(?:{_SUFFIXES})$")


def derived_pattern(name: str) -> str | None:
    """The part of `name` that makes it look like a derived name: "_down" of "q_down"; None if nothing does."""
    found = _DERIVED.search(name)
    return found.group() if found else None


# Globals of a generated module, besides those that begin with an underscore.
_GLOBALS = frozenset(
    """
    F CHUNK COMPILED FROM_SHARED LONG PIECE SHARE TILES TUNED WIDEST BFLOAT16 contextlib contextvars functools
    math re threading
    """.split()  # noqa: SIM905
)


def shadows(op: str) -> bool:
    """Would an op of this name hide something that its own module uses?"""
    return op in _GLOBALS or hasattr(builtins, op)
