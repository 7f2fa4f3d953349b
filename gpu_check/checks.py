"""All checks, in their order: what stands first is what most others need."""

from __future__ import annotations

from typing import Final

from gpu_check.one_device import ENGINE, MACHINE, UPDATE
from gpu_check.whole_runs import PROCESSES, ROAD, SPEED

CHECKS: Final = (*MACHINE, *ENGINE, *UPDATE, *ROAD, *PROCESSES, *SPEED)
