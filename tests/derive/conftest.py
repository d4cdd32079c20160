"""Tests here import each other's helpers as `tests.*`, and run on one thread: the tensors are small."""

from __future__ import annotations

import sys
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parents[2]))
torch.set_num_threads(1)
