"""`mempo train` from a checkout: `python train.py --help`."""

from __future__ import annotations

from mempo.command.train import main

if __name__ == "__main__":
    main()
