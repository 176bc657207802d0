"""Flower without telemetry, our source tree on the path."""

from __future__ import annotations

import os
import sys
from pathlib import Path

os.environ["FLWR_TELEMETRY_ENABLED"] = "0"
sys.path[:0] = [str(Path(__file__).resolve().parents[2]), str(Path(__file__).resolve().parent)]
