"""Evaluate models with their memory alone and with their history: `python evaluate.py --help`."""

from __future__ import annotations

import hydra
from omegaconf import DictConfig

from mempo.command.cli import command_line, to_config
from mempo.runtime.friendly_errors import friendly_errors
from mempo.runtime.stopping import told_when_stopped


@hydra.main(version_base="1.3", config_path="conf", config_name="evaluate")
@friendly_errors()
def main(cfg: DictConfig) -> None:
    """Evaluates ``evaluation.model_path`` or ``evaluation.models`` on the held-out tasks."""
    config = to_config(cfg)
    from mempo.runtime.library_warnings import quiet_libraries

    quiet_libraries()
    from mempo.evaluation.standalone import evaluate_models

    go_on = f"It goes on with the same command and run_dir={config.run_dir}"
    with told_when_stopped(lambda: go_on):
        evaluate_models(config)
    print(f"written to {config.run_dir}", flush=True)


if __name__ == "__main__":
    with command_line("evaluate"):
        main()
