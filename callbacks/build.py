"""The callbacks of a run, in the order in which Lightning calls them.

``conf/callbacks/`` names ``stage_callbacks``: ``mempo`` itself knows no callback.
"""

from __future__ import annotations

from lightning.pytorch.callbacks import Callback

from callbacks.checkpoints import CheckpointsCallback
from callbacks.epoch_line import EpochLineCallback
from callbacks.epoch_record import EpochRecordCallback
from callbacks.health import HealthCallback
from callbacks.held_out_evaluation import HeldOutEvaluationCallback
from callbacks.memory_distributions import MemoryDistributionsCallback
from callbacks.memory_reward import MemoryRewardCallback
from callbacks.metrics_file import MetricsFileCallback
from callbacks.metrics_loggers import MetricsLoggersCallback
from callbacks.mismatch_warning import MismatchWarningCallback
from callbacks.more import more_callbacks
from callbacks.sampled_trajectories import SampledTrajectoriesCallback
from callbacks.saved_model import SavedModelCallback
from callbacks.supervised_progress import SupervisedProgressCallback
from callbacks.trajectories_file import TrajectoriesFileCallback
from callbacks.update_progress import UpdateProgressCallback
from mempo.config import Config
from mempo.training.run import StageCallbacks


def stage_callbacks(config: Config) -> StageCallbacks:
    """The callbacks of both stages. Raises ``ConfigError`` for a callback of ``callbacks.more``
    that cannot be made."""
    return StageCallbacks(run_callbacks(config), [SupervisedProgressCallback(config.sft.steps)])


def run_callbacks(config: Config) -> list[Callback]:
    """Those of reinforcement learning. The memory reward comes first, since the others read what it
    writes; the model is saved before it is evaluated, which a dead retriever may end; the
    checkpoint comes last, when the epoch's files are complete."""
    settings, every = config.callbacks, config.logger.log_every_epochs
    callbacks: list[Callback] = [MemoryRewardCallback(config), EpochRecordCallback()]
    if settings.progress_bars:
        callbacks.append(UpdateProgressCallback())
    callbacks += [
        MetricsFileCallback(config.run_dir),
        MetricsLoggersCallback(every),
        TrajectoriesFileCallback(config.run_dir),
        EpochLineCallback(),
        MismatchWarningCallback(config),
    ]
    if settings.health.enabled:
        callbacks.append(HealthCallback(settings.health, config.run_dir))
    if settings.memory_distributions:
        in_nats = config.scoring.reward == "log_probability"
        callbacks.append(MemoryDistributionsCallback(every, in_nats))
    if settings.sampled_trajectories:
        count = settings.sampled_trajectories
        callbacks.append(SampledTrajectoriesCallback(count, config.seed, every))
    callbacks += [*more_callbacks(settings.more), SavedModelCallback(config.run_dir)]
    if config.evaluation.enabled:
        callbacks.append(HeldOutEvaluationCallback(config))
    return [
        *callbacks,
        CheckpointsCallback(
            config.run_dir, config.trainer.checkpoint_every, config.trainer.keep_last
        ),
    ]
