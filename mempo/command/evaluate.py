"""Evaluates models with their memory alone and with their history: ``mempo evaluate --help``."""

from __future__ import annotations

import os
from collections.abc import Sequence

import hydra
from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig

from mempo.command.cli import CONF_DIR, command_line
from mempo.command.home import use_writable_home
from mempo.command.preflight import check_accelerator, check_engine, check_evaluated_paths
from mempo.command.run_record import with_claimed_folder, write_record
from mempo.command.run_settings import evaluation_settings
from mempo.config import Config
from mempo.evaluation.shares import SHARE_VARIABLE, Share, own_share, take_devices
from mempo.judging.judging import check_reward
from mempo.runtime.disk import require_writable
from mempo.runtime.errors import ConfigError
from mempo.runtime.friendly_errors import friendly_errors
from mempo.runtime.processes import end_with_parent
from mempo.runtime.program import hydra_value
from mempo.runtime.stopping import told_when_stopped


@hydra.main(version_base="1.3", config_path=str(CONF_DIR), config_name="evaluate")
@friendly_errors()
def evaluate_program(cfg: DictConfig) -> None:
    """Evaluates ``evaluation.model_path`` or ``evaluation.models`` on the held-out tasks."""
    overrides = HydraConfig.get().overrides.task
    settings = evaluation_settings(overrides, str(cfg.run_dir))
    config = settings.config
    if config.dry_run:
        raise ConfigError("dry_run=true: only training prints a plan; leave it out")
    share = own_share()
    if share is not None:
        _prepare(share, config, overrides)
    # Before seconds of imports.
    for one in (config, *settings.own.values()):
        check_evaluated_paths(one)
    require_writable(config.run_dir, "run_dir")
    check_engine(config)
    check_accelerator(config)
    check_reward(config.reward, config.cache_dir)
    config = with_claimed_folder(config)
    use_writable_home(config.cache_dir)
    for line in settings.told:
        print(line, flush=True)
    from mempo.runtime.library_warnings import quiet_libraries

    quiet_libraries()
    from mempo.engine.start_arguments import engine_device
    from mempo.evaluation.standalone import evaluate_models

    go_on = f"It goes on with the same command and run_dir={hydra_value(config.run_dir)}"
    with told_when_stopped(lambda: go_on):
        # The folder says what was used, not what a call has by default.
        record = cfg if settings.tree is None else settings.tree
        evaluate_models(
            config,
            own=settings.own,
            accepted=lambda: write_record(record, config),
            share=share,
            gpus=_gpus() if engine_device(config.trainer.accelerator) == "cuda" else 0,
        )
    if share is None or share.reports:
        print(f"written to {config.run_dir}", flush=True)


def _prepare(share: Share, config: Config, overrides: Sequence[str]) -> None:
    """One of several processes: it ends with the one that launched it, and has its own GPUs."""
    if not any(one.startswith("run_dir=") for one in overrides):
        raise ConfigError(
            f"evaluate.py runs in {share.count} processes, which meet in a folder: name it, as in "
            "run_dir=runs/evaluation"
        )
    end_with_parent(launched=SHARE_VARIABLE in os.environ)
    if config.trainer.accelerator != "cpu":
        take_devices(share, config.engine.tensor_parallel)


def _gpus() -> int:
    import torch

    return torch.cuda.device_count()


def main() -> None:
    """The command line."""
    with command_line("evaluate"):
        evaluate_program()


if __name__ == "__main__":
    main()
