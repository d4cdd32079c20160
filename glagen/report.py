"""What a verification found, row by row, and how it is shown to a person and to a machine."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal

from rich.table import Table


@dataclass(frozen=True, slots=True)
class Row:
    """One tensor of one run: its errors and what they may be."""

    regime: str
    case: str
    precision: str
    mode: str  # saved, recomputed, or the name of an invariant
    quantity: str
    error: float  # relative RMS over the tensor
    channel: float  # the worst of its channels
    budget: float
    channel_budget: float

    @property
    def ok(self) -> bool:
        return self.error <= self.budget and self.channel <= self.channel_budget  # never so for NaN


@dataclass(frozen=True, slots=True)
class Report:
    """What was compared, row by row."""

    name: str
    device: str
    rows: tuple[Row, ...]

    @property
    def ok(self) -> bool:
        return bool(self.rows) and all(row.ok for row in self.rows)

    @property
    def failures(self) -> tuple[Row, ...]:
        return tuple(row for row in self.rows if not row.ok)

    def worst(self) -> tuple[tuple[Row, Row], ...]:
        """For each regime and precision the row worst over a tensor and the one worst over a channel."""
        groups: dict[tuple[str, str], list[Row]] = {}
        for row in self.rows:
            groups.setdefault((row.regime, row.precision), []).append(row)

        def share(error: float, budget: float) -> float:
            return math.inf if math.isnan(error) else error / budget if budget else error * math.inf if error else 0.0

        return tuple(
            (
                max(rows, key=lambda r: share(r.error, r.budget)),
                max(rows, key=lambda r: share(r.channel, r.channel_budget)),
            )
            for rows in groups.values()
        )

    def table(self) -> Table:
        """For a person: the worst of each regime and precision."""
        table = Table(title=f"{self.name} on {self.device}: {len(self.rows)} comparisons with the float64 recurrence")
        for column in ("gates", "precision", "tensor", "of", "allowed", "channel", "of", "allowed", ""):
            justify: Literal["left", "right"] = "left" if column in ("gates", "precision", "of") else "right"
            table.add_column(column, justify=justify, no_wrap=column != "of")  # in few columns, names take two lines
        for over, channel in self.worst():
            ok = over.ok and channel.ok
            table.add_row(
                over.regime,
                over.precision,
                _short(over.error),
                _where(over),
                _short(over.budget),
                _short(channel.channel),
                _where(channel),
                _short(channel.channel_budget),
                "ok" if ok else "FAILED",
                style=None if ok else "bold red",
            )
        return table

    def to_dict(self) -> dict[str, Any]:
        """The same for a machine; floats that JSON does not know as text."""

        def plain(x: Any) -> Any:
            return str(x) if isinstance(x, float) and not math.isfinite(x) else x

        rows = [
            {**{field: plain(getattr(row, field)) for field in Row.__dataclass_fields__}, "ok": row.ok}
            for row in self.rows
        ]
        return {"name": self.name, "device": self.device, "ok": self.ok, "rows": rows}


def _short(x: float) -> str:
    """1.5e-3, not 1.5e-03."""
    text = f"{x:.1e}"
    return text.replace("e-0", "e-").replace("e+00", "") if x else "0"


def _where(row: Row) -> str:
    return row.quantity if row.mode == "saved" else f"{row.quantity} ({row.mode})"
