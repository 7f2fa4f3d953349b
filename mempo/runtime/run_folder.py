"""The names of what stands in a run folder: nowhere else are they written out.

``train.py`` and ``evaluate.py`` write these files; the inspector, the plots and the forgetting
report read them. README.md says what each holds.
"""

from __future__ import annotations

from typing import Final

METRICS_FILE: Final = "metrics.jsonl"
TRAJECTORIES_FILE: Final = "trajectories.jsonl"
EVALUATION_FILE: Final = "evaluation.json"
CONFIG_FILE: Final = ".hydra/config.yaml"
STARTED_IN_FILE: Final = ".hydra/hydra.yaml"  # hydra.runtime.cwd, as Hydra itself writes it
OVERRIDES_FILE: Final = ".hydra/overrides.yaml"
SOFTWARE_FILE: Final = ".hydra/software.yaml"

# Only train.py's.
MODEL_FOLDER: Final = "model"
ADAPTER_FOLDER: Final = "adapter"
CHECKPOINTS_FOLDER: Final = "checkpoints"
LAST_CHECKPOINT: Final = "last.ckpt"
MADE_FILE: Final = "made.json"
WANDB_RUN_ID_FILE: Final = "wandb_run_id"

# Only evaluate.py's.
EVALUATION_SETTINGS_FILE: Final = "evaluation_settings.json"
EVALUATION_TASKS_FILE: Final = "evaluation.csv"
EVALUATION_DIFFERENCES_FILE: Final = "differences.csv"
EVALUATION_PICTURE_FILE: Final = "evaluation.png"
