"""A home folder for the libraries that keep files in one, where there is none to write to: in a
container, say, whose user has no entry in the system's list."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from mempo.runtime.disk import require_writable
from mempo.runtime.processes import is_first_process

_OF_LIBRARIES: Final = {
    "MPLCONFIGDIR": "matplotlib",
    "VLLM_CACHE_ROOT": "vllm",
    "VLLM_CONFIG_ROOT": "vllm-config",
    "TORCHINDUCTOR_CACHE_DIR": "torchinductor",
    "TRITON_CACHE_DIR": "triton",
}


def use_writable_home(cache_dir: str) -> None:
    """Lets libraries write below ``cache_dir`` where the home folder cannot be written to, and says
    so. A home folder that can be read stays the home: models may lie there.

    Raises ``ConfigError`` where ``cache_dir`` cannot be written to either.
    """
    try:
        home: Path | None = Path.home()
    except RuntimeError:
        home = None
    there = home is not None and home.is_dir()
    if there and os.access(str(home), os.W_OK):
        return
    require_writable(cache_dir, "cache_dir")
    place = Path(cache_dir).absolute() / "home"
    place.mkdir(parents=True, exist_ok=True)
    if not there:
        os.environ["HOME"] = str(place)
    for name, folder in _OF_LIBRARIES.items():
        os.environ.setdefault(name, str(place / folder))
    if is_first_process():
        reason = f"{home} cannot be written to" if home is not None else "there is none"
        print(f"home folder: {reason}; libraries keep their files in {place}", flush=True)
