"""Verifies kernels in Triton's interpreter: python -m tests.numerics.interpreter_worker NAME

NAME is a spec, whose committed module is taken, or `random`: specs as tests/strategies.py makes them, or `local_sums`,
`divisors` or `numbers`: its LOCAL_SUMS, DIVISORS and NUMBERED, or `guarded`, a spec with that cover, or `mixed`, some
with gates in float32 beside float16, or `pieces`, some with sequences in pieces, or `few_rows` and `in_bfloat16`, some
in bfloat16 with hardly a row and with gates that ask most of it, or one of those that `main` tells apart; after
`whole `, in the interpreter as it is (see tests/interpreter.py). In a process of its own, with TRITON_INTERPRET=1 from
the start: Triton reads it when it is imported. Prints a report as JSON; exits 1 if a comparison fails.
"""

from __future__ import annotations

import functools
import inspect
import itertools
import json
import math
import os
import re
import sys
from collections.abc import Callable
from dataclasses import replace
from types import ModuleType

import numpy as np
import torch
from hypothesis import HealthCheck, Phase, given, settings

from glagen.ir.document import Document
from glagen.ir.schedule import Options
from glagen.ir.tuned import (
    ALONE,
    ALONE_KERNELS,
    BEYOND,
    BOTH,
    GIVEN,
    GIVEN_KERNELS,
    HALVED,
    KEPT_KERNELS,
    KEY_OPERANDS,
    OPERANDS,
    OTHERS,
    SHARED,
    SHARING,
    STRONG,
    Tuned,
    merged,
)
from glagen.pipeline import plan
from glagen.regimes import Case, draw
from glagen.report import Report
from glagen.schedule.tiles import differs, gated_sides
from glagen.tolerances import PRECISIONS
from glagen.variants import shared
from glagen.verify import MODES, compare, op_results, reference_results, verify
from tests import strategies
from tests.interpreter import spare_the_interpreter
from tests.numerics.bf16 import rounding
from tests.numerics.helpers import (
    CPU,
    all_gradients,
    both_sides,
    by_halves,
    changed_before,
    compiled,
    cut_in_pieces,
    cut_in_two,
    document_of,
    flattened,
    forget_runs,
    forward_shared,
    generated,
    given_by_halves,
    half_chunks,
    keep_on_chip,
    note_launches,
    operands_shared,
    past_reach_later,
    reads_kept,
    scores_apart,
    spec_text,
    twice_as_long,
    walks_given,
)
from tests.numerics.repeats import repeating

FP32 = replace(PRECISIONS["fp32"], budget=1e-4)  # parameters' gradients are sums that cancel: see test_properties.py
CASES = (Case(1, 80, 1, 20, 36), Case(1, 1, 2, 16, 16, state=False), Case(2, 65, 1, 32, 5))
MIXED = {"gla": ["g"], "gla_kv": ["gk", "gv"], "gla_v": ["g"], "rwkv6": ["w"]}  # gates of specs
COMPUTED_GATES = (
    spec_text("gla_v")
    .replace('domain: "[-inf, 0]", ', "")
    .replace("exp(g[t,j])", "exp(-softplus(g[t,j]))")
    .replace("chunk: auto", "chunk: 64", 1)
)
VALUES = {"gla_v": "g", "gla_kv": "gv"}  # those with gates of values, and these
WHOLE = "whole "  # before a name: in the interpreter as it is
UNWRITTEN = -77.25  # what no kernel computes
FEW_ROWS = ("gla", "gla_kv")
APART = ("gla", "gla_kv", "gla_v", "simple_gla", "rwkv6")
PIECES = [(n, 1) for n in ("gla_kv", "gla_sigmoid", "mamba2", "retnet", "linear_attn", "gsa", "mlstm")]
PIECES += [("gla_kv", 2), ("mamba2", 2)]
# Gates on values for which one growth serves whatever they are: there is no run for strong ones.
BOUNDED = spec_text("gla_v").replace('"[-inf, 0]"', '"[-1, 0]"')
# Specs whose runs are repeated, and the tables by which they have kernels of other kinds than the rule's.
REPEATED = {
    "gla": (twice_as_long,),
    "gla_kv": (operands_shared, forward_shared),
    "gla_v": (both_sides, reads_kept),
    "linear_attn": (all_gradients, walks_given),
    "mamba2": (),
}
IN_BFLOAT16 = [
    *((n, "reset", Case(2, 70, 2, 16, 16)) for n in ("gla", "gla_v")),
    *(("gla_kv", "strong", Case(2, *sizes)) for sizes in ((80, 2, 32, 32), (70, 2, 20, 12))),
]
IN_SEGMENTS = ("gla", "simple_gla", "mamba2", "gla_kv")  # gradients that two kernels add to; sums over columns
ON_CHIP = [("gla", 2), ("gla_kv", 1), ("gla_v", 1), ("simple_gla", 1)]  # pieces, too


def main(name: str) -> int:
    if os.environ.get("TRITON_INTERPRET") != "1":
        raise SystemExit("set TRITON_INTERPRET=1")
    if not name.startswith(WHOLE):
        spare_the_interpreter()
    name = name.removeprefix(WHOLE)
    torch.set_num_threads(1)
    if name == "local_sums":
        wide = Case(1, 20, 1, 40, 40)  # more than a tile holds of either axis
        report = verify(
            document_of(strategies.LOCAL_SUMS),
            compiled(strategies.LOCAL_SUMS),
            cases=[wide],
            precisions=["fp32"],
            regimes=["mild"],
        )
        return told(report.to_dict()["rows"])
    if name == "divisors":
        report = verify(
            document_of(strategies.DIVISORS),
            compiled(strategies.DIVISORS),
            cases=[Case(1, 40, 1, 20, 36)],
            precisions=["fp32"],
            regimes=["mild", "strong"],
        )
        return told(report.to_dict()["rows"])
    if name == "guarded":
        text, rows = spec_text("gla_kv"), []
        module = compiled(text, "guarded")
        for share in (1, module.SHARE):  # programs that one of the second pass looks after
            module._guarded = lambda programs, n=share: ({"STRONG": False, "SHARE": 1}, {"STRONG": True, "SHARE": n})
            report = verify(
                document_of(text),
                module,
                cases=[Case(1, 40, 1, 20, 36)],
                precisions=["fp32"],
                regimes=["mild", "strong", "reset"],
            )
            rows += report.to_dict()["rows"]
        return told(rows)
    if name == "second_runs":
        rows = second_runs() + strong_beside_mild("gla", "g") + strong_beside_mild("gla_v", "g")
        rows += [row for spec in ("gla", "gla_v", "gla_kv") for row in without_gradients(spec)]
        rows += [row for spec, gate in VALUES.items() for row in past_reach(spec, gate)]
        rows += [row for spec, gate in VALUES.items() for row in in_later_halves(spec_text(spec), gate)]
        return told(rows + in_later_halves(COMPUTED_GATES, "g", sign=-1))
    if name in ("later", "later_on_chip"):
        if name == "later_on_chip":  # where another kernel has some operands transposed
            sum_in_one_order()
        rows = []
        for spec, gates in MIXED.items():
            module = exact_gates(generated(spec), spec, gates, 1 - 2**-12)  # of more digits than inputs
            module._stays_on_chip = lambda *_: name == "later_on_chip"
            for precision in ("fp32", "fp16"):
                found = changed_before(document_of(spec_text(spec)), module, PRECISIONS[precision], CPU, "saved")
                rows.append({"spec": spec, "precision": precision, "changed": found, "ok": not found})
        return told(rows)
    if name == "numbers":
        rows = []
        for text in strategies.NUMBERED.values():
            module = compiled(text)
            given = {"cases": [Case(1, 40, 1, 20, 24)], "precisions": ["fp32"], "regimes": ["mild"], "modes": ["saved"]}
            rows += verify(document_of(text), module, invariants=False, **given).to_dict()["rows"]
            rows += on_chip(document_of(text), module)
        return told(rows)
    if name == "functions":
        given = {"cases": [Case(1, 20, 1, 20, 24)], "precisions": ["fp32"], "regimes": ["mild"], "modes": ["saved"]}
        reports = [
            verify(document_of(text), compiled(text), invariants=False, **given) for text in strategies.FUNCTIONS
        ]
        return told([row for report in reports for row in report.to_dict()["rows"]])
    if name == "derivatives":
        return told([derivatives(spec) for spec in ("gla", "simple_gla", "gsa")])
    if name == "mixed":
        return told([row for spec, gates in MIXED.items() for row in with_exact_gates(spec, gates)])
    if name == "pieces":
        rows = [row for spec, chunks in PIECES for row in in_pieces(spec, chunks)]
        return told(rows + [row for spec, chunks in ON_CHIP for row in in_pieces(spec, chunks, on_chip=True)])
    if name == "carried":
        return told([carried(pieces, reverse) for pieces in (1, 2, 8, 9, 16, 20) for reverse in (False, True)])
    if name == "apart":
        return told([row for spec in APART for row in with_scores_apart(spec)])
    if name.startswith("turned "):
        return told(in_turn(name.removeprefix("turned ")))
    if name.startswith("doubled "):
        return told(in_chunks_twice_as_long(name.removeprefix("doubled ")))
    if name == "given":
        rows, heads = [], (20, 24)
        bonus = " + tanh(sum(i, q[t,i] * k[t,i])) * v[t,j]"  # sums over columns have a kernel of their own as well
        for more in ("", bonus):
            text = spec_text("linear_attn").replace("S[t,i,j])", f"S[t,i,j]){more}")
            document = document_of(text)
            module = compiled(text, tuned=walks_given(document, 0, heads))
            rows += given_their_operands(document, module, heads)
        document = document_of(spec_text("linear_attn"))
        module = compiled(spec_text("linear_attn"), tuned=given_by_halves(document, 0, heads))
        config = module._config("fused_given", *heads, torch.float16)
        assert 2 * config["CHUNK"] == module._chunk(*heads, torch.float16) == 2 * module.CHUNK
        return told(rows + given_their_operands(document, module, heads))
    if name == "shared":
        return told(where_operands_are_shared("gla_kv") + where_a_forward_shares_them("gla_kv"))
    if name == "alone":
        texts = *strategies.UNGATED, strategies.UNGATED_CONSTANT
        rows = [row for text in texts for row in by_one_walk(text)]
        return told(rows + [row for text in strategies.UNGATED for row in where_one_kernel_makes_all_gradients(text)])
    if name == "halves":
        return told([row for spec in ("linear_attn", "simple_gla") for row in by_halves_of_chunks(spec)])
    if name == "longer":
        return told([row for spec in ("simple_gla", "retnet") for row in by_one_walk_in_longer_chunks(spec)])
    if name == "both":
        texts = spec_text("gla_v"), BOUNDED
        return told([row for text in texts for row in where_one_kernel_makes_both_sides(text)])
    if name.startswith("repeated "):
        return told(where_runs_are_repeated(name.removeprefix("repeated ")))
    if name == "kept":
        return told([row for text in (spec_text("gla_v"), BOUNDED) for row in where_reads_are_kept(text)])
    if name == "segments":
        rows = [row for spec in IN_SEGMENTS for row in in_segments(spec)]
        return told(rows + in_segments("gla", on_chip=True))
    if name == "mild_runs":
        texts = *strategies.PARAMETER_GATES, strategies.READ_TWICE, strategies.READ_NEGATIVE, strategies.FIXED_DECAYS
        return told([row for text in texts for row in in_mild_runs(text)])
    if name == "waiting":
        texts = strategies.COMPUTED_VALUES, strategies.COMPUTED_GRADIENTS
        return told([row for text in texts for row in where_states_wait(text)])
    if name == "few_rows":
        return told([row for spec in FEW_ROWS for row in of_few_rows(spec)])
    if name == "in_bfloat16":
        return told([row for given in IN_BFLOAT16 for row in in_bfloat16(*given)])
    if name == "random":
        test_the_kernels_are_the_recurrence()
        test_chunks_may_have_twice_as_many_steps()
        test_a_backward_may_share_its_operands()
        test_one_kernel_may_make_gradients_of_both_sides()
        test_gradients_of_values_may_be_of_what_others_read()
        test_runs_for_mild_gates_are_the_recurrence()
        return 0
    module = generated(name)
    calls = {n: 0 for n in vars(module) if n.startswith(("_forward_triton", "_backward_triton"))}
    for function in calls:  # a module that quietly took the PyTorch form would prove nothing
        setattr(module, function, _counted(getattr(module, function), function, calls))
    document = document_of(spec_text(name))
    first, *others = CASES
    several = len(document.states) > 1  # of one state `in_segments` has more to say
    reports = [
        verify(document, module, cases=[first], precisions=["fp32"], segments=several),
        verify(document, module, cases=others, precisions=["fp32"], regimes=["mild"], invariants=False),
        verify(document, module, cases=[first], precisions=["fp16"], regimes=["strong"], invariants=False),
    ]
    rows = [row for report in reports for row in report.to_dict()["rows"]]
    rows += on_chip(document, generated(name))
    rows += by_tma(document, generated(name)) if hasattr(module, "_is_by_tma") else []
    check_inplace(document, module)
    print(json.dumps({"calls": calls, "rows": rows}))
    return 0 if all(row["ok"] for row in rows) and calls and all(calls.values()) else 1


def sum_in_one_order() -> None:
    """Products of equal matrices have equal bits, however those lie in memory, as they have on tensor cores: BLAS has
    another order of sums for some that lie transposed."""
    matmul = np.matmul
    np.matmul = lambda a, b, **given: matmul(np.ascontiguousarray(a), np.ascontiguousarray(b), **given)


def told(rows: list[dict]) -> int:
    print(json.dumps({"rows": rows}))
    return 0 if rows and all(row["ok"] for row in rows) else 1


def on_chip(document: Document, module: ModuleType) -> list[dict]:
    """The rows of a forward that keeps the state on chip and saves what enters each chunk; and of a walk back that
    keeps its gradient there, also beside shared heads, of which some are not for it."""
    keep_on_chip(module)
    back = hasattr(module, f"{document.name}_fused_value_gradients_kernel")
    cases = [replace(CASES[0], H=2)] if back else CASES[:1]
    given = {"cases": cases, "modes": ["saved"]}
    rows = verify(document, module, precisions=["fp32"], regimes=["reset"], invariants=back, **given).to_dict()["rows"]
    if f"{document.name}_fused_kernel" in getattr(module, "FROM_SHARED", ()):
        module._is_by_tma = lambda config, states, measured=False: states is not None  # as on Hopper, in large tiles
        report = verify(document, module, precisions=["fp16"], regimes=["mild"], invariants=False, **given)
        rows += report.to_dict()["rows"]  # keys and states share a growth beside 16 bits
    return rows


def by_tma(document: Document, module: ModuleType) -> list[dict]:
    """The rows of walks that have chunk states stored by descriptors, as on Hopper; of packed sequences, too."""
    module._is_by_tma = lambda config, states, measured=False: states is not None
    given = {"cases": [Case(1, 40, 2, 20, 36)], "precisions": ["fp32"], "regimes": ["reset"], "modes": ["saved"]}
    return verify(document, module, **given).to_dict()["rows"]


def exact_gates(module: ModuleType, name: str, gates: list[str], factor: float = 1.0) -> ModuleType:
    """The module with gates in float32 beside inputs of any type: that stands for bfloat16 here."""
    op = getattr(module, name)
    setattr(module, name, lambda **given: op(**given | {gate: factor * given[gate].float() for gate in gates}))
    return module


def with_exact_gates(name: str, gates: list[str]) -> list[dict]:
    """The rows of a spec in float16 with gates in float32."""
    module = exact_gates(generated(name), name, gates)
    given = {"cases": [Case(1, 70, 1, 20, 24)], "precisions": ["fp16"], "regimes": ["mild", "reset", "neighbours"]}
    rows = verify(document_of(spec_text(name)), module, invariants=False, variants=False, **given).to_dict()["rows"]
    return [{"spec": name, **row} for row in rows]


def second_runs() -> list[dict]:
    """Programs of heads and sequences that have strong gates run again, and no others: beside each other in a batch,
    and packed, where the strong one is shorter than a chunk. On chip that is walks, and scores, which are made of whole
    chunks; and where a chunk's gates come to no more than a growth reaches at most, all that stays on chip, in pieces
    too, in a run for those; in memory none."""
    module = generated("gla")
    T, H = 2 * module.CHUNK, 2
    rows = []
    q, k, v = (torch.randn(2, T, H, n).half().requires_grad_() for n in (20, 20, 24))
    g = torch.full((2, T, H, 20), -0.1, dtype=torch.float16)
    g[1, :, 1, 7] = -3.2  # 102 nats a chunk
    module._stays_on_chip = lambda *_: True
    walks = "fused", "fused_value_gradients"
    given = {"q": q, "k": k, "v": v, "g": g.requires_grad_(), "states": "saved"}
    for run, steps in (
        ("FAR", {name: [T] for name in walks}),
        ("STRONG", {name: [0] for name in ("scores", *walks, "key_gradients")}),
    ):
        found = runs_again(module, run, **given)
        expected = {f"gla_{name}_kernel": counts for name, counts in steps.items()}
        rows.append({"run": run, "found": found, "ok": found == expected})
    module._stays_on_chip = lambda *_: False
    found = runs_again(module, "STRONG", **given)
    expected = {f"gla_{name}_kernel": [0] for name in ("outputs", "key_gradients", "value_gradients")}
    rows.append({"run": "in memory", "found": found, "ok": found == expected})
    in_pieces_of_one = generated("gla")
    keep_on_chip(in_pieces_of_one)
    cut_in_pieces(in_pieces_of_one, 1)
    found = runs_again(in_pieces_of_one, "FAR", **given)
    expected = {f"gla_{name}_kernel": [T] for name in walks}
    rows.append({"run": "in pieces", "found": found, "ok": found == expected})
    for lengths in (None, [0, T - 9, T - 9, T, 3 * T - 7]):
        shape = (3, T, H) if lengths is None else (1, 3 * T, H)
        q, k, v = (torch.randn(*shape, n).half().requires_grad_() for n in (20, 20, 24))
        g = torch.full((*shape, 20), -0.1, dtype=torch.float16)
        strong, steps = (g[1, :, 1, 7], T) if lengths is None else (g[0, T - 9 : T, 1, 7], 9)
        strong.fill_(-30.0)
        packed = None if lengths is None else torch.tensor(lengths)
        for on_chip, states in ((False, "saved"), (True, "saved"), (True, "recomputed")):
            module._stays_on_chip = lambda *_, chip=on_chip: chip
            found = runs_again(module, "STRONG", q=q, k=k, v=v, g=g.requires_grad_(), cu_seqlens=packed, states=states)
            makers = [*(walks if on_chip else ("outputs", "value_gradients")), "key_gradients"]
            expected = {f"gla_{name}_kernel": [steps] for name in makers}
            expected |= {"gla_scores_kernel": [-(-steps // module.CHUNK) * module.CHUNK]} if on_chip else {}
            rows.append({"lengths": lengths, "states": states, "found": found, "ok": found == expected})
    return rows + runs_of_closed_gates() + notes_of_forwards()


def notes_of_forwards() -> list[dict]:
    """A walk back takes scores of what is strong, and what that is, from a forward on chip, unless that kept nothing or
    had other pieces; of the shapes that torch.compile is told: of one block of value columns or several, whole or in
    pieces, and where two heads of outputs read one of the state."""
    rows = []
    for arrange, groups, V in itertools.product((forget_runs, cut_in_two), (1, 2), (16, 36)):
        module = generated("gla")
        keep_on_chip(module)
        arrange(module)
        q = torch.randn(2, 70, 2 * groups, 20, requires_grad=True)
        k, g = torch.randn(2, 70, 2, 20), torch.full((2, 70, 2, 20), -0.1)
        v = torch.randn(2, 70, 2, V, requires_grad=True)
        g[1, :, 1, 7] = -9.0
        kept, told = (run(1.0, q, k, v, g, None, None, "saved") for run in (module._run, module._run_shapes))
        same = [x.shape for x in kept] == [x.shape for x in told] and bool(kept[-1].any())
        rows.append({"arranged": arrange.__name__, "groups": groups, "V": V, "ok": same})
        if groups > 1:  # then values are shared, and no walk back stays on chip
            continue
        pieces, launched = module._pieces, []
        note_launches(module, launched.append)
        for states, other in (("saved", False), ("recomputed", False), ("saved", True)):
            o, _ = module.gla(q, k, v, g, states=states)
            if other:
                module._pieces = functools.partial(lambda n, *_: n, 1 if arrange is cut_in_two else 2)
            launched.clear()
            o.sum().backward()
            own = "gla_scores_kernel" in launched
            rows.append({"pieces": arrange.__name__, "states": states, "ok": own == (states != "saved" or other)})
            module._pieces = pieces
    return rows


def runs_of_closed_gates() -> list[dict]:
    """In which runs chunks are that have closed gates, for all that such a step leaves is a few of a growth's nats: one
    in the first run of all; seven of a channel, or one in the first chunk, for there may be more, in that which reaches
    further; more in that for strong gates. Of first chunks, those that come to nearly as much as a run reaches are in
    the next, for others may come to more."""
    module = generated("gla")
    keep_on_chip(module)
    chunk, closed = module.CHUNK, -math.inf
    T = 2 * chunk
    rows = []
    for start, count, gate, again in (
        (40, 1, closed, {}),
        (33, 7, closed, {"FAR": T}),
        (3, 1, closed, {"FAR": T}),
        (33, 8, closed, {"STRONG": T}),
        (0, chunk, -42 / chunk, {}),
        (0, chunk, -46 / chunk, {"FAR": T}),
        (chunk, chunk, -54 / chunk, {}),
        (0, chunk, -108 / chunk, {"FAR": T}),
        (0, chunk, -112 / chunk, {"STRONG": T}),
        (chunk, chunk, -120 / chunk, {"FAR": T}),
    ):
        q, k, v = (torch.randn(1, T, 1, n).half().requires_grad_() for n in (20, 20, 24))
        g = torch.full((1, T, 1, 20), -0.1, dtype=torch.float16)
        g[0, start : start + count, 0, 7] = gate
        given = {"q": q, "k": k, "v": v, "g": g.requires_grad_(), "states": "recomputed"}
        found = {run: runs_again(module, run, **given)["gla_fused_kernel"] for run in ("FAR", "STRONG")}
        expected = {run: [again.get(run, 0)] for run in found}
        rows.append({"gates": (start, count, gate), "found": found, "ok": found == expected})
    return rows


def strong_beside_mild(name: str, gate: str) -> list[dict]:
    """The rows of a spec where one head of the state has strong gates and the other has not, two heads of q read each,
    and the state stays on chip: in float16, whose first run makes no right states of strong gates."""
    document, module, precision = document_of(spec_text(name)), generated(name), PRECISIONS["fp16"]
    keep_on_chip(module)
    mild, strong = (draw(document, regime, Case(2, 70, 4, 20, 24)) for regime in ("mild", "strong"))
    gates = torch.cat([mild.arguments[gate][:, :, :1], strong.arguments[gate][:, :, 1:]], 2)  # type: ignore[index]
    few = shared(document, replace(mild, arguments=mild.arguments | {gate: gates}))
    assert few and few.call.arguments[gate].shape[2] == 2  # type: ignore[union-attr]
    expected = few.gathered(document, reference_results(document, few.whole, CPU))
    actual = op_results(document, module, few.call, precision, CPU, "saved")
    rows = compare(document, actual, expected, precision, ("mixed", name, "fp16", "saved"))
    return Report(name, "cpu", tuple(rows)).to_dict()["rows"]


def past_reach(name: str, gate: str) -> list[dict]:
    """The rows of a spec on chip, for gates of values that come to what a growth reaches in from 8 to 31 steps of each
    chunk, to a little less, and to a little more. There values go over from a walk to another kernel."""
    document, module = document_of(spec_text(name)), generated(name)
    keep_on_chip(module)
    problem = draw(document, "mild", Case(1, 70, 1, 20, 24))
    rows = []
    for precision, reach in ((PRECISIONS["fp32"], 60.0), (PRECISIONS["fp16"], 126.0)):
        gates = -(reach + torch.linspace(-1.0, 2.0, 24)) / torch.arange(8.0, 32.0)
        given = replace(problem, arguments=problem.arguments | {gate: gates.expand(1, 70, 1, 24).double()})
        expected = reference_results(document, given, CPU)
        actual = op_results(document, module, given, precision, CPU, "saved")
        rows += compare(document, actual, expected, precision, ("past reach", name, precision.name, "saved"))
    return Report(name, "cpu", tuple(rows)).to_dict()["rows"]


def in_later_halves(text: str, gate: str, sign: int = 1) -> list[dict]:
    """The rows of a spec on chip whose gates of values pass what a growth reaches in the later half of each chunk; of
    the third in its first half as well, or of the first; or chunks are few: which of them each run adds to."""
    document, module = document_of(text), compiled(text)
    keep_on_chip(module)
    name, launch, added, chunk = document.name, module._launch, {}, module.CHUNK
    T = 4 * chunk - 6
    problem = draw(document, "mild", Case(1, T, 2, 20, 24))

    def watched(kernel, programs, device, *arguments, passes=({},), **constants):
        of_beyond = kernel.fn.__name__ == f"{name}_{BEYOND}_kernel"
        for one in passes if of_beyond else ():
            (o,) = (x for n, x in zip(kernel.arg_names, arguments, strict=False) if n == "o_out_ptr")
            before = o.clone()
            launch(kernel, programs, device, *arguments, passes=(one,), **constants)
            steps = (o != before).any(-1).any(-1).flatten().nonzero().flatten().tolist()
            added[one["LATER"]] = ({t // chunk for t in steps}, {t % chunk < chunk // 2 for t in steps})
        if not of_beyond:
            launch(kernel, programs, device, *arguments, passes=passes, **constants)

    module._launch = watched
    rows = []
    whole = {0, 1, 2, 3}
    for precision, early, few, expected in (
        ("fp16", (), 0, {True: (whole, {False}), False: (set(), set())}),
        ("fp32", (), 0, {True: (whole, {False}), False: (set(), set())}),
        ("fp16", (2,), 0, {True: ({0, 1, 3}, {False}), False: ({2}, {False, True})}),
        ("fp32", (2,), 0, {True: ({0, 1, 3}, {False}), False: ({2}, {False, True})}),
        ("fp16", (0,), 0, {True: (set(), set()), False: (whole, {False, True})}),
        ("fp16", (), 10**6, {False: (whole, {False})}),
    ):
        added.clear()
        module._multiprocessors = lambda few=few: few
        gates = past_reach_later(problem.arguments[gate].clamp(-0.5, 0), chunk, early)  # type: ignore[union-attr]
        given = replace(problem, arguments=problem.arguments | {gate: sign * gates})
        actual = op_results(document, module, given, PRECISIONS[precision], CPU, "saved")
        labels = (f"later halves, but {early}", name, precision, "saved")
        rows += compare(document, actual, reference_results(document, given, CPU), PRECISIONS[precision], labels)
        assert added == expected, (precision, early, added)
    return Report(name, "cpu", tuple(rows)).to_dict()["rows"]


def without_gradients(name: str) -> list[dict]:
    """Outputs have the same bits whether chunk states are kept for a backward or dropped: those of sequences of mild
    gates are not stored then, nor are scores made, beside which those of strong ones run again, chunks in turn, three a
    sequence, by some kernels more than by others."""
    document, module = document_of(spec_text(name)), generated(name)
    keep_on_chip(module)
    turns = itertools.cycle((1, 8))
    module._in_turn = lambda config, programs: next(turns)
    empty = module._empty
    module._empty = lambda *shape, **options: empty(*shape, **options).fill_(
        0 if options["dtype"] == torch.int8 else math.nan
    )
    mild, strong = (draw(document, regime, Case(2, 70, 2, 20, 24)).arguments for regime in ("mild", "strong"))
    given = {n: torch.cat([x[:1], strong[n][1:]]) for n, x in mild.items() if isinstance(x, torch.Tensor)}
    given = {n: x.half() for n, x in given.items()}
    dropped = getattr(module, name)(**given, output_final_state=True)
    kept = getattr(module, name)(**given, output_final_state=True, states="saved")
    same = all(torch.equal(x, y) for x, y in zip(dropped, kept, strict=True))
    return [{"spec": name, "ok": same and bool(dropped[0].isfinite().all())}]


def runs_again(module: ModuleType, run: str, **given: torch.Tensor | str | None) -> dict[str, list[int]]:
    """How many steps of a head each kernel writes in a run, STRONG or FAR, in a call and its backward."""
    found: dict[str, set[int]] = {}
    launch = module._launch

    def watched(kernel, programs, device, *arguments, passes=({},), **constants):
        for one in passes:
            named = zip(kernel.arg_names, arguments, strict=False)
            again = [x for name, x in named if name.endswith("_out_ptr") and x is not None and one.get(run)]
            first = [x.clone() for x in again]
            for x in again:
                x.fill_(UNWRITTEN)
            launch(kernel, programs, device, *arguments, passes=(one,), **constants)
            for x, before in zip(again, first, strict=True):
                found.setdefault(kernel.fn.__name__, set()).add(int((x != UNWRITTEN).any(-1).sum()))
                x.copy_(torch.where(x == UNWRITTEN, before, x))

    module._launch = watched
    try:
        o, _ = module.gla(**given)
        o.sum().backward()
    finally:
        module._launch = launch
    return {name: sorted(counts) for name, counts in found.items()}


def in_pieces(name: str, chunks: int, on_chip: bool = False) -> list[dict]:
    """The rows of a spec whose sequences are walked along in two pieces, one of so many chunks and one of three steps,
    as on a GPU with room."""
    module = generated(name)
    if on_chip:
        keep_on_chip(module)
    cut: dict[str, set[int]] = {n: set() for n in vars(module) if n.startswith("_pieces")}

    def watched(function: str, original: Callable) -> Callable:
        def pieces(*arguments):
            found = original(*arguments)
            cut[function].add(found)
            return found

        return pieces

    for function in cut:  # one a state
        setattr(module, function, watched(function, getattr(module, function)))
    cut_in_pieces(module, chunks)
    report = verify(
        document_of(spec_text(name)),
        module,
        cases=[Case(2, chunks * module.CHUNK + 3, 2, 5, 6)],
        precisions=["fp32"],
        regimes=["reset"],
        modes=["saved"],
    )
    assert cut and all(found == {1, 2} for found in cut.values()), f"{name}: no sequence was cut"
    return [{"spec": name, **row} for row in report.to_dict()["rows"]]


def with_scores_apart(name: str) -> list[dict]:
    """The rows of a spec whose scores a kernel of their own makes, as a table says; with the state on chip, too."""
    document, launched = document_of(spec_text(name)), set()
    module = compiled(spec_text(name), tuned=scores_apart(document, 0, (20, 36)))
    note_launches(module, launched.add)
    given = {"cases": [Case(1, 70, 2, 20, 36)], "modes": ["saved"]}
    rows = verify(document, module, precisions=["fp32"], regimes=["reset"], **given).to_dict()["rows"]
    keep_on_chip(module)
    for precision, regime in (("fp32", "mild"), ("fp32", "strong"), ("fp16", "strong"), ("fp16", "neighbours")):
        report = verify(document, module, precisions=[precision], regimes=[regime], invariants=False, **given)
        rows += report.to_dict()["rows"]
    assert f"{name}_scores_kernel" in launched, launched
    return [{"spec": name, **row} for row in rows]


def where_states_wait(text: str) -> list[dict]:
    """The rows of a forward and a walk back of which one waits, with states stored and without, and in pieces."""
    document, module, launched = document_of(text), compiled(text), set[str]()
    note_launches(module, launched.add)
    rows = on_chip(document, module)
    assert {f"{document.name}_fused_kernel", f"{document.name}_fused_value_gradients_kernel"} <= launched
    cut_in_pieces(module)
    given = {"cases": [Case(2, 70, 2, 20, 24)], "precisions": ["fp32", "fp16"], "regimes": ["strong"]}
    rows += verify(document, module, invariants=False, **given).to_dict()["rows"]
    return [{"spec": document.name, **row} for row in rows]


def in_mild_runs(text: str) -> list[dict]:
    """The rows of a spec whose gates are mild and strong, in memory and on chip, beside inputs of 16 bits as well; on
    chip with chunk states stored, too, where a chunk's gates may be so strong as to have walks run again."""
    document, module, rows = document_of(text), compiled(text), []
    given = {"cases": [Case(2, 40, 2, 20, 24)], "precisions": ["fp32", "fp16"], "regimes": ["mild", "strong"]}
    for few in (0, 1):
        module._multiprocessors = lambda few=few: few
        forget_runs(module)
        rows += verify(document, module, invariants=False, **given).to_dict()["rows"]
    keep_on_chip(module)
    given |= {"modes": ["saved"], "precisions": ["fp16"], "regimes": ["mild", "neighbours"]}
    rows += verify(document, module, invariants=False, variants=False, **given).to_dict()["rows"]
    return [{"spec": document.name, **row} for row in rows]


def carried(pieces: int, reverse: bool) -> dict:
    """What enters each of so many pieces, two heads to a state, against one piece after another."""
    module, generator = generated("gla_kv"), torch.Generator().manual_seed(pieces)
    N, H, K, V = 2, 3, 20, 24
    ends, first = (torch.randn(n, H, K, V, generator=generator) for n in (N * pieces, N))
    gates = {"keys": (K, 1), "values": (1, V), "scalar": (1, 1)}
    left = {side: torch.rand(N * pieces, 2 * H, *x, generator=generator) for side, x in gates.items()}
    share = math.prod(x[:, ::2] for x in left.values()).unflatten(0, (N, pieces))
    given = {side: x.flatten(2) for side, x in left.items()}
    last = torch.empty_like(first)
    entering = module._carried(pieces, ends.clone(), first, last, **given, reverse=reverse).unflatten(0, (N, pieces))
    expected, state = [None] * pieces, first
    for n in reversed(range(pieces)) if reverse else range(pieces):
        expected[n] = state
        state = ends.unflatten(0, (N, pieces))[:, n] + share[:, n] * state
    found = torch.cat([entering, last[:, None]], 1)
    error = float((found - torch.stack([*expected, state], 1)).abs().max())
    return {"pieces": pieces, "reverse": reverse, "error": error, "ok": error < 1e-6}


def in_turn(name: str) -> list[dict]:
    """The rows of kernels that take eight chunks in turn, the last of which are fewer, and where gates are strong have
    tiles of their own, and take sixteen for gradients."""
    document = document_of(spec_text(name))
    planned = plan(document, Options(tuned=()))
    chunks = [k.name for k in planned.kernels if not k.scans]
    again = [f"{k.name}{STRONG}" for k in planned.kernels if differs(k)]
    tiles = dict.fromkeys(chunks, (32, 32)) | {n: (32 if "outputs" in n or "scores" in n else 16, 16) for n in again}
    kind = 0, gated_sides(planned.program), planned.chunk
    rest = "float32", 32, 32
    table = tuple(Tuned(*kind, n, *rest, *tile, 4, 2, 8, 0.0, 0.0, "", "") for n, tile in tiles.items())
    module, taken = compiled(spec_text(name), tuned=table), []
    assert inspect.getsource(module).count("\n    RUN: tl.constexpr,\n") == len(chunks)
    assert hasattr(module, "_in_longer_turn") == bool(again)
    module._in_longer_turn = lambda config, run, programs: taken.append(run) or 2 * run
    cases, regimes = [Case(1, 10 * planned.chunk - 7, 2, 32, 32)], ["mild", *["reset"] * bool(again)]
    given = {"cases": cases, "precisions": ["fp32"], "modes": ["saved"]}
    rows = verify(document, module, regimes=regimes, **given).to_dict()["rows"]
    assert {*taken} == ({8, 16} if "gradients" in tiles else {8}) if again else not taken, taken
    if again:  # one by one in the first run; in the second some of a mild sequence with some of a strong one
        module._in_turn, module._in_longer_turn = lambda config, programs: 1, lambda config, run, programs: 4 * run
        mild, strong = (draw(document, r, Case(2, 3 * planned.chunk - 7, 1, 32, 32)) for r in ("mild", "strong"))
        of = {n: x for n, x in mild.arguments.items() if isinstance(x, torch.Tensor)}
        both = {n: torch.cat([x[:1], strong.arguments[n][1:]]) for n, x in of.items()}  # type: ignore[index]
        problem = replace(mild, arguments=mild.arguments | both)
        expected = reference_results(document, problem, CPU)
        actual = op_results(document, module, problem, PRECISIONS["fp32"], CPU, "saved")
        found = compare(document, actual, expected, PRECISIONS["fp32"], ("mixed", name, "fp32", "saved"))
        rows += Report(name, "cpu", tuple(found)).to_dict()["rows"]
    if BEYOND in chunks:  # which adds to outputs, to none of them twice
        keep_on_chip(module)
        rows += verify(document, module, regimes=["neighbours"], **given).to_dict()["rows"]
    return rows


def in_chunks_twice_as_long(name: str) -> list[dict]:
    """The rows of heads whose chunks have twice as many steps, as a table says: with scores made apart and without, in
    pieces, and with operands that walks on chip are given; and whether strong gates change bits of outputs before."""
    document, (K, V) = document_of(spec_text(name)), (20, 24)
    table = twice_as_long(document, 0, (K, V))
    module = compiled(spec_text(name), tuned=tuple(x for x in table if x.kernel != "scores"))
    assert module._chunk(K, V, torch.float32) == 2 * module._chunk(64, V, torch.float32) == 2 * module.CHUNK
    given = {"cases": [Case(1, 80, 2, K, V)], "precisions": ["fp32"], "modes": ["saved"]}
    rows = verify(document, module, regimes=["reset"], **given).to_dict()["rows"]
    for precision in ("fp32", "fp16"):
        found = changed_before(document, module, PRECISIONS[precision], CPU, "saved", (K, V))
        rows.append({"precision": precision, "changed": found, "ok": not found})
    apart = compiled(spec_text(name), tuned=table)
    given = {"cases": [Case(2, 70, 2, K, V)], "invariants": False}
    rows += verify(document, apart, precisions=["fp16"], regimes=["mild", "strong"], **given).to_dict()["rows"]
    cut_in_pieces(apart)
    rows += verify(document, apart, precisions=["fp32"], regimes=["strong"], **given).to_dict()["rows"]
    return rows + given_their_operands(document, compiled(spec_text(name), tuned=table), (K, V))


def given_their_operands(document: Document, module: ModuleType, columns: tuple[int, int]) -> list[dict]:
    """The rows of walks on chip that are given what others make, as with many heads; and whether strong gates change
    bits of outputs before them."""
    launched = list[str]()
    module._multiprocessors = lambda: 1
    note_launches(module, launched.append)
    given = {"cases": [Case(1, 80, 2, *columns)], "precisions": ["fp32"]}
    rows = verify(document, module, regimes=["reset"], **given).to_dict()["rows"]
    given = {"cases": [Case(2, 70, 2, *columns)], "precisions": ["fp16"], "invariants": False}
    rows += verify(document, module, regimes=["mild", "strong"], **given).to_dict()["rows"]
    for precision in ("fp32", "fp16"):
        found = changed_before(document, module, PRECISIONS[precision], CPU, "saved", columns)
        rows.append({"precision": precision, "changed": found, "ok": not found})
    assert {f"{document.name}_{kernel}_kernel" for kernel in GIVEN_KERNELS} <= {*launched}
    assert f"{document.name}_outputs_kernel" not in launched
    usual, module._loads_by_tma = module._loads_by_tma, lambda config, *tensors: bool(tensors)
    given = {"cases": [Case(2, 70, 2, *columns)], "precisions": ["fp32"], "modes": ["saved"]}
    rows += verify(document, module, regimes=["reset"], **given).to_dict()["rows"]  # as where no tiles come ahead
    module._loads_by_tma = usual
    problem = draw(document, "mild", Case(1, 40, 1, *columns))
    each = 2 if "STRONG" in vars(module)[f"{document.name}_scores_kernel"].arg_names else 1  # launches, mild and strong
    for states, makers in (("saved", 1), ("recomputed", 2)):  # they are kept where chunk states are
        launched.clear()
        op_results(document, module, problem, PRECISIONS["fp16"], CPU, states)
        assert launched.count(f"{document.name}_scores_kernel") == each * makers
    launched.clear()
    cut_in_two(module)
    given = {"cases": [Case(2, 150, 2, *columns)], "precisions": ["fp16"], "regimes": ["strong"], "invariants": False}
    rows += verify(document, module, **given).to_dict()["rows"]
    walks = "states", "adjoint_states", *GIVEN_KERNELS
    assert {f"{document.name}_{kernel}_kernel" for kernel in walks} <= {*launched}
    return rows


def where_operands_are_shared(name: str) -> list[dict]:
    """The rows of a spec whose backward takes what two kernels make once for all of it, as a table says."""
    document, (K, V), launched = document_of(spec_text(name)), (20, 36), set()
    module = compiled(spec_text(name), tuned=operands_shared(document, 0, (K, V)))
    note_launches(module, launched.add)
    rows = verify(document, module, cases=[Case(1, 70, 2, K, V)], precisions=["fp32"], regimes=["reset"]).to_dict()[
        "rows"
    ]
    given = {"cases": [Case(2, 40, 2, K, V)], "precisions": ["fp16"], "invariants": False, "modes": ["saved"]}
    rows += verify(document, module, regimes=["mild", "strong", "neighbours"], **given).to_dict()["rows"]
    cut_in_pieces(module)
    rows += verify(document, module, regimes=["strong"], **given).to_dict()["rows"]
    assert {f"{document.name}_{kernel}_kernel" for kernel in (*SHARED, *SHARING)} <= launched
    assert not {f"{document.name}_{kernel.removesuffix('_given')}_kernel" for kernel in SHARING} & launched
    return rows


def where_a_forward_shares_them(name: str) -> list[dict]:
    """The rows of a spec whose forward on chip is given what a kernel makes of keys, which it keeps for the backward;
    and whether strong gates change bits of outputs before them."""
    document, (K, V), launched = document_of(spec_text(name)), (20, 36), list[str]()
    module = compiled(spec_text(name), tuned=forward_shared(document, 0, (K, V)))
    module._multiprocessors = lambda: 1
    note_launches(module, launched.append)
    rows = verify(document, module, cases=[Case(1, 70, 2, K, V)], precisions=["fp32"], regimes=["reset"]).to_dict()[
        "rows"
    ]
    given = {"cases": [Case(2, 70, 2, K, V)], "precisions": ["fp16"], "invariants": False}
    rows += verify(document, module, regimes=["mild", "strong", "neighbours"], **given).to_dict()["rows"]
    for precision in ("fp32", "fp16"):
        found = changed_before(document, module, PRECISIONS[precision], CPU, "saved", (K, V))
        rows.append({"precision": precision, "changed": found, "ok": not found})
    walk, made, beyond, fused = (f"{name}_{kernel}_kernel" for kernel in (GIVEN, OPERANDS, BEYOND, "fused"))
    assert {walk, made, beyond} <= {*launched} and fused not in launched
    problem = draw(document, "mild", Case(1, 40, 1, K, V))
    for states, again in (("saved", 0), ("recomputed", 1)):  # they are kept where chunk states are
        launched.clear()
        op_results(document, module, problem, PRECISIONS["fp16"], CPU, states)
        assert launched.count(made) == 2  # for mild gates, then for strong ones, with more chunks in turn
        assert launched.count(f"{name}_{KEY_OPERANDS}_kernel") == 2 * again
    launched.clear()
    cut_in_two(module)
    given = {"cases": [Case(1, 80, 2, K, V)], "precisions": ["fp16"], "regimes": ["strong"], "invariants": False}
    rows += verify(document, module, **given).to_dict()["rows"]
    assert {walk, f"{name}_states_kernel"} <= {*launched}
    return rows


def where_one_kernel_makes_all_gradients(text: str) -> list[dict]:
    """A backward is one walk, as a table says, and a forward of other tensors; but not if heads share a tensor. Each is
    made if what it makes is asked for: whether gradients are those of other kernels. And the rows where other walks are
    given scores."""
    document, (K, V), launched = document_of(text), (20, 36), set()
    module = compiled(text, tuned=all_gradients(document, 0, (K, V)))
    module._multiprocessors = lambda: 1
    note_launches(module, launched.add)
    alone, others = (f"{document.name}_{name}_kernel" for name in (OTHERS, "key_gradients"))
    problem = draw(document, "mild", Case(1, 70, 2, K, V))
    given = {n: x.half() for n, x in problem.arguments.items() if isinstance(x, torch.Tensor)}
    fewer = {n: x[:, :, :1] for n, x in given.items() if n != "q"}

    def gradients(
        arguments: dict[str, torch.Tensor], leaves: str, segment: int | None = None
    ) -> dict[str, torch.Tensor]:
        launched.clear()
        forget_runs(module)
        tensors = {n: x.clone().requires_grad_(n in leaves) for n, x in arguments.items()}
        o, _ = module.op(**tensors, segment=segment)
        return dict(zip(leaves, torch.autograd.grad(o, [tensors[n] for n in leaves], torch.ones_like(o)), strict=True))

    rows, asked = [], ("qkv", "qk", "v", "q")
    found = [(gradients(given, leaves), {*launched}) for leaves in asked]
    gradients(given | fewer, "qkv")
    assert alone not in launched and others in launched
    is_alone = module._is_alone
    for leaves, (here, kernels) in zip(asked, found, strict=True):
        assert (alone in kernels) == (leaves != "q") and others not in kernels
        module._is_alone = lambda *_: False
        there = gradients(given, leaves)
        assert alone not in launched and (others in launched) == (leaves != "v")
        module._is_alone = is_alone
        parts = gradients(given, leaves, module.CHUNK)  # into which kernels write where they lie, if that is asked for
        assert alone in launched and others not in launched  # for the gradients of states between them
        rows += [
            {"quantity": f"d{n} of {leaves}", "ok": bool((x[n] - there[n]).abs().max() <= 2e-3 * there[n].abs().max())}
            for x in (here, parts)
            for n in there
        ]
    return rows + beside_walks_that_are_given_scores(text, tuple(given.values()), (K, V))


def where_one_kernel_makes_both_sides(text: str) -> list[dict]:
    """The rows of a spec whose gradients of chunks one kernel makes, as a table says, where gates are mild; then along
    sequences in pieces. But not if heads share a tensor, nor if not all gradients are asked for."""
    document, (K, V), launched = document_of(text), (20, 36), []
    module = compiled(text, tuned=both_sides(document, 0, (K, V)))
    note_launches(module, launched.append)
    both = f"{document.name}_{BOTH}_kernel"
    case = Case(1, 70, 2, K, V)
    rows = verify(document, module, cases=[case], precisions=["fp32"], regimes=["reset"]).to_dict()["rows"]
    given = {"cases": [Case(2, 40, 2, K, V)], "precisions": ["fp16"], "invariants": False, "modes": ["saved"]}
    rows += verify(document, module, regimes=["mild", "strong", "neighbours"], **given).to_dict()["rows"]
    cut_in_pieces(module)
    rows += verify(document, module, regimes=["strong"], **given).to_dict()["rows"]
    assert both in launched
    problem = draw(document, "mild", case)
    arguments = {n: x.float() for n, x in problem.arguments.items() if isinstance(x, torch.Tensor)}
    fewer = {n: x[:, :, :1] for n, x in arguments.items() if n != "q"}
    found, names = [], [*arguments]
    for tensors, leaves in ((arguments, names), (arguments, names[:-1]), (arguments | fewer, names)):
        launched.clear()
        tensors = {n: x.clone().requires_grad_(n in leaves) for n, x in tensors.items()}
        o, _ = getattr(module, document.name)(**tensors)
        found.append(torch.autograd.grad(o, [tensors[n] for n in leaves], torch.ones_like(o)))
        assert (both in launched) == (len(found) == 1)
        others = {f"{document.name}_{side}_gradients_kernel" for side in ("key", "value")}
        assert not others & {*launched} or len(found) > 1 or text != BOUNDED
    same = [(x - y).abs().max() <= 1e-5 * y.abs().max() for x, y in zip(found[0], found[1], strict=False)]
    return [*rows, {"quantity": "gradients both ways", "ok": all(same)}]


def where_reads_are_kept(text: str) -> list[dict]:
    """The rows of a spec whose gradients of values are made of what others read of states, as a table says, where gates
    are mild: of calls of one chunk, with scores made apart, packed, in pieces. But not if heads share a tensor, not all
    gradients are asked for, or the forward stays off the chip or keeps nothing."""
    document, (K, V), launched = document_of(text), (20, 36), []
    table = reads_kept(document, 0, (K, V))
    kept = {f"{document.name}_{kernel}_kernel" for kernel in KEPT_KERNELS}
    case, rows = Case(1, 70, 2, K, V), []
    given = {"cases": [Case(2, 40, 2, K, V)], "precisions": ["fp16"], "invariants": False, "modes": ["saved"]}
    for apart in (False, True):
        module = compiled(text, tuned=merged(table, scores_apart(document, 0, (K, V)) if apart else ()))
        keep_on_chip(module)
        note_launches(module, launched.append)
        rows += verify(document, module, cases=[case], precisions=["fp32"], regimes=["reset"]).to_dict()["rows"]
        rows += verify(document, module, regimes=["mild", "strong", "neighbours"], **given).to_dict()["rows"]
        assert kept <= {*launched}
    one = given | {"cases": [Case(2, 30, 2, K, V)]}
    rows += verify(document, module, regimes=["mild"], **one).to_dict()["rows"]
    problem = draw(document, "mild", case)
    arguments = {n: x.float() for n, x in problem.arguments.items() if isinstance(x, torch.Tensor)}
    fewer = {n: x[:, :, :1] for n, x in arguments.items() if n != "q"}
    found, names = [], [*arguments]
    for tensors, leaves, states in (
        (arguments, names, "saved"),
        (arguments, names[:-1], "saved"),
        (arguments | fewer, names, "saved"),
        (arguments, names, "recomputed"),
    ):
        launched.clear()
        tensors = {n: x.clone().requires_grad_(n in leaves) for n, x in tensors.items()}
        o, _ = getattr(module, document.name)(**tensors, states=states)
        found.append(torch.autograd.grad(o, [tensors[n] for n in leaves], torch.ones_like(o)))
        assert bool(kept & {*launched}) == (len(found) == 1)
        others = {f"{document.name}_{side}_gradients_kernel" for side in ("key", "value")}
        assert not others & {*launched} or len(found) > 1 or text != BOUNDED
    same = [
        (x - y).abs().max() <= 1e-5 * y.abs().max() for n in (1, 3) for x, y in zip(found[0], found[n], strict=False)
    ]
    cut_in_pieces(module)
    launched.clear()
    rows += verify(document, module, regimes=["mild", "strong"], **given).to_dict()["rows"]
    assert kept <= {*launched}
    return [*rows, {"quantity": "gradients both ways", "ok": all(same)}]


def where_runs_are_repeated(name: str) -> list[dict]:
    """The rows of calls alike, of which all but the first of each form repeat a run: with kernels as by the rule, then
    as some tables say; on chip, and in pieces in memory."""
    document, (K, V), rows = document_of(spec_text(name)), (20, 36), []
    cases, regimes, seeds = [Case(2, 70, 2, K, V)], ["mild", "strong"], (0, 1)
    for table in (None, *REPEATED[name]):
        for arrange, small in ((keep_on_chip, 2**24), (cut_in_pieces, 2**10)):  # bytes, in tensors that share a buffer
            module = compiled(spec_text(name), tuned=() if table is None else table(document, 0, (K, V)))
            module._multiprocessors, module.SMALL = (lambda: 1), small
            arrange(module)
            with repeating(module) as repeated:
                for seed in seeds:
                    given = {"invariants": False, "variants": False, "seed": seed}
                    report = verify(document, module, cases=cases, precisions=["fp16"], regimes=regimes, **given)
                    rows += report.to_dict()["rows"]
            calls = len(MODES) * len(regimes) * len(seeds)
            alike = hasattr(module, "_reads_no_states") and arrange is keep_on_chip  # backwards, in either mode
            assert len(repeated) == 2 * calls - (3 if alike else 4), len(repeated)  # all but the first of each form
    return rows


def by_one_walk(text: str) -> list[dict]:
    """The rows of a spec without gates whose backward is one walk, as a table says; then along two pieces."""
    document, (K, V), launched = document_of(text), (20, 36), set()
    module = compiled(text, tuned=all_gradients(document, 0, (K, V)))
    module._multiprocessors = lambda: 1
    note_launches(module, launched.add)
    given = {"precisions": ["fp32"], "regimes": ["mild"]}
    rows = verify(document, module, cases=[Case(2, 150, 2, K, V), Case(1, 1, 3, K, V)], **given).to_dict()["rows"]
    alone = {f"{document.name}_{kernel}_kernel" for kernel in ALONE_KERNELS}
    assert alone & launched
    launched.clear()
    cut_in_two(module)
    rows += verify(document, module, cases=[Case(2, 150, 2, K, V)], **given).to_dict()["rows"]
    assert alone & launched and f"{document.name}_adjoint_states_kernel" in launched
    return rows


def by_halves_of_chunks(name: str) -> list[dict]:
    """The rows of a spec whose forward takes chunks by halves where no states are stored, as a table says; then along
    pieces, which are of whole chunks."""
    document, (K, V), launched = document_of(spec_text(name)), (20, 36), list[str]()
    module = compiled(spec_text(name), tuned=by_halves(document, 0, (K, V)))
    module._multiprocessors = lambda: 1
    note_launches(module, launched.append)
    halved, fused = (f"{name}_{kernel}_kernel" for kernel in (HALVED, "fused"))
    given = {"precisions": ["fp32"], "regimes": ["reset"], "modes": ["recomputed"]}
    rows = verify(document, module, cases=[Case(2, 80, 2, K, V), Case(1, 1, 3, K, V)], **given).to_dict()["rows"]
    assert halved in launched and fused not in launched
    launched.clear()
    op_results(document, module, draw(document, "mild", Case(1, 80, 1, K, V)), FP32, CPU, "saved")
    assert launched and halved not in launched
    launched.clear()
    cut_in_two(module)
    cases = [Case(1, length, 2, K, V) for length in (80, 200)]  # two pieces, one of an odd number of chunks
    rows += verify(document, module, cases=cases, invariants=False, **given).to_dict()["rows"]
    assert {halved, f"{name}_states_kernel"} <= {*launched}
    return rows


def by_one_walk_in_longer_chunks(name: str) -> list[dict]:
    """The rows of a spec with a scalar gate whose backward is one walk, in chunks of twice as many steps as others, of
    which its forward stores states and takes halves; then along pieces. But not if heads share a tensor, or if not all
    gradients are asked for."""
    document, (K, V), launched = document_of(spec_text(name)), (20, 36), set[str]()
    module = compiled(spec_text(name), tuned=half_chunks(document, 0, (K, V)))
    module._multiprocessors = lambda: 1
    keep_on_chip(module)
    note_launches(module, launched.add)
    kernel = ALONE if name == "simple_gla" else OTHERS
    alone, fused, others = (f"{name}_{kernel}_kernel" for kernel in (kernel, "fused", "key_gradients"))
    config = module._config("fused", K, V, torch.float16)
    assert 2 * config["CHUNK"] == module._chunk(K, V, torch.float16) == 2 * module._chunk(64, V, torch.float16)
    given = {"precisions": ["fp16"], "modes": ["saved"]}
    cases = [Case(2, 150, 2, K, V), Case(1, 33, 2, K, V), Case(1, 1, 3, K, V)]
    rows = verify(document, module, cases=cases[:1], regimes=["mild"], **given).to_dict()["rows"]
    given |= {"invariants": False}
    rows += verify(document, module, cases=cases, regimes=["strong", "reset", "neighbours"], **given).to_dict()["rows"]
    assert {alone, fused} <= launched
    launched.clear()
    cut_in_two(module)
    cases = [Case(1, length, 2, K, V) for length in (100, 200)]
    rows += verify(document, module, cases=cases, regimes=["strong"], **given).to_dict()["rows"]
    assert {alone, f"{name}_states_kernel", f"{name}_adjoint_states_kernel"} <= launched
    launched.clear()
    drawn = draw(document, "mild", Case(1, 70, 2, K, V)).arguments
    given = {n: x.half() for n, x in drawn.items() if isinstance(x, torch.Tensor)}
    tensors = {n: (x[:, :, :1] if n == "k" else x).clone().requires_grad_(n != "gamma") for n, x in given.items()}
    o, _ = getattr(module, name)(**tensors)
    o.sum().backward()
    assert others in launched and alone not in launched
    return rows


def beside_walks_that_are_given_scores(text: str, tensors: tuple[torch.Tensor, ...], columns: tuple[int, int]) -> list:
    """The rows where a walk makes all gradients but those of queries after one that is given scores: neither these nor
    states are kept for it, as torch.compile is told; but for others, if heads share tensors as well."""
    document = document_of(text)
    module = compiled(text, tuned=(*all_gradients(document, 0, columns), *walks_given(document, 0, columns)))
    module._multiprocessors = lambda: 1
    given = {"cases": [Case(1, 70, 2, *columns)], "precisions": ["fp32"], "regimes": ["mild"]}
    rows = verify(document, module, **given).to_dict()["rows"]
    is_alone, (query, *others) = module._is_alone, tensors
    shared = (query, *(x[:, :, :1] for x in others))
    for cut in (forget_runs, cut_in_two):
        cut(module)
        for alone, of in ((is_alone, tensors), (is_alone, shared), (lambda *_: False, tensors)):
            module._is_alone = alone
            forget_runs(module)
            kept, told = (run(0.5, *of, None, None, "saved") for run in (module._run, module._run_shapes))
            assert [x.shape for x in kept] == [x.shape for x in told]
            assert all(bool(x.numel()) == (alone != is_alone or of is shared) for x in kept[-2:])
    module._is_alone = is_alone
    forget_runs(module)
    return rows + verify(document, module, **given | {"cases": [Case(1, 150, 2, *columns)]}).to_dict()["rows"]


def in_segments(name: str, on_chip: bool = False) -> list[dict]:
    """The rows of a spec whose sequences are walked along in segments, which kernels take as parts of these; also where
    heads share tensors. There are chunk states of one segment at a time."""
    document, module, case = document_of(spec_text(name)), generated(name), Case(2, 150, 2, 20, 12)
    if on_chip:
        keep_on_chip(module)
    most, apart, empty = set(), set(), module._empty

    def watched(*shape, **given):
        if shape[1:] == (case.H, case.K, case.V) and given["dtype"] == module._kept_type(given["dtype"]):
            most.add(shape[0])
        return empty(*shape, **given)

    def noted(run: Callable) -> Callable:
        def noting(*given):
            apart.update(x for x in given if type(x) is int)  # how many steps apart sequences are
            return run(*given)

        return noting

    module._empty = watched
    for run in ("_forward_triton", "_backward_triton"):
        setattr(module, run, noted(getattr(module, run)))
    rows = []
    for regime, precision in (("reset", PRECISIONS["fp32"]), ("strong", PRECISIONS["fp16"])):
        problem = draw(document, regime, case)
        actual = op_results(document, module, problem, precision, CPU, segments=3)
        labels = (regime, str(case), precision.name, "in segments")
        rows += compare(document, actual, reference_results(document, problem, CPU), precision, labels)
    few = shared(document, draw(document, "reset", case))
    assert few is not None
    expected = few.gathered(document, reference_results(document, few.whole, CPU))
    actual = op_results(document, module, few.call, PRECISIONS["fp32"], CPU, segments=3)
    rows += compare(document, actual, expected, PRECISIONS["fp32"], ("reset", str(case), "fp32", "heads shared"))
    chunks = case.B * 64 // module.CHUNK
    found = {"chunks": sorted(most), "apart": sorted(apart), "ok": max(most) == chunks and apart == {case.T}}
    return [*({"spec": name, **row} for row in Report(name, "cpu", tuple(rows)).to_dict()["rows"]), found]


def of_few_rows(name: str) -> list[dict]:
    """The rows of a spec in bfloat16 of one step and two heads, ten times: what a step reads is then its own write, and
    where that score is small, nothing hides how its terms were rounded."""
    document, module, bf16 = document_of(spec_text(name)), rounding(name), PRECISIONS["bf16"]
    rows = []
    for seed in range(10):
        problem = draw(document, "strong", Case(1, 1, 2, 64, 64), seed)
        expected = reference_results(document, problem, CPU)
        actual = op_results(document, module, problem, bf16, CPU, "saved")
        rows += compare(document, actual, expected, bf16, ("strong", str(seed), "bf16", "saved"))
    return [{"spec": name, **row} for row in Report(name, "cpu", tuple(rows)).to_dict()["rows"]]


def in_bfloat16(name: str, regime: str, case: Case) -> list[dict]:
    """The rows of a spec with that type's roundings. Beside gates on both sides there is one less in gradients, which
    would be 4.01e-3 off with it: of scores, and of what the gates' own are made of."""
    document, module, bf16 = document_of(spec_text(name)), rounding(name), PRECISIONS["bf16"]
    problem = draw(document, regime, case)
    expected = reference_results(document, problem, CPU)
    actual = op_results(document, module, problem, bf16, CPU, "saved")
    rows = compare(document, actual, expected, bf16, (regime, f"{case}", "bf16", "saved"))
    return [{"spec": name, **row} for row in Report(name, "cpu", tuple(rows)).to_dict()["rows"]]


def derivatives(name: str) -> dict:
    """First derivatives by torch.func, and where a second may be asked for, are autograd's; a second one is refused. A
    step that overwrites a state tells autograd."""
    document, module = document_of(spec_text(name)), generated(name)
    problem = draw(document, "mild", Case(1, 20, 2, 16, 16))
    given = {n: x.float() if isinstance(x, torch.Tensor) else x for n, x in problem.arguments.items()}
    first = next(d.name for d in document.declarations if d.kind == "input")

    def total(x):
        return getattr(module, name)(**{**given, first: x})[0].square().sum()

    x = given[first].clone().requires_grad_()
    (expected,) = torch.autograd.grad(total(x), x)
    (again,) = torch.autograd.grad(total(x), x, create_graph=True)
    found = torch.func.grad(total)(x.detach())
    faults = []
    for second in (
        lambda: again.sum().backward(),
        lambda: torch.func.grad(lambda y: torch.func.grad(total)(y).sum())(x),
    ):
        try:
            second()
        except RuntimeError as error:
            faults.append(str(error))
    states = tuple(x.float().requires_grad_() * 1.0 for x in problem.initial_states)
    loss = sum(x.square().sum() for x in states)
    step = {n: x[:, 0] if isinstance(x, torch.Tensor) and x.dim() > 2 else x for n, x in given.items()}
    with torch.no_grad():
        getattr(module, f"{name}_step")(**step, state=states if len(states) > 1 else states[0], inplace=True)
    try:
        loss.backward()
    except RuntimeError as error:
        faults.append(str(error))
    said = ["double backward needs the PyTorch form"] * 2 + ["modified by an inplace operation"]
    told_so = len(faults) == 3 and all(a in b for a, b in zip(said, faults, strict=True))
    same = torch.equal(found, expected) and torch.equal(again, expected)
    return {"spec": name, "faults": faults, "same": same, "ok": same and told_so}


def check_inplace(document: Document, module: ModuleType) -> None:
    """A step that overwrites the state gives the bits of one that does not, for heads that read one state too."""
    problem = draw(document, "mild", Case(2, 1, 4, 20, 36))
    few = shared(document, problem)
    assert few is not None
    for call in (problem, few.call):
        kinds = {d.name: d.kind for d in document.declarations}
        given = {
            n: (x[:, 0] if kinds[n] == "input" else x).float() if isinstance(x, torch.Tensor) else x
            for n, x in call.arguments.items()
        }
        states = tuple(x.float() for x in call.initial_states)
        state = states if len(states) > 1 else states[0]
        step = getattr(module, f"{document.name}_step")
        o, following = step(**given, state=state)
        again, same = step(**given, state=state, inplace=True)
        assert torch.equal(o, again)
        for x, y, z in zip(*(flattened([s]) for s in (following, state, same)), strict=True):
            assert torch.equal(x, y) and z is y


SOME = settings(
    max_examples=25,
    deadline=None,
    derandomize=True,
    database=None,
    phases=[Phase.generate],  # shrinking would take minutes here: test_properties.py finds small examples on the twin
    suppress_health_check=list(HealthCheck),
)
SHORT = strategies.cases(longest=80, widest=24)


@SOME
@given(strategies.any_specs(), SHORT, strategies.regimes, strategies.seeds)
def test_the_kernels_are_the_recurrence(text, case, regime, seed):
    """As they come; every other time with sequences that can be cut into pieces, and are; on chip, or in memory."""
    document, module = document_of(text), compiled(text)
    if seed % 2 == 1:  # chunks of 16 or 32 steps, those of 64 are not
        case = replace(case, T=64)
        cut_in_pieces(module)
    else:  # the module of a spec that comes again is the same
        module._multiprocessors = lambda: 0
    if seed % 4 < 2:
        keep_on_chip(module)
    is_the_recurrence(document, module, regime, case, seed)


@SOME
@given(strategies.specs(), SHORT, strategies.regimes, strategies.seeds)
def test_chunks_may_have_twice_as_many_steps(text, case, regime, seed):
    """Of any spec with scalar gates, or gates on keys that guarded covers serve. Every other time walks are given what
    others make, if that may be, which it may without gates too, and forwards take chunks by halves, if they may."""
    text = re.sub(r"^((?:sub)?chunk): .*$", r"\1: auto", text, flags=re.MULTILINE)
    document = document_of(text)
    makers = given_by_halves if seed % 3 == 0 else twice_as_long, walks_given, by_halves
    table = tuple(row for made in makers for row in made(document, 0, (case.K, case.V)))
    module = compiled(text, tuned=table)
    is_longer = hasattr(module, "_chunk")
    assert not is_longer or module._chunk(case.K, case.V, torch.float32) == 2 * module.CHUNK
    if is_longer or hasattr(module, "_takes_over"):
        module._multiprocessors = lambda: seed % 2
        forget_runs(module)
        is_the_recurrence(document, module, regime, case, seed)


@SOME
@given(strategies.specs(), SHORT, strategies.regimes, strategies.seeds)
def test_a_backward_may_share_its_operands(text, case, regime, seed):
    """Of any spec with gates on both sides; every other time with sequences in pieces."""
    document = document_of(text)
    module = compiled(text, tuned=operands_shared(document, 0, (case.K, case.V)))
    if hasattr(module, "_key_operands_triton"):
        forget_runs(module)
        if seed % 2 == 1:
            case = replace(case, T=64)
            cut_in_pieces(module)
        is_the_recurrence(document, module, regime, case, seed)


@SOME
@given(strategies.specs(), SHORT, strategies.regimes, strategies.seeds)
def test_one_kernel_may_make_gradients_of_both_sides(text, case, regime, seed):
    """Of any spec with gates on values alone; every other time with sequences in pieces."""
    document = document_of(text)
    module = compiled(text, tuned=both_sides(document, 0, (case.K, case.V)))
    if hasattr(module, f"{document.name}_{BOTH}_kernel"):
        forget_runs(module)
        if seed % 2 == 1:
            case = replace(case, T=64)
            cut_in_pieces(module)
        is_the_recurrence(document, module, regime, case, seed)


@SOME
@given(strategies.specs(), SHORT, strategies.regimes, strategies.seeds)
def test_gradients_of_values_may_be_of_what_others_read(text, case, regime, seed):
    """Of any spec with gates on values alone; every other time with sequences in pieces."""
    document = document_of(text)
    module = compiled(text, tuned=reads_kept(document, 0, (case.K, case.V)))
    if hasattr(module, "_keeps_reads"):
        keep_on_chip(module)
        if seed % 2 == 1:
            case = replace(case, T=64)
            cut_in_pieces(module)
        is_the_recurrence(document, module, regime, case, seed)


@SOME
@given(strategies.specs(), SHORT, strategies.regimes, strategies.seeds)
def test_runs_for_mild_gates_are_the_recurrence(text, case, regime, seed):
    """In float16, for that of wider inputs there are none; every other time with the state on chip."""
    document, module = document_of(text), compiled(text)
    if hasattr(module, "_guarded"):
        module._stays_on_chip = lambda *_: seed % 2 == 1
        forget_runs(module)
        given = {"cases": [replace(case, T=max(case.T, 8))], "precisions": ["fp16"], "regimes": [regime]}
        report = verify(document, module, invariants=False, modes=["saved"], **given)
        assert report.ok, f"{text}\n{report.failures}"


def is_the_recurrence(document: Document, module: ModuleType, regime: str, case: Case, seed: int) -> None:
    """In float32, states saved and made again."""
    problem = draw(document, regime, case, seed)
    expected = reference_results(document, problem, CPU)
    for mode in MODES:
        actual = op_results(document, module, problem, FP32, CPU, mode)
        rows = compare(document, actual, expected, FP32, (regime, str(case), "fp32", mode))
        bad = [row for row in rows if not row.ok]
        assert not bad, f"{document.source.text}\n{bad}"


def _counted(function, name, calls):
    def wrapper(*args, **kwargs):
        calls[name] += 1
        return function(*args, **kwargs)

    return wrapper


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
