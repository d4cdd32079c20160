"""The keys of a spec."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from glagen.errors import Source, Span, SpecError
from glagen.ir.expr import apply, number, ref
from glagen.ir.interval import Interval
from glagen.parse import parse, read

SPECS = sorted((Path(__file__).parents[2] / "specs").glob("*.yaml"))

TEXT = """\
name: m
doc: >
  A spec with
  everything in it
inputs:
  q: [t, i]
  a: {axes: [t, i], domain: "(0, 1]", doc: a gate}
  b: {kind: input, axes: [t]}
  u: {kind: parameter, axes: [i]}
  gamma: {kind: constant, axes: [], domain: "(0, 1)", value: 1 - 2**(-5 - h)}
  scale: {kind: scalar, default: K**-0.5, domain: "[ -1e3 , inf )"}
state: [S[i, j]]
equations:
  - "S[t,i,j] = S[t-1,i,j]"
chunk: 64
subchunk: 16
"""


def document(text: str):  # type: ignore[no-untyped-def]
    return parse(Source("m.yaml", text))


def test_everything() -> None:
    parsed = document(TEXT.replace("[S[i, j]]", '["S[i, j]"]'))
    assert (parsed.name, parsed.doc) == ("m", "A spec with\neverything in it".replace("\n", " "))
    assert [(d.name, d.kind, d.axes) for d in parsed.declarations] == [
        ("q", "input", ("t", "i")),
        ("a", "input", ("t", "i")),
        ("b", "input", ("t",)),
        ("u", "parameter", ("i",)),
        ("gamma", "constant", ()),
        ("scale", "scalar", ()),
    ]
    _, a, _, _, gamma, scale = parsed.declarations
    assert (a.domain, a.doc, a.default) == (Interval(0, 1, low_open=True), "a gate", None)
    assert gamma.domain == Interval(0, 1, True, True)
    assert gamma.default == apply(
        "sub", number(1), apply("pow", number(2), apply("sub", apply("neg", number(5)), ref("h")))
    )
    assert scale.domain == Interval(-1000, math.inf, False, True)
    assert scale.default is not None and scale.default.span == Span(11, 34, 7)
    assert [(s.name, s.axes) for s in parsed.states] == [("S", ("i", "j"))]
    assert (parsed.chunk, parsed.subchunk) == (64, 16)
    assert parsed.chunk_span == Span(15, 8, 2)
    assert gamma.span == Span(10, 3, 5)


def test_auto_is_the_default() -> None:
    shorter = document(TEXT.replace("[S[i, j]]", "S[i, j]").replace("chunk: 64\nsubchunk: 16\n", ""))
    assert (shorter.chunk, shorter.subchunk) == (None, None)
    assert [(s.name, s.axes) for s in shorter.states] == [("S", ("i", "j"))]


def test_several_states_are_parsed() -> None:
    parsed = document(TEXT.replace("[S[i, j]]", '["S[i, j]", "Z[i, j]"]'))
    assert [s.name for s in parsed.states] == ["S", "Z"]


def test_an_unquoted_list_of_states_is_refused_with_its_place() -> None:
    with pytest.raises(SpecError, match=r"m\.yaml:12:"):
        document(TEXT)


@pytest.mark.parametrize("path", SPECS, ids=lambda path: path.stem)
def test_specs(path: Path) -> None:
    parsed = parse(read(path))
    assert parsed.name == path.stem
    assert (parsed.chunk, parsed.subchunk) == (None, None)
    header = parsed.source.text.split("name:")[0]
    assert header.startswith("# ") and "quation" in header
