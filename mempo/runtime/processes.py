"""The processes of a run: which one is the first, and none outlives the one that launched it."""

from __future__ import annotations

import os
import threading
import time

_LOOK_EVERY_SECONDS = 2.0


def is_first_process() -> bool:
    """True in the process of rank 0, also before Lightning has set processes up."""
    return all(os.environ.get(name, "0") == "0" for name in ("LOCAL_RANK", "RANK", "NODE_RANK"))


def end_with_parent() -> None:
    """In a process that another one launched for a further rank: ends it when that one is gone.

    A rank whose launcher was killed would otherwise work on until its next exchange with it.
    Lightning looks after the other direction: the launcher ends all when a further rank ends.
    """
    if os.environ.get("LOCAL_RANK", "0") == "0":
        return
    parent = os.getppid()

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(_LOOK_EVERY_SECONDS)
        os._exit(1)

    threading.Thread(target=watch, name="end-with-parent", daemon=True).start()
