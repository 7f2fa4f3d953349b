"""Evaluates models with their memory alone and with their history: ``mempo evaluate --help``."""

from __future__ import annotations

import hydra
from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig

from mempo.command.cli import CONF_DIR, command_line
from mempo.command.home import use_writable_home
from mempo.command.preflight import check_accelerator, check_engine, check_evaluated_paths
from mempo.command.run_record import with_claimed_folder, write_record
from mempo.command.run_settings import evaluation_settings
from mempo.judging.judging import check_reward
from mempo.runtime.disk import require_writable
from mempo.runtime.friendly_errors import friendly_errors
from mempo.runtime.program import hydra_value
from mempo.runtime.stopping import told_when_stopped


@hydra.main(version_base="1.3", config_path=str(CONF_DIR), config_name="evaluate")
@friendly_errors()
def evaluate_program(cfg: DictConfig) -> None:
    """Evaluates ``evaluation.model_path`` or ``evaluation.models`` on the held-out tasks."""
    settings = evaluation_settings(HydraConfig.get().overrides.task, str(cfg.run_dir))
    config = settings.config
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
    from mempo.evaluation.standalone import evaluate_models

    go_on = f"It goes on with the same command and run_dir={hydra_value(config.run_dir)}"
    with told_when_stopped(lambda: go_on):
        # The folder says what was used, not what a call has by default.
        record = cfg if settings.tree is None else settings.tree
        evaluate_models(config, own=settings.own, accepted=lambda: write_record(record, config))
    print(f"written to {config.run_dir}", flush=True)


def main() -> None:
    """The command line."""
    with command_line("evaluate"):
        evaluate_program()


if __name__ == "__main__":
    main()
