"""Arguments of Lightning's own ``Trainer``: which reach the run (``trainer.lightning``), and what
to set instead of the others, which the run sets itself or which its training step does by hand."""

from __future__ import annotations

from typing import Final, Literal

from pydantic.dataclasses import dataclass

from mempo.config.strict import STRICT


@dataclass(frozen=True, config=STRICT)
class LightningConfig:
    """What is handed to ``lightning.Trainer`` as it is, in the supervised start and in RL."""

    profiler: Literal["simple", "advanced", "pytorch"] | None = None
    detect_anomaly: bool = False
    deterministic: bool | Literal["warn"] | None = None
    benchmark: bool | None = None
    sync_batchnorm: bool = False
    enable_model_summary: bool = False


_SETS_ITSELF: Final = "the run sets it itself"

INSTEAD: Final = {
    "accelerator": "set trainer.accelerator",
    "devices": "set trainer.devices",
    "num_nodes": "set trainer.num_nodes",
    "max_epochs": "set trainer.max_epochs",
    "strategy": "set trainer.strategy, or choose trainer=ddp or trainer=fsdp2",
    "precision": "set model.dtype: bfloat16 is mixed precision over float32 weights",
    "accumulate_grad_batches": "micro-batches are accumulated by hand until an optimizer step: set "
    "optimizer.micro_batch_tokens and optimizer.updates_per_epoch",
    "gradient_clip_val": "gradients are clipped by hand: set optimizer.max_grad_norm",
    "gradient_clip_algorithm": "gradients are clipped by their norm: set optimizer.max_grad_norm",
    "logger": "choose logger=wandb or logger=none",
    "callbacks": "set callbacks.more (docs/callbacks.md)",
    "enable_progress_bar": "set callbacks.progress_bars",
    "enable_checkpointing": "set trainer.checkpoint_every",
    "default_root_dir": "set run_dir",
    "min_epochs": "set trainer.max_epochs",
    "max_steps": "an epoch is whole or not trained: set trainer.max_epochs",
    "min_steps": "an epoch is whole or not trained: set trainer.max_epochs",
    "max_time": "an epoch is whole or not trained: stop the run with Ctrl-C or SIGTERM, and go on "
    "with resume=auto",
    "fast_dev_run": "choose experiment=debug",
    "overfit_batches": "an epoch's batches are its trajectories: give few questions",
    "limit_train_batches": "a part of an epoch would be trained on: set rollout.tasks_per_epoch",
    "limit_val_batches": "held-out tasks are answered by the engine: set evaluation.tasks",
    "limit_test_batches": "held-out tasks are answered by the engine: set evaluation.tasks",
    "limit_predict_batches": "held-out tasks are answered by the engine: set evaluation.tasks",
    "val_check_interval": "held-out tasks are answered before and after training: see evaluation",
    "check_val_every_n_epoch": "held-out tasks are answered before and after training: see "
    "evaluation",
    "num_sanity_val_steps": "held-out tasks are answered before and after training: see evaluation",
    "log_every_n_steps": "every epoch is logged",
    "inference_mode": "there is no validation loop",
    "barebones": "it would turn off what a run leaves",
    "plugins": _SETS_ITSELF,
    "use_distributed_sampler": _SETS_ITSELF,
    "reload_dataloaders_every_n_epochs": _SETS_ITSELF,
    "enable_autolog_hparams": _SETS_ITSELF,
    "model_registry": _SETS_ITSELF,
}
"""Of every other argument of ``lightning.Trainer``, what to do."""

STRATEGIES: Final = {
    "fsdp": "choose trainer=fsdp2, which shards by fully_shard and works on CPUs too",
    "deepspeed": "its engine owns optimizer, clipping and accumulation, which a step here does by "
    "hand, and its shards have no way into the vLLM engine: choose trainer=fsdp2",
    "ddp_": "the training step uses every trained weight, and is started by any launcher: choose "
    "trainer=ddp",
}
"""Of Lightning's other strategies, by the beginning of their names, why they are not taken."""


def other_strategy(name: str) -> str:
    """What to choose instead of a strategy that a run does not have."""
    for beginning, reason in STRATEGIES.items():
        if name.startswith(beginning):
            return f"trainer.strategy={name}: {reason}"
    return f"trainer.strategy={name!r}: choose 'auto' (one process), 'ddp' or 'fsdp2'"
