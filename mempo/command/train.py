"""Trains a language-model agent that writes its own memory: ``mempo train --help``."""

from __future__ import annotations

from typing import Any, cast

import hydra
from omegaconf import DictConfig, OmegaConf

from mempo.command.cli import CONF_DIR, command_line, to_config
from mempo.command.home import use_writable_home
from mempo.command.preflight import (
    check_accelerator,
    check_engine,
    check_paths,
    check_run_folder,
    check_shares,
    check_training_engine,
)
from mempo.command.resume_check import check_resume
from mempo.command.run_record import with_claimed_folder, write_record
from mempo.judging.judging import check_reward
from mempo.runtime.disk import require_writable
from mempo.runtime.errors import MempoError
from mempo.runtime.friendly_errors import friendly_errors, remove_unused_run_folder
from mempo.runtime.processes import is_first_process
from mempo.runtime.stopping import how_to_go_on, told_when_stopped


@hydra.main(version_base="1.3", config_path=str(CONF_DIR), config_name="train")
@friendly_errors()
def train_program(cfg: DictConfig) -> None:
    """Checks the configuration, then prints the plan (``dry_run``) or trains."""
    config = to_config(cfg)
    check_training_engine(config)
    if config.dry_run:
        import torch

        from mempo.command.plan import make_plan, planned_world_size, print_plan
        from mempo.command.planning.measured import measure, print_measured

        devices, assumed = planned_world_size(config, torch.cuda.device_count())
        plan = make_plan(config, devices, assumed)
        print_plan(plan)
        if config.dry_run == "measured":
            print_measured(measure(config, devices), plan.memory)
        remove_unused_run_folder()
        return
    # Before seconds of imports.
    check_paths(config)
    require_writable(config.run_dir, "run_dir")
    check_run_folder(config)
    check_engine(config)
    check_accelerator(config)
    check_shares(config)
    check_resume(config, cast(dict[str, Any], OmegaConf.to_container(cfg, resolve=True)))
    check_reward(config.reward, config.cache_dir)
    config = with_claimed_folder(config)
    use_writable_home(config.cache_dir)
    from mempo.runtime.library_warnings import quiet_libraries

    quiet_libraries()
    from mempo.agent.error_rate import ToolFailureError
    from mempo.command.callbacks import configured_callbacks
    from mempo.judging.judge import JudgeFailureError
    from mempo.training.run import train

    with told_when_stopped(lambda: how_to_go_on(config.run_dir)):
        try:
            train(config, configured_callbacks(config), accepted=lambda: write_record(cfg, config))
        except (ToolFailureError, JudgeFailureError) as error:
            raise MempoError(f"{error}.\n{how_to_go_on(config.run_dir)}") from error
    if is_first_process():
        print(f"written to {config.run_dir}", flush=True)


def main() -> None:
    """The command line."""
    with command_line("train"):
        train_program()


if __name__ == "__main__":
    main()
