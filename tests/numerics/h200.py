"""The table of a GPU: python tests/numerics/h200.py [--full]. Exits 1 if anything exceeds its tolerance.

Every spec, forward and all gradients, against the float64 recurrence at B2 T500 H4 with K=V=128 and K=96 V=160, in
every regime of gates and every precision: the worst relative RMS error over a tensor and over a channel. With --full
also at full size: one head against the recurrence; and times, of one spec after another. Everything else runs as one
process a spec and part, for some minutes and in 64 GiB (before glibc 2.38, whose heap fragments, 30 GiB a spec).
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

import torch  # noqa: E402

from glagen.ir.document import Document  # noqa: E402
from glagen.regimes import REGIMES, Case, Problem, draw  # noqa: E402
from glagen.tolerances import PRECISIONS  # noqa: E402
from glagen.variants import with_constants  # noqa: E402
from glagen.verify import CUDA_PRECISIONS, MODES, compare, op_results, reference_results, verify  # noqa: E402
from tests.numerics.helpers import document_of, generated, spec_text  # noqa: E402

TABLE_CASES = (Case(2, 500, 4, 128, 128), Case(2, 500, 4, 96, 160))
FULL_CASES = (Case(4, 4096, 64, 128, 128), Case(1, 65536, 8, 128, 128))
DRAWN = 4  # heads drawn in full size; the others repeat them


def main() -> int:
    options = _options()
    if options.part:
        return _child(options)
    names = options.specs or sorted(p.stem for p in (ROOT / "specs").glob("*.yaml"))
    device = torch.cuda.get_device_name() if options.device == "cuda" else options.device
    print(f"{device}, torch {torch.__version__}; specs: {' '.join(names)}\n", flush=True)
    parts = options.only or (["table", "full", "times"] if options.full else ["table"])
    results: dict[str, list] = {}
    ok = True
    began = time.time()
    running = {part: [_start(part, name, options) for name in names] for part in ("table", "full") if part in parts}
    for part, show in (("table", _print_table), ("full", _print_full)):
        if part in parts:
            results[part] = [x for process in running[part] for x in _collect(process)]
            print(f"({part}: after {time.time() - began:.0f} s)\n", flush=True)
            ok = show(results[part]) and ok
    if "times" in parts:
        print("Times in ms, bf16, mild gates: median of 20\n")
        print("| spec | extents | states | forward | forward and backward |\n|---|---|---|---|---|")
        results["times"] = []
        for name in names:  # one after another
            rows = _collect(_start("times", name, options))
            ok = _print_times(rows) and ok
            results["times"] += rows
    if options.json:
        Path(options.json).write_text(json.dumps(results, indent=1))
    print("\nall within tolerance" if ok else "\nTOLERANCES EXCEEDED")
    return 0 if ok else 1


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--full", action="store_true", help="also full-size agreement and times")
    parser.add_argument("--only", nargs="*", choices=("table", "full", "times"), help="these parts alone")
    parser.add_argument("--specs", nargs="*", help="names of specs; all unless given")
    parser.add_argument("--regimes", nargs="*", default=list(REGIMES))
    parser.add_argument("--precisions", nargs="*", default=list(CUDA_PRECISIONS))
    parser.add_argument("--modes", nargs="*", default=list(MODES))
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--small", action="store_true", help="tiny extents: to try this script itself")
    parser.add_argument("--json", help="write all numbers to this file")
    parser.add_argument("--part", choices=("table", "full", "times"), help=argparse.SUPPRESS)
    return parser.parse_args()


def _start(part: str, name: str, options: argparse.Namespace) -> subprocess.Popen:
    command = [sys.executable, __file__, "--part", part, "--specs", name, "--device", options.device]
    command += ["--regimes", *options.regimes, "--precisions", *options.precisions, "--modes", *options.modes]
    command += ["--small"] * options.small
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def _collect(process: subprocess.Popen) -> list:
    out, err = process.communicate()
    if process.returncode:
        print(err[-3000:], file=sys.stderr)
        return [{"spec": process.args[5], "crashed": err.strip().splitlines()[-1:]}]
    return json.loads(out.splitlines()[-1])


def _child(options: argparse.Namespace) -> int:
    name = options.specs[0]
    torch.set_num_threads(1)
    part = {"table": _table, "full": _full, "times": _times}[options.part]
    print(json.dumps(part(document_of(spec_text(name)), generated(name), options)))
    return 0


def _table(document: Document, module, options: argparse.Namespace) -> list[dict]:
    cases = [Case(2, 70, 2, 24, 40)] if options.small else TABLE_CASES
    rows = []
    for case in cases:
        report = verify(
            document,
            module,
            options.device,
            cases=[case],
            regimes=options.regimes,
            precisions=options.precisions,
            modes=options.modes,
            reference_device="cpu",  # its small kernels would wait for those of the other processes
        )
        rows += [{"spec": document.name, **row} for row in report.to_dict()["rows"]]
    return rows


def _print_table(rows: list[dict]) -> bool:
    ok = _print_crashes(rows)
    rows = [row for row in rows if "crashed" not in row]
    print("Worst relative RMS error over a tensor / over a channel; `!` where a tolerance is exceeded\n")
    precisions = list(dict.fromkeys(row["precision"] for row in rows))
    heads = [f"{p} ({PRECISIONS[p].budget:.1e} / {5 * PRECISIONS[p].budget:.1e})" for p in precisions]
    print(f"| spec | gates | {' | '.join(heads)} |\n|{'---|' * (2 + len(heads))}")
    for spec, regime in dict.fromkeys((row["spec"], row["regime"]) for row in rows):
        cells = []
        for precision in precisions:
            own = [r for r in rows if (r["spec"], r["regime"], r["precision"]) == (spec, regime, precision)]
            over, channel = (max((float(r[key]) for r in own), key=_badness) for key in ("error", "channel"))
            cells.append(f"{over:.1e} / {channel:.1e}{'' if all(r['ok'] for r in own) else ' !'}")
        print(f"| {spec} | {regime} | {' | '.join(cells)} |")
    bad = [row for row in rows if not row["ok"]]
    print(f"\n{len(rows)} comparisons, {len(bad)} exceed their tolerance")
    for row in bad[:60]:
        print("  ", *(row[k] for k in ("spec", "regime", "case", "precision", "mode", "quantity", "error", "channel")))
    print(flush=True)
    return ok and bool(rows) and not bad


def _badness(x: float) -> float:
    return float("inf") if x != x else x


def _full(document: Document, module, options: argparse.Namespace) -> list[dict]:
    """One head of the op at full size, bf16, mild gates, against the recurrence.

    All that were drawn where a gradient is one number a head: one alone may be as small as its rounding.
    """
    rows = []
    lone = any(d.kind == "parameter" and not d.axes for d in document.declarations)
    for case in [Case(2, 300, 8, 16, 16)] if options.small else FULL_CASES:
        few = _few(document, case)
        heads = range(case.H // 2, case.H // 2 + (DRAWN if lone else 1))
        problem = _large(document, few, case, options.device)
        drawn = [head % DRAWN for head in heads]
        expected = reference_results(document, _heads(document, few, drawn), torch.device("cpu"))
        for mode in options.modes:
            actual = op_results(document, module, problem, PRECISIONS["bf16"], torch.device(options.device), mode)
            sampled = {n: _pick(x, heads, expected[n]) for n, x in actual.items()}
            for row in compare(document, sampled, expected, PRECISIONS["bf16"], ("mild", str(case), "bf16", mode)):
                fields = {f: getattr(row, f) for f in ("case", "mode", "quantity", "error", "channel", "ok")}
                rows.append({"spec": document.name, **fields})
    return rows


def _few(document: Document, case: Case) -> Problem:
    """A problem of DRAWN heads; constants written out, for their defaults know the number of heads."""
    return with_constants(document, draw(document, "mild", replace(case, H=DRAWN)))


def _large(document: Document, few: Problem, case: Case, device: str) -> Problem:
    """The problem on the device, in bf16 (states in float32), with as many heads as `case` has: those of `few` again
    and again."""

    def spread(x, dimension: int, dtype: torch.dtype = torch.bfloat16):
        if not isinstance(x, torch.Tensor):
            return x
        counts = [case.H // DRAWN if d == dimension else 1 for d in range(x.dim())]
        return x.to(device, dtype).repeat(counts)

    arguments = {d.name: spread(few.arguments[d.name], 2 if "t" in d.axes else 0) for d in document.declarations}
    initial, final = (tuple(spread(x, 1, torch.float32) for x in s) for s in (few.initial_states, few.state_cotangents))
    return Problem(case, arguments, initial, tuple(spread(x, 2) for x in few.output_cotangents), final)


def _heads(document: Document, problem: Problem, heads: list[int]) -> Problem:
    arguments = {}
    for d in document.declarations:
        x = problem.arguments[d.name]
        arguments[d.name] = (x[:, :, heads] if "t" in d.axes else x[heads]) if isinstance(x, torch.Tensor) else x
    initial, final = (tuple(x[:, heads] for x in s) for s in (problem.initial_states, problem.state_cotangents))
    outputs = tuple(x[:, :, heads] for x in problem.output_cotangents)
    return Problem(replace(problem.case, H=len(heads)), arguments, initial, outputs, final)


def _pick(x: torch.Tensor, heads: range, like: torch.Tensor) -> torch.Tensor:
    """These heads of x, whose head axis is the one where it differs from `like`."""
    dimension = next(d for d, (a, b) in enumerate(zip(x.shape, like.shape, strict=True)) if a != b)
    return x.narrow(dimension, heads[0], len(heads)).cpu()


def _print_full(rows: list[dict]) -> bool:
    ok = _print_crashes(rows)
    rows = [row for row in rows if "crashed" not in row]
    print("Full size, bf16, mild gates: one head against the recurrence\n")
    print("| spec | extents | worst tensor | worst channel | |\n|---|---|---|---|---|")
    for spec, case in dict.fromkeys((row["spec"], row["case"]) for row in rows):
        own = [row for row in rows if (row["spec"], row["case"]) == (spec, case)]
        over, channel = (max(own, key=lambda r, k=key: _badness(r[k])) for key in ("error", "channel"))
        fine = all(row["ok"] for row in own)
        ok = ok and fine
        print(
            f"| {spec} | {case} | {over['error']:.1e} ({over['quantity']}) | "
            f"{channel['channel']:.1e} ({channel['quantity']}) | {'ok' if fine else '!'} |"
        )
    print(flush=True)
    return ok


def _times(document: Document, module, options: argparse.Namespace) -> list[dict]:
    """Milliseconds of a forward and of a forward with backward, no states in or out: median of 20 after warm-up."""
    rows = []
    function = getattr(module, document.name)
    for case in [Case(2, 300, 8, 16, 16)] if options.small else FULL_CASES:
        problem = _large(document, _few(document, case), case, options.device)
        arguments = problem.arguments
        kinds = {d.name: d.kind for d in document.declarations}
        leaves = [x for n, x in arguments.items() if isinstance(x, torch.Tensor) and kinds[n] != "constant"]
        cotangents = list(problem.output_cotangents)
        for mode in options.modes:

            def forward(mode=mode, arguments=arguments):
                return function(**arguments, states=mode)[:-1]

            def both(forward=forward, leaves=leaves, cotangents=cotangents):
                return torch.autograd.grad(forward(), leaves, cotangents)

            with torch.no_grad():
                once = _median(forward)
            for x in leaves:
                x.requires_grad_()
            row = {"spec": document.name, "case": str(case), "mode": mode, "forward": once, "both": _median(both)}
            rows.append(row)
            for x in leaves:
                x.requires_grad_(False)
    return rows


def _median(function, repeats: int = 20) -> float:
    for _ in range(5):
        function()
    times = []
    for _ in range(repeats):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        function()
        end.record()
        torch.cuda.synchronize()
        times.append(start.elapsed_time(end))
    return sorted(times)[repeats // 2]


def _print_times(rows: list[dict]) -> bool:
    for row in rows:
        if "crashed" not in row:
            times = f"{row['forward']:.3f} | {row['both']:.3f}"
            print(f"| {row['spec']} | {row['case']} | {row['mode']} | {times} |", flush=True)
    return _print_crashes(rows)


def _print_crashes(rows: list[dict]) -> bool:
    crashed = [row for row in rows if "crashed" in row]
    for row in crashed:
        print(f"CRASHED: {row['spec']}: {' '.join(row['crashed'])}")
    return not crashed


if __name__ == "__main__":
    sys.exit(main())
