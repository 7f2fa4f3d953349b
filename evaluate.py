"""`mempo evaluate` from a checkout: `python evaluate.py --help`."""

from __future__ import annotations

from mempo.command.evaluate import main

if __name__ == "__main__":
    main()
