"""From a trajectories file to the figures of each of its groups."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from mempo.forgetting.figures import forgetting_figures
from mempo.records.trajectory_lines import TrajectoryLine, read_trajectories
from mempo.runtime.errors import MempoError
from mempo.runtime.names import short_labels
from mempo.runtime.run_folder import TRAJECTORIES_FILE
from mempo.world.facts import world_chains

DETAILED_GROUPS: Final = 6
"""So many groups are shown by age and by round; a run has an epoch for each line of the summary."""


@dataclass(frozen=True)
class Group:
    """Trajectories of one model, context mode and epoch (as in the file, from 0; ``None``: of all
    epochs). Model and context are empty in files of ``train.py``."""

    model: str
    context: str
    epoch: int | None
    label: str
    figures: dict[str, Any]


@dataclass(frozen=True)
class Report:
    """``others`` counts the lines whose tasks are not the generated world's, ``memoryless`` names
    models and contexts that were left out because their agent writes no memory."""

    groups: tuple[Group, ...]
    others: int
    memoryless: tuple[str, ...] = ()

    def as_json(self) -> dict[str, Any]:
        """What ``forgetting.json`` holds."""
        return {
            "other_trajectories": self.others,
            "groups": [
                {"model": g.model, "context": g.context, "epoch": g.epoch, **g.figures}
                for g in self.groups
            ],
        }

    def detailed(self) -> list[Group]:
        """At most ``DETAILED_GROUPS``, from the first to the last at even distances, of those in
        which a fact was established; of all where there is none."""
        single = [group for group in self.groups if group.epoch is not None]
        groups = [group for group in single if group.figures["established"]] or single
        if len(groups) <= DETAILED_GROUPS:
            return groups
        last = len(groups) - 1
        steps = [round(i * last / (DETAILED_GROUPS - 1)) for i in range(DETAILED_GROUPS)]
        return [groups[index] for index in steps]


def trajectories_file(path: Path) -> Path:
    """The file itself, or the one of a run folder. Raises ``MempoError`` when there is none."""
    found = path / TRAJECTORIES_FILE if path.is_dir() else path
    if not found.is_file():
        raise MempoError(
            f"{found}: no such file; name a run folder that train.py or evaluate.py wrote, or a "
            "trajectories file"
        )
    return found


def read_report(file: Path) -> Report:
    """Reads a trajectories file. Raises ``MempoError`` for a line that cannot be read, and when no
    line is of a task of the generated world."""
    lines = read_trajectories(file)
    groups: dict[tuple[str, str, int], list[TrajectoryLine]] = {}
    for number, line in enumerate(lines, start=1):
        try:
            chains = world_chains(line.metadata)
        except ValueError as error:
            raise MempoError(f"{file}, line {number}: {error}") from None
        if not chains:
            continue
        if len(chains) != len(line.golds):
            raise MempoError(
                f"{file}, line {number}: metadata.chains: {len(chains)} chains for "
                f"{len(line.golds)} gold answers"
            )
        groups.setdefault((line.model, line.context, line.epoch), []).append(line)
    if not lines:
        raise MempoError(f"{file} is empty: no epoch of that run has ended")
    if not groups:
        raise MempoError(
            f"{file}: none of its {len(lines)} trajectories is of a task of the generated world "
            "(data=world), where the chain of facts is known"
        )
    others = len(lines) - sum(len(one) for one in groups.values())
    left_out = {key: one for key, one in groups.items() if _writes_no_memory(one)}
    names = tuple(dict.fromkeys("/".join(filter(None, key[:2])) or "all" for key in left_out))
    kept = {key: one for key, one in groups.items() if key not in left_out}
    if not kept:
        raise MempoError(
            f"{file}: its agents write no memory ({', '.join(names)}), so that nothing can be "
            "forgotten: evaluate in a context that has one, such as memory or mem1"
        )
    return Report(tuple(_groups(kept)), others, names)


def _writes_no_memory(lines: Sequence[TrajectoryLine]) -> bool:
    """Whether no round has a memory and none that should have one is missed (format rule 8)."""
    later = [one for line in lines for one in line.rounds[1:]]
    written = any(one.mem is not None for line in lines for one in line.rounds)
    return bool(later) and not written and not any(8 in one.broken_rules for one in later)


def _groups(found: dict[tuple[str, str, int], list[TrajectoryLine]]) -> Iterable[Group]:
    """Each model, mode and epoch, and all epochs of a model and mode where there are several."""
    models = list(dict.fromkeys(model for model, _, _ in found))
    labels = dict(zip(models, short_labels(models), strict=True))
    epochs: dict[tuple[str, str], list[int]] = {}
    for model, context, epoch in found:
        epochs.setdefault((model, context), []).append(epoch)
    for (model, context), own in epochs.items():
        named = [part for part in (labels[model], context) if part]
        for epoch in sorted(own):
            parts = [*named, f"epoch {epoch + 1}"] if len(own) > 1 else named
            figures = forgetting_figures(found[model, context, epoch])
            yield Group(model, context, epoch, _label(parts), figures)
        if len(own) > 1:
            lines = [line for epoch in sorted(own) for line in found[model, context, epoch]]
            figures = forgetting_figures(lines)
            yield Group(model, context, None, _label([*named, "all epochs"]), figures)


def _label(parts: Sequence[str]) -> str:
    return ", ".join(parts) or "all"
