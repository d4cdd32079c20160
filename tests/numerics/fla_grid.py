"""glagen.compat.fla against flash-linear-attention: python tests/numerics/fla_grid.py [--json FILE] [--only NAME ...].

By hand, on a GPU with fla-core 0.6.0. Output, final state and every gradient of ours are compared to those of fla's
function of the same name: the relative RMS of their difference. Where it exceeds TOLERANCE, the recurrence in float64
says who is right. Exits 1 if ours is then off by more than TOLERANCE and no nearer to the recurrence than fla's, if
ours raises, or if of some op nothing could be compared. What fla raises is reported, and agrees with nothing.

Each op is a process of its own: fla tunes every kernel for every head size, over dozens of configurations. `--quick`
has it try two, `--minutes` stops in time. To try this script itself: --device cpu --peer reference --small.
"""

from __future__ import annotations

import argparse
import functools
import importlib
import itertools
import json
import math
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

import torch  # noqa: E402
from torch import Tensor  # noqa: E402

from glagen.compat import fla  # noqa: E402
from glagen.compat.ops import OWN_SPECS  # noqa: E402
from glagen.files import write_text  # noqa: E402
from glagen.ir.document import Document  # noqa: E402
from glagen.reference import run_states  # noqa: E402
from glagen.regimes import Case, draw  # noqa: E402
from glagen.tolerances import PRECISIONS, errors  # noqa: E402
from tests.numerics.helpers import document_of, spec_text  # noqa: E402

TOLERANCE = 5e-3  # two results in bf16, each within PRECISIONS["bf16"].budget, the one's errors unlike the other's
LENGTHS = (1, 2, 17, 63, 64, 65, 129, 500, 1024, 2048)
SIZES = ((60, 60), (64, 64), (100, 100), (128, 128), (128, 256), (256, 256), (512, 512))  # K, V
SMALL = ((1, 2, 17, 63, 64), ((12, 12), (8, 20)))
BATCH, HEADS = 2, 4
VERDICTS = ("ours", "theirs", "both", "neither")  # who is right

LAYER = {"layer_idx": 3, "num_layers": 12}
RATES = {"g_gamma": (-0.5, -0.125, -0.01, 0.0)}  # of HEADS heads

Function = Callable[..., tuple[Tensor, Any]]  # with a signature of fla's
Results = dict[str, Tensor]


@dataclass(frozen=True, slots=True)
class Op:
    """A way to call one of fla's functions."""

    family: str  # of fla.ops
    functions: tuple[str, ...]  # the function, and another for where fla refuses it
    spec: str  # the recurrence it computes
    options: dict[str, Any] = field(default_factory=dict)

    @property
    def document(self) -> Document:
        return document_of(OWN_SPECS[self.spec] if self.spec in OWN_SPECS else spec_text(self.spec))


OPS = {
    "linear_attn": Op("linear_attn", ("chunk_linear_attn",), "linear_attn", {"normalize": False}),
    "linear_attn_normalized": Op("linear_attn", ("chunk_linear_attn",), "linear_attn_normalized", {"normalize": True}),
    "retention": Op("retention", ("chunk_retention",), "retnet"),
    "lightning_attn": Op("lightning_attn", ("chunk_lightning_attn",), "lightning_attn", LAYER),
    "simple_gla": Op("simple_gla", ("chunk_simple_gla", "fused_chunk_simple_gla"), "simple_gla"),
    "simple_gla_fixed": Op("simple_gla", ("chunk_simple_gla",), "retnet", RATES),
    "gla": Op("gla", ("chunk_gla",), "gla"),
    "rwkv6": Op("rwkv6", ("chunk_rwkv6",), "rwkv6"),
    "gsa": Op("gsa", ("chunk_gsa",), "gsa_written"),
}


# -- cases -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Setting:
    """Extents, and a row of an orthogonal array: any two of its columns have all combinations within eight rows."""

    T: int
    K: int
    V: int
    row: int

    @property
    def columns(self) -> dict[str, bool]:
        a, b, c = (bool(self.row >> bit & 1) for bit in range(3))
        return {"fp16": a, "packed": b, "unit": c, "initial": a != b, "final": b != c, "scaled": a != c}

    def __str__(self) -> str:
        return f"T{self.T} K{self.K} V{self.V} {' '.join(n for n, x in self.columns.items() if x) or 'plain'}"


def settings(turn: int, full: bool, small: bool) -> list[Setting]:
    """Every length once, head sizes and rows in turn from `turn` on; or all of them with each other."""
    lengths, sizes = SMALL if small else (LENGTHS, SIZES)
    if full:
        return [Setting(T, *size, row) for T, size, row in itertools.product(lengths, sizes, range(8))]
    return [Setting(T, *sizes[n % len(sizes)], n % 8) for n, T in enumerate(lengths, turn)]


@dataclass(frozen=True, slots=True)
class Call:
    """What a function is called with, in float64 on the CPU; bf16 and fp16 both hold every number."""

    tensors: dict[str, Tensor]
    options: dict[str, Any]
    initial: tuple[Tensor, ...]  # states, or none
    cotangents: tuple[Tensor, ...]  # of the output and of final states, if they are wanted
    ends: tuple[int, ...] | None  # cu_seqlens


def call_of(op: Op, setting: Setting) -> Call:
    """The same for the same setting. Packed are three sequences, of T steps, of one, and of a third of T."""
    chosen = setting.columns
    lengths = (setting.T, 1, setting.T // 3 + 1) if chosen["packed"] else (setting.T,) * BATCH
    case = Case(len(lengths), setting.T, HEADS, setting.K, setting.V)
    problem = draw(op.document, "unit" if chosen["unit"] else "mild", case)
    normalize = op.options.get("normalize", False)

    def packed(x: Tensor) -> Tensor:
        return torch.cat([x[n : n + 1, :length] for n, length in enumerate(lengths)], 1) if chosen["packed"] else x

    tensors = {}
    for d in op.document.declarations:
        x = problem.arguments[d.name]
        if d.kind in ("input", "parameter") and isinstance(x, Tensor):
            x = x.abs() if normalize and d.name in "qk" else x  # as feature maps make them: no divisor near zero
            tensors[d.name] = packed(x) if d.kind == "input" else x
    first, last = problem.initial_states, problem.state_cotangents
    if normalize:  # fla's sums of keys are [N, 1, H, K]
        first, last = (first[0], first[1].abs()[:, None]), (last[0], last[1][:, None])
    return Call(
        tensors,
        op.options | {"scale": 0.2 if chosen["scaled"] else None},
        first if chosen["initial"] else (),
        (packed(problem.output_cotangents[0]), *(last if chosen["final"] else ())),
        tuple(itertools.accumulate(lengths, initial=0)) if chosen["packed"] else None,
    )


# -- results -----------------------------------------------------------------------------------------------------------


def collect(found: Results, function: Function, call: Call, dtype: torch.dtype, device: str) -> Results:
    """Add what the function gives to `found`, then its gradients; parameters and states are float32 at least."""
    wide = torch.promote_types(dtype, torch.float32)
    tensors = {n: x.detach().to(device, wide if x.dim() == 2 else dtype) for n, x in call.tensors.items()}
    states = tuple(x.detach().to(device, wide) for x in call.initial)
    names = [*(f"d {n}" for n in tensors), "d initial_state", "d second initial_state"]
    leaves = dict(zip(names, (*tensors.values(), *states), strict=False))
    for x in leaves.values():
        x.requires_grad_()
    options = {n: torch.tensor(x, device=device) if isinstance(x, tuple) else x for n, x in call.options.items()}
    o, last = function(
        **tensors,
        **options,
        initial_state=states if len(states) > 1 else next(iter(states), None),
        output_final_state=len(call.cotangents) > 1,
        cu_seqlens=None if call.ends is None else torch.tensor(call.ends, device=device),
    )
    roots = (o, *(last if isinstance(last, tuple | list) else (last,)))[: len(call.cotangents)]
    found |= {n: x.detach() for n, x in zip(("o", "final_state", "second final_state"), roots, strict=False)}
    cotangents = [c.to(device, x.dtype) for c, x in zip(call.cotangents, roots, strict=True)]
    gradients = torch.autograd.grad(roots, list(leaves.values()), cotangents, materialize_grads=True)
    found |= zip(leaves, gradients, strict=True)
    if device == "cuda":
        torch.cuda.synchronize()  # what a kernel does wrong is raised here
    return found


def recurrence(
    document: Document,
    *,
    scale: float | None,
    initial_state: Any,
    output_final_state: bool,
    cu_seqlens: Tensor | None,
    normalize: bool = False,
    g_gamma: Tensor | None = None,
    layer_idx: int | None = None,
    num_layers: int = 1,
    **tensors: Tensor,
) -> tuple[Tensor, Any]:
    """What fla's function of these arguments is to give, step by step in float64."""
    k = tensors["k"]
    scale = k.shape[-1] ** -0.5 if scale is None else scale
    scalars = {"scale": scale} | ({} if layer_idx is None else {"depth": layer_idx / num_layers})
    if g_gamma is not None:
        tensors["gamma"] = g_gamma.double().exp()
    states = initial_state if isinstance(initial_state, tuple) else [initial_state] * len(document.states)
    if normalize and states[1] is not None:
        states = [states[0], states[1].squeeze(1)]
    ends = [0, k.shape[1]] if cu_seqlens is None else cu_seqlens.tolist()
    outputs, finals = [], []
    for n, (first, last) in enumerate(itertools.pairwise(ends)):
        own = slice(None) if cu_seqlens is None else slice(n, n + 1)
        part = {name: x[:, first:last] if x.dim() > 2 else x for name, x in tensors.items()}
        (o,), final = run_states(document, part | scalars, [x if x is None else x[own] for x in states])
        outputs.append(o)
        finals.append(final)
    last = [torch.cat(x) for x in zip(*finals, strict=True)]
    if normalize:
        last[1] = last[1][:, None]
    return torch.cat(outputs, 1), tuple(last) if len(last) > 1 else last[0]


def distance(x: Tensor, expected: Tensor) -> float:
    """The RMS of the difference by that of `expected`; infinite if shapes differ or x holds a NaN."""
    over = errors(x, expected, "BTHD"[: x.dim()])[0]
    return math.inf if math.isnan(over) else over


# -- one op ------------------------------------------------------------------------------------------------------------


def examine(op: Op, setting: Setting, peer: Callable[[str], Function], device: str) -> tuple[list[dict], list[str]]:
    """The comparisons of a setting, and what the peer refused."""
    call = call_of(op, setting)
    dtype = PRECISIONS["fp16" if setting.columns["fp16"] else "bf16"].dtype
    ours = collect({}, getattr(fla, op.functions[0]), call, dtype, device)

    @functools.cache
    def exact() -> Results:
        return collect({}, functools.partial(recurrence, op.document), call, torch.float64, device)

    rows, refused = [], []
    for name in op.functions:
        theirs: Results = {}
        try:
            collect(theirs, peer(name), call, dtype, device)
        except Exception as refusal:  # whatever fla or Triton may raise; a forward that it has given still counts
            where = "backward" if theirs else "forward"
            refused.append(f"{name}, {where}: {_message(refusal)}")
            if not _alive(device):
                break
        for quantity, x in theirs.items():
            row: dict[str, Any] = {"case": str(setting), "peer": name, "quantity": quantity}
            row["apart"] = distance(ours[quantity], x)
            if row["apart"] > TOLERANCE:
                off, theirs_off = (distance(y, exact()[quantity]) for y in (ours[quantity], x))
                row |= {"ours": off, "theirs": theirs_off, "right": _right(off, theirs_off)}
                row["failed"] = off > TOLERANCE and not off < theirs_off
            rows.append(row)
        if len(theirs) == len(ours):
            break
    return rows, refused


def _right(ours: float, theirs: float) -> str:
    if max(ours, theirs) <= TOLERANCE:
        return "both"
    return "neither" if min(ours, theirs) > TOLERANCE else "ours" if ours < theirs else "theirs"


def _child(name: str, options: argparse.Namespace) -> int:
    """Examine one op; what has been found lies in the file `part`, whatever happens later."""
    torch.set_num_threads(1)
    op, began = OPS[name], time.time()

    def peer(function: str) -> Function:
        if options.peer == "reference":
            return functools.partial(recurrence, op.document)
        found: Function = getattr(importlib.import_module(f"fla.ops.{op.family}"), function)
        return found

    if options.quick:
        _tune_less()
    peer(op.functions[0])  # not installed: say so at once
    wanted = settings(list(OPS).index(name), options.full, options.small)
    result = _nothing(name) | {"left": len(wanted)}
    for setting in wanted:
        if options.minutes and time.time() - began > 60 * options.minutes:
            break
        try:
            rows, refused = examine(op, setting, peer, options.device)
        except Exception as error:  # ours, or the reference
            rows, refused = [], []
            result["raised"].append(f"{setting}: {_message(error)}")
        result["cases"] += 1
        result["rows"] += rows
        result["refused"] += refused
        result["left"] -= 1
        write_text(Path(options.part), json.dumps(result))
        after = f"after {time.time() - began:.0f} s"
        print(f"{name} {result['cases']}/{len(wanted)} {setting}: {_worst(rows)}, {after}", flush=True)
        if refused and not _alive(options.device):
            print(f"{name}: the peer has broken the device: {refused[-1]}", flush=True)
            break
    return 0


def _tune_less() -> None:
    """Have Triton's tuner try two configurations of a kernel at most: any of them must be right."""
    from triton.runtime.autotuner import Autotuner

    admitted = Autotuner.prune_configs

    def few(tuner: Autotuner, arguments: dict[str, Any]) -> list[Any]:
        configs: list[Any] = admitted(tuner, arguments)
        return configs[:: (len(configs) + 1) // 2]

    Autotuner.prune_configs = few


def _message(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"


def _alive(device: str) -> bool:
    """Whether the device still computes: an access outside of memory ends that for the whole process."""
    try:
        return torch.ones(1, device=device).item() == 1
    except RuntimeError:
        return False


# -- all ops -----------------------------------------------------------------------------------------------------------


def main() -> int:
    options = _options()
    if options.part:
        return _child(options.only[0], options)
    device = torch.cuda.get_device_name() if options.device == "cuda" else options.device
    print(f"{device}, torch {torch.__version__}, against {options.peer}\n", flush=True)
    results = []
    with tempfile.TemporaryDirectory() as folder:
        running = [(name, Path(folder) / name, _start(name, folder, options)) for name in options.only or OPS]
        for name, part, process in running:
            code = process.wait()
            result = json.loads(part.read_text()) if part.exists() else _nothing(name)
            result["raised"] += [f"the process ended with {code}"] if code else []
            results.append(result)
    if options.json:
        Path(options.json).write_text(json.dumps(results, indent=1))
    return 0 if _show(results) else 1


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--full", action="store_true", help="every length with every head size: 560 cases an op")
    parser.add_argument("--only", nargs="+", choices=OPS, metavar="NAME", help=f"of {', '.join(OPS)}")
    parser.add_argument("--quick", action="store_true", help="tune fla's kernels over two configurations, not over all")
    parser.add_argument("--minutes", type=float, help="begin no case later than this")
    parser.add_argument("--json", help="write all numbers to this file")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--peer", choices=("fla", "reference"), default="fla", help="what ours is compared to")
    parser.add_argument("--small", action="store_true", help="tiny extents: to try this script itself")
    parser.add_argument("--part", help=argparse.SUPPRESS)
    return parser.parse_args()


def _start(name: str, folder: str, options: argparse.Namespace) -> subprocess.Popen:
    command = [sys.executable, __file__, "--only", name, "--part", str(Path(folder) / name)]
    command += ["--device", options.device, "--peer", options.peer]
    command += [flag for flag in ("--full", "--small", "--quick") if getattr(options, flag[2:])]
    return subprocess.Popen(command + (["--minutes", str(options.minutes)] if options.minutes else []))


def _nothing(name: str) -> dict[str, Any]:
    return {"op": name, "cases": 0, "left": 0, "rows": [], "refused": [], "raised": []}


def _show(results: list[dict]) -> bool:
    """Print a table and what is wrong; whether nothing is."""
    print(f"\nRight, where they differ by more than {TOLERANCE:.0e}:\n")
    print(f"| op | cases | compared | worst | {' | '.join(VERDICTS)} | refused |\n|{'---|' * 9}")
    for result in results:
        rows, counts = result["rows"], _rights(result["rows"])
        cells = [result["op"], result["cases"], len(rows), _worst(rows), *counts.values(), len(result["refused"])]
        print(f"| {' | '.join(map(str, cells))} |")
    print()
    for result in results:
        for text in result["raised"]:
            print(f"RAISED: {result['op']} {text}")
        for row in result["rows"]:
            if row.get("failed"):
                offs = f"ours is off by {row['ours']:.1e}, that of {row['peer']} by {row['theirs']:.1e}"
                print(f"OURS WORSE: {result['op']} {row['case']}: {row['quantity']}: {offs}")
        for text, count in Counter(result["refused"]).items():
            print(f"peer refused, {count} of {result['cases']} cases: {result['op']}: {text}")
    rows, raised, refused = ([x for r in results for x in r[n]] for n in ("rows", "raised", "refused"))
    failed = sum(row.get("failed", False) for row in rows)
    rights = ", ".join(f"{word} {count}" for word, count in _rights(rows).items())
    cases, left = (sum(r[n] for r in results) for n in ("cases", "left"))
    print(f"\n{len(rows)} comparisons in {cases} cases, {left} left out; above {TOLERANCE:.0e}, right: {rights};")
    print(f"ours worse {failed}, raised {len(raised)}; peer refused {len(refused)}")
    return not failed and not raised and all(r["rows"] for r in results)


def _rights(rows: list[dict]) -> dict[str, int]:
    counts = Counter(row.get("right") for row in rows)
    return {word: counts[word] for word in VERDICTS}


def _worst(rows: list[dict]) -> str:
    if not rows:
        return "nothing compared"
    row = max(rows, key=lambda r: r["apart"])
    return f"{row['apart']:.1e} ({row['quantity']})"


if __name__ == "__main__":
    sys.exit(main())
