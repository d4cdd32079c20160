"""Gradients of queries that are outputs of the same recurrence, of other tensors.

From S[t] = a S[t-1] + k[t] v[t] and o[t,j] = c sum_i q[t,i] S[t,i,j] follows dq[t,i] = c sum_j do[t,j] S[t,i,j]: what
the forward makes of do in the place of q, v in that of k, and k in that of v, whose state is S with its axes changed
over. All other gradients read no states if `a` has no gradient. So beside a walk back that makes these (see alone.py)
no forward need store any, and the one that makes gradients of queries is the fastest there is.

H200, torch 2.11, Triton 3.6.0, bf16, forward and backward, where states were stored and one walk made all gradients,
and so, ms, with MiB beyond arguments, outputs and gradients: linear_attn, B4 T4096 H64 K=V=128 1.47 -> 1.12, 512 -> 0;
B1 T65536 H8 0.95 -> 0.87, 272 -> 32; B1 T4096 H8 0.093 -> 0.094, 24 -> 16; B32 T2048 H16 K=V=64 0.511 -> 0.506, 128 ->
0. retnet, in these sizes, 1.90 -> 1.66, 1160 -> 0; 1.21 -> 1.13, 596 -> 32; 0.114 -> 0.120, 44 -> 16; 0.523 -> 0.528,
128 -> 0.
"""

from __future__ import annotations

from glagen.ir.chunk import ChunkProgram
from glagen.ir.expr import Expr, Number, Ref, factors, refs
from glagen.ir.recurrence import Gate, Recurrence
from glagen.ir.tuned import ALONE, OTHERS


def mirrored(program: ChunkProgram) -> tuple[tuple[str, str], ...]:
    """For the argument of queries, and those of keys and of values, the tensor in its place in the forward that makes
    the first one's gradient. Empty where there is none: where gates have columns or gradients, where queries, keys or
    values are computed, or there are several of them."""
    recurrence = program.recurrence
    if len(recurrence.states) != 1 or not all(_is_fixed(recurrence, gate) for gate in recurrence.states[0].gates):
        return ()
    writes, reads, outputs = recurrence.states[0].writes, recurrence.reads, recurrence.outputs
    if not len(writes) == len(reads) == len(outputs) == 1:
        return ()
    (write,), (read,), (output,) = writes, reads, outputs
    product = [x for x in factors(output.value) if not (isinstance(x, Ref) and x.name == read.name)]
    if len(product) != len(factors(output.value)) - 1:
        return ()
    tensors = [x for x in (*factors(read.query), *product) if not _is_number(recurrence, x)]
    names = [x.name for x in (*tensors, write.key, write.value) if isinstance(x, Ref)]
    inputs = {d.name: d.axes for d in recurrence.declarations if d.kind == "input"}
    if len(tensors) != 1 or [inputs.get(name) for name in names] != [("t", "i"), ("t", "i"), ("t", "j")]:
        return ()
    query, key, value = names
    return ((query, program.cotangents[0]), (key, value), (value, key)) if query != key else ()


def walk_alone(program: ChunkProgram) -> str:
    """The walk back that makes all gradients, or all but those of queries where a forward makes these."""
    return OTHERS if mirrored(program) else ALONE


def _is_fixed(recurrence: Recurrence, gate: Gate) -> bool:
    """Is a gate the same for all columns, and for all steps, without a gradient?"""
    fixed = {d.name for d in recurrence.declarations if d.kind in ("constant", "scalar")}
    return not gate.axes and {x.name for x in refs(gate.log)} <= fixed


def _is_number(recurrence: Recurrence, x: Expr) -> bool:
    """Is a factor the same for all steps and columns?"""
    scalars = {d.name for d in recurrence.declarations if d.kind == "scalar"}
    return isinstance(x, Number) or (isinstance(x, Ref) and x.name in scalars)
