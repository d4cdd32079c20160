"""How long an op takes, next to what memory allows and to what others take: `glagen bench`."""

from glagen.bench.measure import Measurement, bench, cold_start
from glagen.bench.show import may_replace, plot, table
from glagen.bench.workloads import FIGURE_2, WORKLOADS, Workload

__all__ = ["FIGURE_2", "WORKLOADS", "Measurement", "Workload", "bench", "cold_start", "may_replace", "plot", "table"]
