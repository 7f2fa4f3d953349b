"""The two stages of a run, the supervised start and reinforcement learning, as plain functions."""

from __future__ import annotations

import dataclasses
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import lightning as L
import torch
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.profilers import (
    AdvancedProfiler,
    Profiler,
    PyTorchProfiler,
    SimpleProfiler,
)
from lightning.pytorch.strategies import DDPStrategy, ModelParallelStrategy, Strategy

from mempo.agent.tools import MadeTool, make_tools
from mempo.config import Config, TrainerConfig
from mempo.data.tasks import TaskSets, load_task_sets
from mempo.demonstrations.shipped import shipped_start
from mempo.demonstrations.start import start_folder, supervised_key
from mempo.demonstrations.supervised_texts import read_trajectories, supervised_texts
from mempo.demonstrations.trajectory_files import ReadTrajectories
from mempo.models.loading import load_policy, load_tokenizer
from mempo.models.lora import add_adapters
from mempo.models.saving import save_policy, whole_weights
from mempo.runtime.cache import cached_folder, cached_path
from mempo.runtime.checkpoint_files import UNFINISHED
from mempo.runtime.disk import require_writable
from mempo.runtime.processes import (
    adopt_mpi_launcher,
    end_with_parent,
    finish_collectives_at_exit,
    is_first_process,
)
from mempo.runtime.seeds import derive_seed
from mempo.training.checkpoint_io import AtomicCheckpointIO, check_fits, checkpoint_to_go_on_from
from mempo.training.datamodule import RolloutDataModule
from mempo.training.loggers import build_logger, finish_loggers
from mempo.training.module import MemPOModule
from mempo.training.supervised import SftDataModule, SftModule
from mempo.training.waiting import awaiting_others


@dataclass(frozen=True)
class StageCallbacks:
    """The callbacks of each stage, in the order in which Lightning calls them."""

    reinforcement: Sequence[Callback]
    supervised: Sequence[Callback] = ()


def train(
    config: Config, callbacks: StageCallbacks, accepted: Callable[[], None] = lambda: None
) -> dict[str, float]:
    """Runs the stages that the configuration asks for; returns the last epoch's metrics.

    What the run leaves stands in ``config.run_dir``. ``accepted`` is called once settings and data
    have passed every check, before anything is computed.
    """
    adopt_mpi_launcher()
    end_with_parent()
    finish_collectives_at_exit()
    if config.resume == "auto":
        found = checkpoint_to_go_on_from(config.run_dir, _say)
        if found is not None:
            _say(f"going on from {found}")
            config = dataclasses.replace(config, ckpt_path=str(found), resume=None)
    L.seed_everything(config.seed, workers=True, verbose=False)
    tasks = load_task_sets(config)  # First: a fault in the data is told before minutes of training.
    if config.model.source == "tiny" and config.data.format != "world":
        _say(
            f"model={config.model.name} learns its language from the generated world and can read "
            f"nothing else: for data={config.data.format} take another model"
        )
    trajectories = read_trajectories(config)
    tools = make_tools(config.tools)
    accepted()
    with awaiting_others(config.trainer.timeout_s):
        if config.sft.enabled:
            start = supervised_start(config, callbacks.supervised, trajectories)
        else:
            _say(
                "no supervised start (sft.enabled=false): RL begins with the model as it is; "
                "sft=file sft.path=<file of trajectories> begins with your own (sft.source=file)"
            )
            start = start_folder(config)
        if config.stage == "sft":
            return {}
        return reinforce(config, start, tasks, callbacks.reinforcement, tools)


def supervised_start(
    config: Config,
    callbacks: Sequence[Callback] = (),
    trajectories: ReadTrajectories | None = None,
) -> str:
    """The folder of the supervised start: the package's, from the cache, or trained now.

    ``stage=sft`` is about training it, so there the package's own does not count. ``trajectories``
    are what ``sft.source=file`` has read already.
    """
    if config.stage != "sft" and (shipped := shipped_start(config)) is not None:
        _say("supervised start: the one that comes with the package (stage=sft trains it anew)")
        return str(shipped)
    base = start_folder(config)
    key = supervised_key(config, base)
    path = cached_path(config.cache_dir, "sft", key)
    if path.is_dir():
        _say(f"supervised start: {path} (from the cache)")
        return str(path)
    require_writable(config.cache_dir, "cache_dir")
    _say(f"supervised start: not in the cache, training it now ({config.sft.steps} steps)")
    # Adapters start at random: what the cache keeps depends on sft.seed alone, and what comes
    # after it not on whether the cache had it.
    gpus = [torch.cuda.current_device()] if torch.cuda.is_available() else []
    with torch.random.fork_rng(gpus):
        torch.manual_seed(derive_seed("sft/adapters", config.sft.seed))
        _fine_tune(
            config,
            base,
            lambda write: cached_folder(config.cache_dir, "sft", key, write),
            callbacks,
            trajectories,
        )
    _say(f"supervised start: {path}")
    return str(path)


def reinforce(
    config: Config,
    start: str,
    tasks: TaskSets,
    callbacks: Sequence[Callback],
    tools: Sequence[MadeTool] | None = None,
) -> dict[str, float]:
    """The RL stage: rollouts, memory rewards, PPO updates, until ``trainer.max_epochs``.

    ``callbacks`` score the trajectories and write what the run leaves (``callbacks.build``).
    ``tools`` are the configuration's, made (``None``: they are made here).
    """
    tokenizer = load_tokenizer(start, config.model.chat_template)
    if tasks.skipped_rows:
        _say(f"{tasks.skipped_rows} malformed rows were left out (data.skip_bad_rows)")
    for note in tasks.notes:
        _say(note)
    lora, reference = config.model.lora, None
    policy = load_policy(start, config, frozen=lora is not None)
    if lora is not None:
        policy = add_adapters(policy, lora)
    elif config.loss.kl_coefficient > 0:
        reference = load_policy(start, config, frozen=True)
    module = MemPOModule(policy, config, reference, start)
    if config.ckpt_path is not None:
        check_fits(config.ckpt_path, module.state_dict())
    datamodule = RolloutDataModule(config, start, tokenizer, tasks, tools)
    trainer = L.Trainer(
        **trainer_arguments(config),
        max_epochs=config.trainer.max_epochs,
        reload_dataloaders_every_n_epochs=1,
        callbacks=list(callbacks),
        logger=build_logger(
            config.logger,
            config.run_dir,
            dataclasses.asdict(config),
            resumed=config.ckpt_path is not None,
        )
        or False,
        default_root_dir=config.run_dir,
    )
    trainer.fit(module, datamodule=datamodule, ckpt_path=config.ckpt_path)
    finish_loggers(trainer)
    return module.epoch_metrics


def _fine_tune(
    config: Config,
    base: str,
    keep: Callable[[Callable[[Path], None]], Path],
    callbacks: Sequence[Callback],
    trajectories: ReadTrajectories | None,
) -> None:
    """Trains on demonstrations, on every process; the first one hands what writes the Hugging Face
    folder to ``keep``, and the others wait until it is there.

    Adapters that it trains (``sft.train``) are merged: what RL begins with, and what its KL term
    looks back at, is one model whichever weights were trained.
    """
    tokenizer = load_tokenizer(base, config.model.chat_template)
    texts = supervised_texts(config, base, tokenizer, trajectories)
    for note in texts.notes:
        _say(note)
    lora = config.model.lora if config.sft.train == "adapters" else None
    policy = load_policy(base, config, frozen=lora is not None)
    if lora is not None:
        policy = add_adapters(policy, lora)
    module = SftModule(policy, config, base, texts.heldout)
    trainer = L.Trainer(
        **trainer_arguments(config, "sft"),
        max_epochs=1,
        callbacks=list(callbacks),
        logger=False,
        enable_checkpointing=False,
    )
    trainer.fit(module, datamodule=SftDataModule(texts.training, config.sft))

    weights = whole_weights(module.model, keep=trainer.is_global_zero)

    def write(folder: Path) -> None:
        save_policy(module.model, weights, folder, tokenizer, keep_adapters=False)

    if trainer.is_global_zero:
        keep(write)
    trainer.strategy.barrier()


def trainer_arguments(config: Config, stage: str = "rl") -> dict[str, Any]:
    settings = config.trainer
    # Weights stay in float32 and bfloat16 is the precision of forward and backward passes, so that
    # small updates are not lost; fsdp2 casts its gathered shards itself (``configure_model``).
    sharded = settings.strategy == "fsdp2"
    mixed = config.model.dtype == "bfloat16" and not sharded
    return {
        "precision": "bf16-mixed" if mixed else "32-true",
        "accelerator": settings.accelerator,
        "devices": settings.devices,
        "num_nodes": settings.num_nodes,
        "strategy": _strategy(settings),
        "plugins": [] if sharded else [AtomicCheckpointIO()],
        "use_distributed_sampler": False,
        "enable_progress_bar": False,
        "log_every_n_steps": 1,
        **dataclasses.asdict(settings.lightning),
        "profiler": _profiler(settings.lightning.profiler, config.run_dir, stage),
    }


def _profiler(name: str | None, folder: str, stage: str) -> Profiler | None:
    """Writes ``fit-profile-<stage>.txt`` into the run's folder: a run's output shows no tables."""
    if name is None:
        return None
    kinds: dict[str, type[Profiler]] = {
        "simple": SimpleProfiler,
        "advanced": AdvancedProfiler,
        "pytorch": PyTorchProfiler,
    }
    return kinds[name](dirpath=folder, filename=f"profile-{stage}")


def _strategy(config: TrainerConfig) -> Strategy | str:
    waits = timedelta(seconds=config.timeout_s)
    if config.strategy == "ddp":
        return DDPStrategy(process_group_backend=None, timeout=waits, gradient_as_bucket_view=True)
    if config.strategy == "fsdp2":
        return _ShardedOverAllRanks(tensor_parallel_size=1, timeout=waits)
    return "auto"


class _ShardedOverAllRanks(ModelParallelStrategy):
    """``fully_shard`` over every process of every node; Lightning's own default is one process of
    each node."""

    def setup_environment(self) -> None:
        self._data_parallel_size = self.num_nodes * self.num_processes
        super().setup_environment()

    def save_checkpoint(
        self, checkpoint: dict[str, Any], filepath: Any, storage_options: Any = None
    ) -> None:
        """Every rank writes its shards into a folder that gets its name when all are done."""
        target = Path(self.broadcast(str(filepath)))
        unfinished = target.with_name(target.name + UNFINISHED)
        if self.is_global_zero and unfinished.exists():
            shutil.rmtree(unfinished)
        self.barrier()
        super().save_checkpoint(checkpoint, unfinished, storage_options)
        self.barrier()
        if self.is_global_zero:
            if target.exists():
                shutil.rmtree(target)
            unfinished.rename(target)
        self.barrier()


def _say(line: str) -> None:
    """One line to the terminal, from the first process only."""
    if is_first_process():
        print(line, flush=True)
