"""A saved workspace for Weights & Biases: the metrics of ``docs/metrics.md`` in the order in which
one looks at them.

python -m mempo.plots.dashboard --project mempo
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from mempo.runtime.errors import MempoError
from mempo.runtime.friendly_errors import friendly_errors
from mempo.runtime.program import command

if TYPE_CHECKING:
    from wandb_workspaces.workspaces import Workspace

NAME: Final = "mempo"
"""What the saved view is called unless ``--name`` says otherwise."""

TABLE: Final = "samples/trajectories"
X_AXIS: Final = "epoch"


@dataclass(frozen=True)
class Panel:
    """One line plot of the metrics ``keys``; a ``<k>`` in a key stands for every round."""

    title: str
    keys: tuple[str, ...]


@dataclass(frozen=True)
class Section:
    """A part of the workspace that opens and closes."""

    title: str
    panels: tuple[Panel, ...]
    is_open: bool = True


def _quantiles(quantity: str) -> tuple[str, ...]:
    return tuple(f"{quantity}_quantiles/round_<k>_p{percent}" for percent in (10, 50, 90))


LAYOUT: Final = (
    Section(
        "Is it learning?",
        (
            Panel("Reward", ("reward/mean", "reward/exact_match", "reward/f1")),
            Panel("Memory reward", ("memory/reward_mean",)),
            Panel("P(answer)", ("memory/p_full_mean", "memory/p_mem_mean")),
            Panel("Tokens per trajectory", ("tokens/total_mean", "tokens/peak_mean")),
            Panel("Valid format", ("reward/format_valid",)),
            Panel("Constant groups", ("groups/constant_share",)),
        ),
    ),
    Section(
        "Memories by round",
        (
            Panel("Memory reward", ("memory_reward_by_round/round_<k>",)),
            Panel("Memory advantage", ("memory_advantage_by_round/round_<k>",)),
            Panel("Memory length, tokens", ("memory_tokens_by_round/round_<k>",)),
            Panel("Memory reward, 10, 50 and 90 %", _quantiles("memory_reward")),
            Panel("P mem, 10, 50 and 90 %", _quantiles("p_mem")),
            Panel("P full, 10, 50 and 90 %", _quantiles("p_full")),
        ),
    ),
    Section(
        "Memories in all",
        (
            Panel("Memory reward, standard deviation", ("memory/reward_std",)),
            Panel("Rounds with a memory", ("memory/written_share",)),
            Panel("Memory length, tokens", ("memory/tokens_mean",)),
            Panel("Answer tokens that pass the filter", ("filter/kept_mem", "filter/kept_full")),
            Panel("No token passes", ("filter/none_kept_mem", "filter/none_kept_full")),
        ),
    ),
    Section(
        "Trajectories",
        (
            Panel(
                "Endings",
                (
                    "ending/answered",
                    "ending/max_rounds",
                    "ending/response_budget",
                    "ending/context_budget",
                    "ending/no_action",
                ),
            ),
            Panel("Rounds", ("rollout/rounds_mean",)),
            Panel("Questions", ("rollout/questions_mean",)),
            Panel("Tools", ("tools/calls", "tools/failures", "tools/errors")),
        ),
    ),
    Section(
        "Update",
        (
            Panel("Loss", ("update/loss",)),
            Panel("Gradient norm", ("update/gradient_norm",)),
            Panel("Clipped tokens", ("update/clip_share", "update/dual_clip_share")),
            Panel("Entropy", ("update/entropy_mean",)),
            Panel("Mismatch, nats", ("engine/mismatch_mean", "engine/mismatch_max")),
            Panel(
                "Seconds",
                ("seconds/sync", "seconds/rollout", "seconds/scoring", "seconds/update"),
            ),
        ),
        is_open=False,
    ),
)


def build_workspace(entity: str, project: str, name: str) -> Workspace:
    """The workspace as wandb's library has it; nothing is sent. What the layout leaves out (the
    histograms by round among it) wandb appends in sections of its own."""
    import wandb_workspaces.reports.v2 as reports
    import wandb_workspaces.workspaces as workspaces

    sections = [
        workspaces.Section(
            name=section.title,
            is_open=section.is_open,
            panels=[_line_plot(panel) for panel in section.panels],
        )
        for section in LAYOUT
    ]
    table = reports.WeavePanelSummaryTable(table_name=TABLE)
    sections.append(workspaces.Section(name="Samples", is_open=True, panels=[table]))
    return workspaces.Workspace(
        entity=entity,
        project=project,
        name=name,
        sections=sections,
        settings=workspaces.WorkspaceSettings(x_axis=X_AXIS, group_by_prefix="first"),
        auto_generate_panels=True,
    )


def _line_plot(panel: Panel) -> object:
    import wandb_workspaces.reports.v2 as reports

    if not any("<k>" in key for key in panel.keys):
        return reports.LinePlot(title=panel.title, x=X_AXIS, y=list(panel.keys))
    patterns = [key.replace("<k>", "[0-9]+") for key in panel.keys]
    regex = f"^({'|'.join(patterns)})$"
    return reports.LinePlot(title=panel.title, x=X_AXIS, metric_regex=regex)


def save_workspace(entity: str | None, project: str, name: str) -> str:
    """Saves the workspace as a view of the project and returns its address.

    Raises ``MempoError`` that says what to do where nobody is logged in, and where wandb's server
    refuses or cannot be reached.
    """
    from mempo.training.loggers import logged_in

    if not logged_in():
        raise MempoError(
            "you are not logged in to Weights & Biases, where the workspace would be saved: run "
            "'wandb login' or set WANDB_API_KEY, and upload a run first (a run without a login is "
            "offline: 'wandb sync <run>/wandb/offline-run-*')"
        )
    import requests
    import wandb

    try:
        owner = entity or wandb.Api().default_entity
        if not owner:
            raise MempoError("your Weights & Biases account has no default entity: give --entity")
        workspace = build_workspace(owner, project, name)
        workspace.save()
        return str(workspace.url)
    except (wandb.errors.Error, requests.RequestException, ValueError) as error:
        raise MempoError(
            f"Weights & Biases did not save the workspace: {error}. See that the project "
            f"{project} exists there (a run must have been uploaded) and that --entity is its owner"
        ) from None


@friendly_errors()
def main(arguments: Sequence[str] | None = None) -> None:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog=command("dashboard", "mempo.plots.dashboard"),
        description="Saves a workspace for this project's metrics at Weights & Biases.",
    )
    parser.add_argument(
        "--project", default="mempo", help="as logger.project (default %(default)s)"
    )
    parser.add_argument("--entity", help="a user or team; default: yours")
    parser.add_argument("--name", default=NAME, help="of the saved view (default %(default)s)")
    options = parser.parse_args(arguments)
    print(save_workspace(options.entity, options.project, options.name))


if __name__ == "__main__":
    main()
