"""What stands between an installation and a run: versions, cards, and who else uses them.

    python gpu_check/installed.py

Prints each problem in a line, and their number in one JSON line, last.
"""

from __future__ import annotations

import importlib.metadata
import json
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import torch
from packaging.requirements import Requirement

ROOT: Final = Path(__file__).resolve().parent.parent
FREE_SHARE: Final = 0.9
_BFLOAT16_SINCE: Final = (8, 0)
_SIZE: Final = 512
_ROUNDING: Final = 0.02
"""Of a matrix product in bfloat16, as a share of its norm: eight bits a factor give 0.003."""


def main() -> None:
    gpus = torch.cuda.device_count()
    problems = [*versions(gpus), *driver(gpus)]
    for index in range(gpus):
        problems += card(index)
    for problem in problems:
        print(problem)
    print(json.dumps({"problems": len(problems)}), flush=True)


def versions(gpus: int) -> Iterator[str]:
    """Packages that are not what was tested together."""
    files = ["requirements-common.txt", "requirements-gpu.txt" if gpus else "requirements.txt"]
    for file in files:
        for line in (ROOT / file).read_text().splitlines():
            if line.strip() and not line.startswith(("#", "-")):
                yield from unmet(Requirement(line))


def unmet(wanted: Requirement) -> Iterator[str]:
    """A sentence where the environment has another version, or none."""
    try:
        found = importlib.metadata.version(wanted.name)
    except importlib.metadata.PackageNotFoundError:
        yield f"{wanted} is not installed: make install, with GPU=1 on NVIDIA GPUs"
        return
    if not wanted.specifier.contains(found, prereleases=True):
        yield f"{wanted.name} is {found}, and {wanted} was tested: make install"


def driver(gpus: int) -> Iterator[str]:
    """A GPU that this torch does not see."""
    if gpus or shutil.which("nvidia-smi") is None:
        return
    if torch.version.cuda is None:
        yield "there is an NVIDIA driver, and torch is a build for CPUs: make clean-install GPU=1"
    else:
        yield (
            "there is an NVIDIA driver, and torch sees no GPU: CUDA_VISIBLE_DEVICES may hide it, "
            f"or the driver is too old for CUDA {torch.version.cuda} (nvidia-smi shows its version)"
        )


def card(index: int) -> Iterator[str]:
    """What is wrong with a GPU."""
    found = torch.cuda.get_device_properties(index)
    if (found.major, found.minor) < _BFLOAT16_SINCE:
        yield f"GPU {index}, {found.name}, has no bfloat16: model.dtype=float32"
    free, total = torch.cuda.mem_get_info(index)
    if free < FREE_SHARE * total:
        yield (
            f"GPU {index}: something holds {(total - free) / 2**30:.1f} GiB of it (nvidia-smi "
            "names it); the engine wants its share free"
        )
    error = product_error(torch.device("cuda", index))
    if not error < _ROUNDING:
        yield f"GPU {index} computes a matrix product wrongly: its error is {error:.3g} of its norm"


def product_error(device: torch.device) -> float:
    """Of a product in bfloat16 against float64, as a share of its norm."""
    generator = torch.Generator().manual_seed(0)
    left, right = (torch.randn(_SIZE, _SIZE, generator=generator) for _ in range(2))
    exact = left.double() @ right.double()
    found = (left.to(device, torch.bfloat16) @ right.to(device, torch.bfloat16)).cpu().double()
    return float((found - exact).norm() / exact.norm())


if __name__ == "__main__":
    main()
