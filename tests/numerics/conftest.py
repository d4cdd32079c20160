"""Settings of the numerical tests: hypothesis profiles (HYPOTHESIS_PROFILE, `ci` unless told), one thread a worker."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import torch
from hypothesis import HealthCheck, settings

sys.path.insert(0, str(Path(__file__).parents[2]))  # for tests.strategies and tests.numerics.helpers

_SLOW = [HealthCheck.too_slow, HealthCheck.data_too_large]
settings.register_profile("ci", max_examples=40, deadline=None, derandomize=True, suppress_health_check=_SLOW)
settings.register_profile("long", max_examples=1000, deadline=None, suppress_health_check=_SLOW)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci"))
torch.set_num_threads(1)  # the tensors are small: threads cost more than they bring
