"""Measurements as a table and as a plot."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from rich.table import Table

from glagen.bench.measure import Measurement


def table(name: str, rows: Sequence[Measurement]) -> Table:
    """Milliseconds, then how many times the floor; and for peers how many times as long as ours they take."""
    shown = Table(title=f"{name}: ms (times the floor), forward / forward and backward")
    for head in ("workload", "contender", "forward", "both", "ours is faster by", "MiB beyond", "CPU us"):
        shown.add_column(head, justify="left" if head in ("workload", "contender") else "right")
    ours = {row.workload: row for row in rows if row.contender == "glagen"}
    for row in rows:
        if row.forward is None or row.both is None:
            shown.add_row(row.workload, row.contender, row.fault)
            continue
        own = ours[row.workload]
        ratio = ""
        if row is not own and own.forward and own.both:
            ratio = f"{row.forward / own.forward:.2f} / {row.both / own.both:.2f}"
        shown.add_row(
            f"{row.workload} {row.extents}" if row is own else "",
            row.contender,
            f"{row.forward:.3f} ({row.forward / row.forward_floor:.1f})",
            f"{row.both:.3f} ({row.both / row.both_floor:.1f})",
            ratio,
            f"{row.memory / 2**20:.0f}",
            f"{row.cpu:.0f}",
        )
    return shown


def plot(name: str, rows: Sequence[Measurement], lengths: Sequence[int], path: Path) -> bool:
    """Time against T, both axes logarithmic, with the floor drawn; False where matplotlib is not installed.

    `lengths` are those of the workloads in order.
    """
    try:
        import matplotlib

        matplotlib.use("Agg")
        from matplotlib import pyplot
    except ImportError:
        return False
    figure, axes = pyplot.subplots(1, 2, figsize=(11, 4.5), sharey=True)
    workloads = list(dict.fromkeys(row.workload for row in rows))
    for axis, kind, title in zip(axes, ("forward", "both"), ("forward", "forward and backward"), strict=True):
        for contender in dict.fromkeys(row.contender for row in rows):
            own = {row.workload: getattr(row, kind) for row in rows if row.contender == contender}
            points = [(t, own[w]) for t, w in zip(lengths, workloads, strict=True) if own.get(w)]
            if points:
                axis.loglog(*zip(*points, strict=True), marker="o", label=contender)
        floors = {row.workload: getattr(row, f"{kind}_floor") for row in rows}
        axis.loglog(lengths, [floors[w] for w in workloads], "k--", label="floor")
        axis.set(title=f"{name}, {title}", xlabel="T", ylabel="ms")
        axis.grid(True, which="both", alpha=0.3)
        axis.legend()
    figure.tight_layout()
    figure.savefig(path)
    pyplot.close(figure)
    return True


def may_replace(results: Path) -> bool:
    """Is there no such file, or one that `glagen bench` wrote?"""
    if not results.exists():
        return True
    try:
        found = json.loads(results.read_text(encoding="utf-8"))
    except ValueError:
        return False
    return isinstance(found, dict) and {"device", "rows"} <= set(found)
