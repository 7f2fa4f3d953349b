"""What every section of the configuration has in common."""

from __future__ import annotations

from typing import Final

from pydantic import ConfigDict

STRICT: Final = ConfigDict(extra="forbid", allow_inf_nan=False)
"""An unknown name is an error, and no number is NaN or infinite."""
