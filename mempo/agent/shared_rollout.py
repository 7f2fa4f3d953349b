"""The agent loop over an engine that several processes share."""

from __future__ import annotations

from typing import Any

from mempo.agent.rollout import Rollout
from mempo.engine.shared import SharedEngine
from mempo.trajectory import Trajectory


class SharedRollout(Rollout):
    """The agent loop where an engine is shared: the leader collects, the others follow and have
    collected nothing."""

    engine: SharedEngine

    def run(self, *arguments: Any, **named: Any) -> list[Trajectory]:
        """As ``Rollout.run``; every process of the group must call it."""
        if not self.engine.group.leads:
            self.engine.follow()
            return []
        try:
            return super().run(*arguments, **named)
        finally:
            self.engine.release()
