"""Trajectories for every epoch, from an in-process engine (DESIGN: the way data flows).

``train_dataloader`` is called by Lightning at the start of every epoch: it syncs the policy into
the engine, collects the epoch's trajectories, and hands out a map-style data set of micro-batches
over them. Advantages are written into the trajectories afterwards, by ``MemoryRewardCallback``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import lightning as L
from torch.utils.data import DataLoader

from mempo.agent.collection import Watch
from mempo.agent.context_room import needed_context
from mempo.agent.conversation import Conversation
from mempo.agent.rollout import Rollout
from mempo.agent.shared_rollout import SharedRollout
from mempo.agent.state_machine import AgentSettings
from mempo.agent.tools import MadeTool, make_tools, protocol_of
from mempo.config import Config, shows_everything
from mempo.data.epoch_order import epoch_tasks
from mempo.data.tasks import TaskSets
from mempo.engine.interface import Sampling
from mempo.engine.shared import EngineGroup, SharedEngine, make_engine_group
from mempo.engine.start_arguments import Use, engine_device
from mempo.engine.vllm_engine import Engine
from mempo.learning.batches import Batch
from mempo.learning.loss import aggregation_weights
from mempo.learning.micro_batches import TrainingRow, is_sharing_worth_it, plan_micro_batches
from mempo.learning.old_logprobs import trained_sequences
from mempo.runtime.devices import use_device
from mempo.runtime.gather import gather_objects
from mempo.runtime.phases import Phases
from mempo.runtime.progress import progress_bar
from mempo.runtime.seeds import derive_seed
from mempo.training.collect_ahead import BackgroundWork
from mempo.training.curriculum import Curriculum, outcome, rewards_by_task
from mempo.training.epoch_dataset import EpochDataset
from mempo.training.interface import RolloutSource, sampled_policy
from mempo.training.updates import split_into_updates
from mempo.trajectory import Task, Trajectory

_NO_UPDATES = EpochDataset([], [], 1, skip_zeros=False, share_prompts=[])


class RolloutDataModule(L.LightningDataModule, RolloutSource):
    """Owns the engine and the tasks of this rank.

    Args:
        config: the run's configuration.
        model_folder: what the engine opens; its weights are replaced at the first sync.
        tokenizer: the policy's tokenizer.
        tasks: training and held-out tasks with their retrievers.
        tools: the configuration's tools, made once for the run (``None``: they are made here).

    ``trajectories``, ``phases``, ``staleness`` and ``record`` hold the current epoch
    (``EpochSource``); ``staleness`` is 1 with ``rollout.overlap``, else 0. ``rollout`` is also what
    the evaluation uses.
    """

    def __init__(
        self,
        config: Config,
        model_folder: str,
        tokenizer: Any,
        tasks: TaskSets,
        tools: Sequence[MadeTool] | None = None,
    ) -> None:
        super().__init__()
        self.config = config
        self.tasks = tasks
        protocol = protocol_of(config.tools)
        self.conversation = Conversation(tokenizer, config.model.system_prompt, protocol)
        self._tools = make_tools(config.tools) if tools is None else tools
        self.trajectories: list[Trajectory] = []
        self.phases = Phases()
        self.staleness = 0
        self.record: dict[str, float] = {}
        self._model_folder = model_folder
        self._collected_epoch: int | None = None
        self._next_epoch = 0
        self._engine: Engine | None = None
        self.engine_group = EngineGroup()
        self.before_collecting: list[Callable[[], None]] = []
        self.when_finished: list[Callable[[], None]] = []
        self._ahead: BackgroundWork[list[Trajectory]] | None = None
        self._updates = _NO_UPDATES
        curriculum = config.rollout.curriculum
        self._curriculum = (
            Curriculum(tasks.train, curriculum, config.seed) if curriculum.enabled else None
        )
        self._drawn: dict[int, list[Task]] = {}

    # Lightning's hooks

    def setup(self, stage: str) -> None:
        """Builds the engine, after Lightning's process group exists."""
        if self._engine is None:
            trainer, shared_by = self._trainer, self.config.engine.tensor_parallel
            self.engine_group = make_engine_group(
                trainer.global_rank,
                trainer.world_size,
                shared_by,
                self.config.trainer.timeout_s,
            )
            needed = needed_context(self.config, self.conversation)
            self._engine = Engine(
                self._model_folder,
                self.config.engine,
                Use(self.config.model.dtype, needed, True, self.config.trainer.timeout_s),
                self.conversation.end_ids,
                self.conversation.protocol.stop_strings,
                engine_device(self.config.trainer.accelerator),
            )
            if self.config.engine.sleep and not self.config.rollout.overlap:
                self._engine.sleep()  # before the optimizer's states need the memory

    def train_dataloader(self) -> DataLoader[Batch]:
        """This epoch's micro-batches; collects once per epoch, however often it is called.

        When a run is resumed, Lightning asks for the loader once before it has counted the
        checkpoint's epoch as done: this module's own count, from the checkpoint, says which epoch
        comes next.
        """
        while self.before_collecting:
            self.before_collecting.pop(0)()
        epoch = self.next_epoch
        if epoch == self._trainer.max_epochs:  # a finished run, resumed
            self._updates = _NO_UPDATES
            while self.when_finished:
                self.when_finished.pop(0)()
        elif self._collected_epoch != epoch:
            self.phases.clear()
            self._collect(epoch)
            self._collected_epoch = epoch
        return DataLoader(self._updates, batch_size=None, shuffle=False)

    def state_dict(self) -> dict[str, Any]:
        """Checkpoints are written at epoch ends: the next epoch is the one after the collected."""
        collected = -1 if self._collected_epoch is None else self._collected_epoch
        state: dict[str, Any] = {"next_epoch": max(self._next_epoch, collected + 1)}
        if self._curriculum is not None:
            state["curriculum"] = self._curriculum.state_dict()
        return state

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._next_epoch = int(state_dict["next_epoch"])
        if self._curriculum is not None:
            self._curriculum.load_state_dict(state_dict["curriculum"])

    def teardown(self, stage: str) -> None:
        self.close()

    def on_exception(self, exception: BaseException) -> None:
        self.close()

    # What it does

    @property
    def next_epoch(self) -> int:
        """The epoch that is collected next, or is being trained."""
        return max(self._trainer.current_epoch, self._next_epoch)

    @property
    def rollout(self) -> Rollout:
        """The agent loop over this rank's engine, or over the one that it shares."""
        if self._engine is None:
            raise RuntimeError("the engine is not built yet: call setup first")
        shared = self.engine_group.size > 1
        return (SharedRollout if shared else Rollout).from_config(
            self.config,
            SharedEngine(self._engine, self.engine_group) if shared else self._engine,
            self.conversation,
            self.tasks.retrievers,
            self._tools,
        )

    def sync_weights(self) -> None:
        """Puts the policy's weights into the engine, which wakes it."""
        assert self._engine is not None
        with self.phases.measured("sync"):
            self._engine.sync(sampled_policy(self._trainer).weights())

    def epoch_tasks(self, epoch: int) -> list[Task]:
        """The tasks of an epoch over all ranks, no task twice (``mempo.data.epoch_order``, or with
        ``rollout.curriculum`` drawn once the epoch before is collected)."""
        count, seed = self.config.rollout.tasks_per_epoch, self.config.seed
        if self._curriculum is not None:
            if epoch not in self._drawn:
                self._drawn[epoch] = self._curriculum.draw(epoch, count)
                self._drawn = dict(sorted(self._drawn.items())[-2:])
            return self._drawn[epoch]
        return epoch_tasks(self.tasks.train, self.tasks.shares, count, epoch, seed)

    def close(self) -> None:
        """Releases the engine."""
        if self._ahead is not None:
            self._ahead.stop()
            self._ahead = None
        if self._engine is not None:
            self._engine.close()
            self._engine = None

    @property
    def _trainer(self) -> L.Trainer:
        if self.trainer is None:
            raise RuntimeError("the data module is not attached to a trainer")
        return self.trainer

    def _collect(self, epoch: int) -> None:
        """This epoch's trajectories, and with ``rollout.overlap`` the start of the next one's."""
        overlap = self.config.rollout.overlap
        ahead, self._ahead = self._ahead, None
        self.staleness = int(ahead is not None)
        if ahead is not None:  # before the sync, which must not change weights under a rollout
            with self.phases.measured("rollout"):
                self.trajectories = ahead.result()
        self.sync_weights()
        if ahead is None:
            with self.phases.measured("rollout"):
                self.trajectories = self._roll_out(epoch, self.config.callbacks.progress_bars)
        self._updates = self._plan_updates(epoch)
        if self._curriculum is not None:
            rewards = [(one.task.id, outcome(one)) for one in self.trajectories]
            gathered = (pair for part in gather_objects(rewards) for pair in part)
            self._curriculum.note(rewards_by_task(gathered))
            self.epoch_tasks(epoch + 1)  # here, not in the thread that collects ahead
        if overlap and epoch + 1 != self._trainer.max_epochs:
            device = self._trainer.strategy.root_device
            self._ahead = BackgroundWork(
                lambda stopped: self._roll_out(epoch + 1, progress_bars=False, stopped=stopped),
                prepare=lambda: use_device(device),
            )
        elif self.config.engine.sleep and self._engine is not None:
            self._engine.sleep()

    def _roll_out(
        self,
        epoch: int,
        progress_bars: bool,
        stopped: Callable[[], bool] = lambda: False,
    ) -> list[Trajectory]:
        """Rolls out this engine's share of the epoch's tasks; what this rank trains of it, a task's
        whole group on one rank."""
        group, settings = self.engine_group, self.config.rollout
        own = self.epoch_tasks(epoch)[group.index :: group.count]
        total = len(own) * settings.group_size
        shown = progress_bars and self._trainer.global_rank == 0
        with progress_bar(f"rollout {epoch}", total, enabled=shown) as bar:
            collected = self.rollout.collect(
                own,
                settings.group_size,
                training_settings(self.config),
                Sampling(settings.temperature, settings.top_p, settings.top_k),
                seed_parts=(self.config.seed, epoch, group.index),
                epoch=epoch,
                watch=Watch(
                    lambda tick: bar.advance(tick.trajectories_done, tick.tokens), stopped=stopped
                ),
            )
        return group.own_part(group.from_leader(collected))

    def _plan_updates(self, epoch: int) -> EpochDataset:
        """Splits the trajectories into optimizer steps.

        Every rank gets the same number of micro-batches, that of the rank that needs most.
        """
        settings, loss = self.config.optimizer, self.config.loss
        position = {task.id: index for index, task in enumerate(self.epoch_tasks(epoch))}
        places = [(position[one.task.id], one.sample) for one in self.trajectories]
        everyone = [place for part in gather_objects(places) for place in part]
        seed = derive_seed(self.config.seed, "updates", epoch)
        updates = [
            self._rows([self.trajectories[index] for index in step])
            for step in split_into_updates(places, everyone, settings.updates_per_epoch, seed)
        ]
        budget = settings.micro_batch_tokens
        policy = sampled_policy(self._trainer)
        packed = policy.packs_rows
        share = [
            policy.shares_prompts and is_sharing_worth_it(rows, budget, packed) for rows in updates
        ]
        own = [
            len(plan_micro_batches(rows, budget, shared, packed))
            for rows, shared in zip(updates, share, strict=True)
        ]
        return EpochDataset(
            updates,
            [max(*counts, 1) for counts in zip(*gather_objects(own), strict=True)],
            budget,
            skip_zeros=loss.kl_coefficient == 0 and loss.entropy_coefficient == 0,
            share_prompts=share,
            packed=packed,
        )

    def _rows(self, trajectories: Sequence[Trajectory]) -> list[TrainingRow]:
        """The sequences that hold policy tokens, weighted over the optimizer step of all ranks."""
        tokens = [trajectory.policy_tokens for trajectory in trajectories]
        everyone = gather_objects(tokens)
        weights = aggregation_weights(
            [count for rank_tokens in everyone for count in rank_tokens],
            self.config.loss.aggregation,
            equal_trajectories=not shows_everything(self.config.rollout.context)
            and not self.config.loss.weight_grows_with_rounds,
        )
        first = sum(len(part) for part in everyone[: self._trainer.global_rank])
        own = weights[first : first + len(tokens)]
        return [
            TrainingRow(trajectory, sequence, weight)
            for trajectory, weight in zip(trajectories, own, strict=True)
            for sequence in trained_sequences([trajectory])
        ]


def training_settings(config: Config) -> AgentSettings:
    """The agent's limits in training."""
    rollout = config.rollout
    return AgentSettings(
        context=rollout.context,
        max_rounds=rollout.max_rounds,
        max_response_tokens=rollout.max_response_tokens,
        max_round_tokens=rollout.max_round_tokens,
        max_observation_tokens=rollout.max_observation_tokens,
        prefill_memory=rollout.prefill_memory,
        on_no_action=rollout.on_no_action,
        newest=rollout.memory_context.newest,
        keep_steps=rollout.memory_context.keep_steps,
        retrieval_memory=rollout.retrieval_memory,
    )
