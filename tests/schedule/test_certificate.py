"""The certificate: an entry for each Decay and each growth, and a worst exponent that some gates do reach."""

from __future__ import annotations

import itertools
import math
import re
from dataclasses import replace

import pytest
import torch

from glagen.check import check
from glagen.derive import derive
from glagen.errors import UnprovableError
from glagen.ir.chunk import Carry, Contract
from glagen.ir.interval import Interval
from glagen.ir.schedule import SHIFT, Options
from glagen.schedule import schedule
from tests.mutation.judge import SPECS, document_of
from tests.schedule.test_covers import blocks

LOWS = (None, -5.0, -1.0)


def planned(name: str, low: float | None, cover: str = "auto"):
    return schedule(derive(check(document_of(name, low=low))), Options(cover))


@pytest.mark.parametrize(("name", "low", "cover"), list(itertools.product(SPECS, LOWS, ("auto", "bisect"))))
def test_every_decay_has_its_entry(name, low, cover):
    plan = planned(name, low, cover)
    program = plan.program
    statements = [s for s in (*program.forward, *program.backward) if isinstance(s, Contract | Carry)]
    decays = dict.fromkeys(d for s in statements for d in s.decays)
    said = [entry.where for entry in plan.certificate]
    for decay in decays:
        entries = [w for w in said if w in (str(decay), f"1/{decay}")]
        split = decay.lower.is_row and decay.upper.is_row and bool(decay.axes)
        text = dict(plan.covers).get(decay.gate, "")
        growths = text.count("leaf ") + text.count("guard ")  # besides a decay
        assert len(entries) == (text.count(",") + 1 + growths if split else 1), decay
        assert (f"1/{decay}" in entries) == (split and growths > 0)
        further = {f"2^{SHIFT} {decay}", f"2^-{SHIFT}/{decay}"}  # where growths reach further beside 16-bit inputs
        eights = {f"e^63 {decay}", f"e^-63/{decay}"}  # and in eight rows, for all other gates
        assert set(said) & (further | eights) == (further | eights if split and "guard " in text else set())
    assert len({(e.where, e.interval) for e in plan.certificate}) == len(plan.certificate)
    assert {re.sub(r"^(1/|[2e]\^-?\d+[ /])", "", w) for w in said} == {str(d) for d in decays}


@pytest.mark.parametrize(("name", "low", "cover"), list(itertools.product(SPECS, LOWS, ("auto", "bisect"))))
def test_every_entry_is_finite_and_says_why(name, low, cover):
    for entry in planned(name, low, cover).certificate:
        further = entry.where.startswith(("2^", "e^"))
        assert math.isfinite(entry.worst) and 0.0 <= entry.worst <= (64.0 if further else 60.0) and entry.reason
        assert (further or entry.where.startswith("1/")) == (entry.worst > 0.0)


@pytest.mark.parametrize("low", [-5.0, -1.0, -3.75, -0.25])
def test_the_worst_exponent_is_reached(low):
    """With every gate at the end of its domain, the largest exponent of a growth is the certificate's."""
    plan = planned("gla", low, "bisect")
    growths = [e for e in plan.certificate if e.where.startswith("1/")]
    assert growths
    text = dict(plan.covers)["gate_k"]
    leaf = int(text.split("leaf ")[1].split(")")[0].split(",")[0])
    gates = torch.full((plan.chunk,), low, dtype=torch.float64)
    (masks,) = blocks("leaf", leaf, plan.chunk)
    exponents = -(masks["leaf"].double() @ gates)
    assert float(exponents.max()) == max(e.worst for e in growths)


@pytest.mark.parametrize("cover", ["auto", "subchunk", "bisect"])
@pytest.mark.parametrize("low", [-5.0, -1.0, -math.inf])
def test_all_other_exponents_are_at_most_zero(low, cover):
    """Brute force over random gates of the domain: what the certificate calls forward is at most 1."""
    document = document_of("gla")
    declarations = tuple(
        replace(d, domain=Interval(low, 0.0)) if d.domain is not None else d for d in document.declarations
    )
    plan = schedule(derive(check(replace(document, declarations=declarations))), Options(cover))
    generator = torch.Generator().manual_seed(0)
    gates = -torch.rand(50, plan.chunk, dtype=torch.float64, generator=generator) * min(-low, 800.0)
    text = dict(plan.covers)["gate_k"]
    for kind in ("bisect", "strips", "offsets"):
        if f"{kind} " in text.split("(", 1)[1]:
            leaf = int(text.split(f"{kind} ")[-1].split(")")[0].split(",")[0])
            for masks in blocks(kind, leaf, plan.chunk):
                for name in ("between", "between_before", "span", "span_before"):
                    if name in masks:
                        assert float((gates @ masks[name].double().mT).max()) <= 0.0


def test_what_cannot_be_proved_does_not_compile():
    program = derive(check(document_of("gla")))
    with pytest.raises(UnprovableError, match="anchored"):
        schedule(program, Options(cover="anchored"))
