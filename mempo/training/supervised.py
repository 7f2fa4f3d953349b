"""The supervised start: fine-tuning on demonstrations in the round protocol.

Generated ones come from worlds of their own, with lossy memories, so that reinforcement learning
has something to teach. They show the model whole trajectories, single rounds after the memory
context, and answers in the form in which they are scored. Trajectories of a person's own are laid
out as rollouts are (``mempo/demonstrations/``).
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import lightning as L
import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler
from torch.utils.data import DataLoader, Dataset

from mempo.config import Config, SftConfig
from mempo.demonstrations.encoding import TrainingText
from mempo.learning.logprobs import WantedTokens, token_logprobs
from mempo.learning.micro_batches import group_by_tokens, group_packed
from mempo.learning.packed_rows import packs_rows
from mempo.models.sharded import keep_gradients_local, shard_and_fill
from mempo.runtime.seeds import derive_seed
from mempo.training.adamw import adamw


@dataclass(frozen=True)
class SftBatch:
    """One micro-batch, right-padded, [B, T]; ``step_tokens`` counts the trained tokens of the whole
    optimizer step over all ranks, and ``last_of_step`` says that the optimizer steps after it."""

    ids: Tensor
    attention_mask: Tensor
    trained: Tensor
    step_tokens: int
    last_of_step: bool
    packed: bool = False

    @property
    def wanted(self) -> WantedTokens:
        """The tokens whose log-probabilities the loss is made of."""
        return WantedTokens(self.ids, self.attention_mask, self.trained, packed=self.packed)

    def to(self, device: torch.device) -> SftBatch:
        """The same batch on another device."""
        return SftBatch(
            self.ids.to(device),
            self.attention_mask.to(device),
            self.trained.to(device),
            self.step_tokens,
            self.last_of_step,
            self.packed,
        )


class SftDataset(Dataset[SftBatch]):
    """The micro-batches of the whole stage, for one rank.

    Each optimizer step draws ``batch_size`` texts and splits them, sorted by length, into
    micro-batches under the token budget. All ranks draw the same texts and take every
    ``world_size``-th micro-batch, so they have the same number.
    """

    def __init__(
        self,
        texts: Sequence[TrainingText],
        config: SftConfig,
        rank: int,
        world_size: int,
        packed: bool = False,
    ) -> None:
        self._texts, self._packed = texts, packed
        group = group_packed if packed else group_by_tokens
        self._plan: list[tuple[list[int], int, bool]] = []
        for step in _draw_steps(texts, config):
            tokens = sum(sum(texts[index].trained) for index in step)
            longest_first = sorted(step, key=lambda index: -len(texts[index].ids))
            batches = group(
                longest_first, lambda index: len(texts[index].ids), config.micro_batch_tokens
            )
            batches += [[]] * (-len(batches) % world_size)
            own = batches[rank::world_size]
            self._plan += [
                (batch, tokens, index == len(own) - 1) for index, batch in enumerate(own)
            ]

    def __len__(self) -> int:
        return len(self._plan)

    def __getitem__(self, index: int) -> SftBatch:
        members, tokens, last = self._plan[index]
        texts = [self._texts[member] for member in members]
        width = max((len(text.ids) for text in texts), default=2)
        ids = torch.zeros(max(len(texts), 1), width, dtype=torch.long)
        attention = torch.zeros_like(ids)
        trained = torch.zeros(ids.shape, dtype=torch.bool)
        attention[:, 0] = 1
        for row, text in enumerate(texts):
            ids[row, : len(text.ids)] = torch.tensor(text.ids)
            attention[row, : len(text.ids)] = 1
            trained[row, : len(text.ids)] = torch.tensor(text.trained)
        return SftBatch(ids, attention, trained, tokens, last, self._packed)


class SftModule(L.LightningModule):
    """Next-token loss on the trained tokens, mean over the optimizer step, AdamW with warm-up and
    cosine decay to a tenth. The loss on ``heldout`` is told before and after."""

    def __init__(
        self,
        model: torch.nn.Module,
        config: Config,
        start: str = "",
        heldout: Sequence[TrainingText] = (),
    ) -> None:
        super().__init__()
        self.automatic_optimization = False
        self.model = model
        self.config = config.sft
        self.run = config
        self.start_folder = start
        self.heldout = heldout
        self._step_loss = 0.0

    @property
    def packs_rows(self) -> bool:
        """As ``MemPOModule.packs_rows``."""
        return packs_rows(self.run.optimizer.pack_rows, self.model)

    def configure_model(self) -> None:
        """As ``MemPOModule.configure_model``."""
        mesh = self.device_mesh
        if mesh is None or getattr(self, "_sharded", False):
            return
        self._sharded = True
        shard_and_fill(
            self.model,
            mesh,
            self.run.model.dtype,
            self.start_folder,
            self.device,
            self.run.trainer.sharding,
        )

    def on_train_start(self) -> None:
        self._tell_heldout_loss("before")
        # Models that transformers loads are in eval mode, which turns gradient checkpointing off.
        self.model.train()

    def on_train_end(self) -> None:
        self._tell_heldout_loss("after")

    def heldout_loss(self) -> float:
        """Mean loss of the trained tokens of the held-out texts; every process must call it."""
        steps = -(-len(self.heldout) // self.config.batch_size)
        dataset = SftDataset(
            self.heldout,
            replace(self.config, steps=steps),
            self.global_rank,
            self.trainer.world_size,
            self.packs_rows,
        )
        total = torch.zeros((), device=self.device)
        self.model.eval()
        with torch.no_grad(), self.trainer.precision_plugin.forward_context():
            for index in range(len(dataset)):
                batch = dataset[index].to(self.device)
                total -= token_logprobs(self.model, batch.wanted).logprobs.sum()
        tokens = sum(sum(text.trained) for text in self.heldout)
        return float(self.trainer.strategy.reduce(total, reduce_op="sum")) / tokens

    def _tell_heldout_loss(self, when: str) -> None:
        if not self.heldout:
            return
        loss = self.heldout_loss()
        if self.trainer.is_global_zero:
            texts = f"{len(self.heldout)} held-out texts"
            print(f"supervised start: loss {loss:.3f} on {texts} {when}", flush=True)

    def training_step(self, batch: SftBatch, batch_idx: int) -> None:
        logprobs = token_logprobs(self.model, batch.wanted).logprobs
        keep_gradients_local(self.model, not batch.last_of_step, self.run.trainer.sharding)
        loss = -logprobs.sum() / batch.step_tokens * self.trainer.world_size
        self.manual_backward(loss)
        self._step_loss += float(loss.detach())
        if not batch.last_of_step:
            return
        if not math.isfinite(self._step_loss):
            raise FloatingPointError("the supervised loss is not finite: lower sft.learning_rate")
        optimizer = cast(Optimizer, self.optimizers())
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.config.max_grad_norm)
        optimizer.step()
        optimizer.zero_grad()
        cast(LRScheduler, self.lr_schedulers()).step()
        self.log("sft/loss", self._step_loss, prog_bar=True, sync_dist=True)
        self._step_loss = 0.0

    def configure_optimizers(self) -> Any:
        settings, fused = self.config, self.run.optimizer.fused
        optimizer = adamw(
            self.model,
            self.device,
            fused,
            settings.learning_rate,
            (0.9, 0.98),
            settings.weight_decay,
        )
        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, self._learning_rate_factor)
        return {"optimizer": optimizer, "lr_scheduler": schedule}

    def transfer_batch_to_device(
        self, batch: SftBatch, device: torch.device, dataloader_idx: int
    ) -> SftBatch:
        return batch.to(device)

    def _learning_rate_factor(self, step: int) -> float:
        warmup = min(1.0, (step + 1) / max(self.config.warmup_steps, 1))
        done = min(1.0, step / self.config.steps)
        return warmup * (0.1 + 0.9 * 0.5 * (1.0 + math.cos(math.pi * done)))


class SftDataModule(L.LightningDataModule):
    """Serves ``SftDataset`` to each rank."""

    def __init__(self, texts: Sequence[TrainingText], config: SftConfig) -> None:
        super().__init__()
        self._texts = texts
        self._config = config

    def train_dataloader(self) -> DataLoader[SftBatch]:
        assert self.trainer is not None
        trainer = self.trainer
        module = cast(SftModule, trainer.lightning_module)
        dataset = SftDataset(
            self._texts, self._config, trainer.global_rank, trainer.world_size, module.packs_rows
        )
        return DataLoader(dataset, batch_size=None, shuffle=False)


def _draw_steps(texts: Sequence[TrainingText], config: SftConfig) -> list[list[int]]:
    """The texts of each optimizer step. Every pass is shuffled anew, but the first one goes in
    order where the texts grow (``sft.objectives``)."""
    if not texts:
        raise ValueError("supervised fine-tuning needs texts: there is no demonstration")
    steps: list[list[int]] = []
    passes = 0
    while len(steps) < config.steps:
        order = list(range(len(texts)))
        if passes or config.objectives is None:
            random.Random(derive_seed("sft", config.seed, passes)).shuffle(order)
        steps += [
            order[first : first + config.batch_size]
            for first in range(0, len(order), config.batch_size)
        ]
        passes += 1
    return steps[: config.steps]
