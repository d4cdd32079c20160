"""Every name that a module's functions use is there, whatever the spec and the table: Python would say so in a call."""

from __future__ import annotations

import builtins
import symtable

import pytest
from hypothesis import given, settings

from glagen.errors import Source
from glagen.ir.schedule import Options
from glagen.ir.tuned import Tuned
from glagen.pipeline import compile_spec
from tests import strategies
from tests.numerics.helpers import (
    all_gradients,
    both_sides,
    by_halves,
    document_of,
    forward_shared,
    operands_shared,
    reads_kept,
    scores_apart,
    spec_text,
    twice_as_long,
    walks_given,
)

HEADS = (128, 256)
TABLES = (
    all_gradients,
    both_sides,
    by_halves,
    forward_shared,
    operands_shared,
    reads_kept,
    scores_apart,
    twice_as_long,
    walks_given,
)
BOUNDED = [spec_text(name).replace('"[-inf, 0]"', '"[-1, 0]"') for name in ("gla", "gla_v", "gla_kv")]
SOME = settings(max_examples=20, deadline=None, derandomize=True, database=None)


def undefined(text: str) -> set[str]:
    """Names that functions take for the module's, or for Python's, and that neither has."""
    module = symtable.symtable(text, "module.py", "exec")
    there = {x.get_name() for x in module.get_symbols() if x.is_assigned() or x.is_imported() or x.is_namespace()}
    found, left = set(), list(module.get_children())
    while left:
        table = left.pop()
        left += table.get_children()
        found |= {x.get_name() for x in table.get_symbols() if x.is_global() and x.is_referenced()}
    return found - there - {*dir(builtins)} - {"__name__", "__file__"}


def compiled(text: str, tuned: tuple[Tuned, ...] | None) -> str:
    return compile_spec(Source("spec.yaml", text), Options(tuned=tuned))


def test_what_is_not_there_is_found():
    assert undefined("import math\n\ndef f(x):\n    return lambda: math.sin(x) + y\n") == {"y"}


@pytest.mark.parametrize("table", TABLES, ids=lambda table: table.__name__)
@pytest.mark.parametrize("text", BOUNDED, ids=["on keys", "on values", "on both sides"])
def test_names_are_there_where_one_growth_always_serves(text, table):
    """There is no run for strong gates then."""
    assert not undefined(compiled(text, table(document_of(text), 9, HEADS)))


@SOME
@given(strategies.specs())
def test_names_are_there(text):
    """As the shipped table says."""
    assert not undefined(compiled(text, None))


@pytest.mark.parametrize("table", TABLES, ids=lambda table: table.__name__)
@pytest.mark.parametrize("name", ["gla", "gla_v", "gla_kv", "linear_attn", "simple_gla", "rwkv6"])
def test_names_are_there_by_any_table(name, table):
    text = spec_text(name)
    assert not undefined(compiled(text, table(document_of(text), 9, HEADS)))
