"""Imports the heavy packages, prints their versions, and says what to do when one fails.

Run by ``make install``; exit code 1 when a package does not import.
"""

from __future__ import annotations

import importlib
import os
import sys

os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")

PACKAGES = ("torch", "transformers", "vllm", "lightning")

UNNEEDED = ("torchvision", "torchaudio", "torchcodec")


def remedy(error: BaseException) -> str:
    """What a person can do about a failed import."""
    text = f"{type(error).__name__}: {error}"
    if any(name in text for name in (*UNNEEDED, "torchvision::nms")):
        return (
            "A package that does not fit this torch is installed, and nothing here needs it. "
            f"Remove it: {sys.executable} -m pip uninstall -y {' '.join(UNNEEDED)}"
        )
    if isinstance(error, ModuleNotFoundError):
        return "Run 'make clean-install' to build the environment again from the requirements."
    if ".so" in text:
        return (
            "A system library is missing or does not fit: install the one that the message names "
            "(on Debian, 'apt-get install libnuma1 libgomp1' brings those that vLLM uses on CPUs)."
        )
    return "Compare the versions above with requirements-common.txt, then run 'make clean-install'."


def main() -> int:
    """Checks every package; returns the exit code."""
    for name in PACKAGES:
        try:
            module = importlib.import_module(name)
        except Exception as error:
            print(f"  {name}: does not import ({type(error).__name__}: {error})")
            print(f"error: {name} cannot be used. {remedy(error)}", file=sys.stderr)
            return 1
        print(f"  {name} {getattr(module, '__version__', '(version unknown)')}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
