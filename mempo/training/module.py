"""The policy under Lightning: model, PPO update and optimizer (specification section 8)."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any, cast

import lightning as L
import torch
from peft import PeftModel
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from mempo.config import Config, OptimizerConfig
from mempo.learning.batches import Batch
from mempo.learning.logprobs import WantedTokens, token_logprobs
from mempo.learning.loss import LossInputs, NonFiniteTokenError, policy_loss
from mempo.learning.packed_rows import packs_rows
from mempo.learning.shared_prefix import unsupported_reason
from mempo.models.lora import named_weights, without_adapters
from mempo.models.sharded import keep_gradients_local, shard_and_fill
from mempo.runtime.phases import Phases
from mempo.runtime.seeds import derive_seed
from mempo.training.adamw import adamw
from mempo.training.interface import SampledPolicy, TrainedPolicy
from mempo.training.update_sums import TOKEN_MEANS, UpdateSums


def learning_rate_factor(settings: OptimizerConfig, step: int, steps: int) -> float:
    """The learning rate of optimizer step ``step`` (from 0) of ``steps``, as a share of the peak.

    It rises linearly over ``warmup_epochs``; with ``decay=linear`` it then falls in equal parts, so
    that a step after the last would have 0.
    """
    warmup = settings.warmup_epochs * settings.updates_per_epoch
    if step < warmup:
        return (step + 1) / (warmup + 1)
    if settings.decay == "none":
        return 1.0
    return max(0.0, (steps - step) / max(steps - warmup, 1))


class MemPOModule(L.LightningModule, TrainedPolicy, SampledPolicy):
    """Owns the policy and the PPO loss.

    Each batch is one micro-batch; its token weights were computed over the whole optimizer step,
    so gradients of micro-batches and ranks add up. Metrics of the epoch, reduced over ranks, are in
    ``epoch_metrics`` once its last micro-batch is done.

    Args:
        model: the policy, a Hugging Face causal language model.
        config: the run's configuration.
        reference: a frozen copy of the policy's start, needed when ``loss.kl_coefficient`` > 0. A
            policy with LoRA adapters needs none: it is its own reference without them.
        start: where the weights of an ``empty_policy`` are read from, once it is sharded.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        config: Config,
        reference: torch.nn.Module | None = None,
        start: str = "",
    ) -> None:
        super().__init__()
        self.automatic_optimization = False
        self.model = model
        self.config = config
        self.start_folder = start
        self.loss_settings = dataclasses.replace(config.loss, importance_cap=config.importance_cap)
        self.reference = reference
        if reference is not None:
            reference.requires_grad_(False)
        self.epoch_metrics: dict[str, float] = {}
        self._sums = UpdateSums()
        self._grad_norms: list[float] = []
        self.phases = Phases()

    # Lightning's hooks

    def configure_model(self) -> None:
        """Shards the policy under ``trainer=fsdp2``, and reads its weights if it has none yet."""
        mesh = self.device_mesh
        if mesh is None or getattr(self, "_sharded", False):
            return
        self._sharded = True
        for model in (self.model, self.reference):
            if model is not None:
                dtype = self.config.model.dtype
                sharding = self.config.trainer.sharding
                shard_and_fill(model, mesh, dtype, self.start_folder, self.device, sharding)

    def on_train_start(self) -> None:
        # A checkpoint holds the learning rate that its own schedule gave. Where the schedule is the
        # same, this is that value.
        for one in self.trainer.lr_scheduler_configs:
            schedule: Any = one.scheduler
            factor = self._learning_rate_factor(schedule.last_epoch)
            for group, base in zip(schedule.optimizer.param_groups, schedule.base_lrs, strict=True):
                group["lr"] = base * factor

    def on_train_epoch_start(self) -> None:
        # Models that transformers loads are in eval mode, which turns gradient checkpointing off.
        self.model.train()
        if self.reference is not None:
            self.reference.eval()
        # Dropout in LoRA adapters is then the same in a run that goes on from a checkpoint.
        seed = derive_seed(self.config.seed, "update", self.current_epoch, self.global_rank)
        torch.manual_seed(seed)
        self.phases.start("update")  # Callbacks, which score, have run before.
        self._sums.reset()
        self._grad_norms.clear()

    def training_step(self, batch: Batch, batch_idx: int) -> None:
        with self._gradients_stay_local(not batch.last_of_update):
            loss, metrics = self.loss(batch)
            self.manual_backward(loss * self.trainer.world_size)
        self._sums.update({**metrics, "loss": loss.detach()})
        if batch.last_of_update:
            self._step()

    def on_train_batch_end(self, outputs: Any, batch: Batch, batch_idx: int) -> None:
        # Callbacks read the epoch's metrics in on_train_epoch_end, which Lightning calls on them
        # before it calls it on the module.
        if self.trainer.is_last_batch:
            self.epoch_metrics = self._reduced_metrics()
            self.phases.stop("update")

    def _reduced_metrics(self) -> dict[str, float]:
        """The epoch's sums over all ranks as means per trained policy token; without one there is
        no mean. Every rank must call it."""
        updates = len(self._grad_norms)
        totals: dict[str, float] = self._sums.compute()
        tokens = totals["tokens"]
        metrics = {"update/loss": totals["loss"] / max(updates, 1)}
        for key, name in TOKEN_MEANS.items():
            if key in totals and tokens:
                metrics[name] = totals[key] / tokens
        metrics["update/tokens"] = tokens
        if "mismatch_max" in totals and tokens:
            metrics["engine/mismatch_max"] = totals["mismatch_max"]
        if updates:
            metrics["update/gradient_norm"] = sum(self._grad_norms) / updates
        metrics["update/learning_rate"] = self.trainer.optimizers[0].param_groups[0]["lr"]
        metrics["update/steps"] = float(updates)
        return metrics

    def configure_optimizers(self) -> Any:
        settings = self.config.optimizer
        optimizer = adamw(
            self.model,
            self.device,
            settings.fused,
            settings.learning_rate,
            settings.betas,
            settings.weight_decay,
        )
        schedule = torch.optim.lr_scheduler.LambdaLR(
            optimizer,
            self._learning_rate_factor,
        )
        return {"optimizer": optimizer, "lr_scheduler": schedule}

    def _learning_rate_factor(self, step: int) -> float:
        settings = self.config.optimizer
        epochs = settings.decay_epochs or self.config.trainer.max_epochs
        return learning_rate_factor(settings, step, epochs * settings.updates_per_epoch)

    def transfer_batch_to_device(
        self, batch: Batch, device: torch.device, dataloader_idx: int
    ) -> Batch:
        return batch.to(device)

    # What it computes

    def loss(self, batch: Batch) -> tuple[Tensor, dict[str, Tensor]]:
        """The micro-batch's share of the optimizer step's loss and its metric sums.

        Raises ``FloatingPointError`` that names the trajectory for a NaN or an infinity at a
        policy token.
        """
        settings = self.loss_settings
        result = token_logprobs(
            self.model,
            _wanted(batch),
            self.config.rollout.temperature,
            entropy="trained" if settings.entropy_coefficient > 0 else "measured",
        )
        try:
            inputs = LossInputs(
                result.logprobs,
                batch.old_logprobs,
                batch.advantages,
                batch.mask,
                batch.weights,
                ref_logprobs=self._reference_logprobs(batch),
                entropy=result.entropy,
                engine_logprobs=batch.engine_logprobs,
            )
            return policy_loss(inputs, settings)
        except NonFiniteTokenError as error:
            raise FloatingPointError(self._name_positions(error, batch)) from error

    @property
    def shares_prompts(self) -> bool:
        """Whether tokens that rows begin with may be computed once for all of them."""
        return self.config.optimizer.share_prompts and unsupported_reason(self.model) is None

    @property
    def packs_rows(self) -> bool:
        """Whether rows are computed end to end, without padding."""
        return packs_rows(self.config.optimizer.pack_rows, self.model)

    def weights(self) -> Iterator[tuple[str, Tensor]]:
        """The policy's parameters by Hugging Face name, one at a time, gathered where sharded and
        with LoRA adapters merged; shards in the engine's dtype."""
        yield from named_weights(self.model, getattr(torch, self.config.engine_dtype))

    def _reference_logprobs(self, batch: Batch) -> Tensor | None:
        if self.config.loss.kl_coefficient == 0.0:
            return None
        as_reference: AbstractContextManager[None] = nullcontext()
        if self.reference is not None:
            model: Any = self.reference
        elif isinstance(self.model, PeftModel):
            model, as_reference = self.model, without_adapters(self.model)
        else:
            raise ValueError("loss.kl_coefficient is positive but there is no reference model")
        with torch.no_grad(), as_reference:
            return token_logprobs(
                model,
                _wanted(batch),
                self.config.rollout.temperature,
            ).logprobs

    def _step(self) -> None:
        optimizer = cast(Optimizer, self.optimizers())
        norm = torch.nn.utils.clip_grad_norm_(
            self.model.parameters(), self.config.optimizer.max_grad_norm
        )
        norm_value = float(norm.full_tensor() if hasattr(norm, "full_tensor") else norm)
        if not math.isfinite(norm_value):
            raise FloatingPointError(
                f"the gradient norm of epoch {self.current_epoch} is {norm_value}: the step was "
                "not taken; lower optimizer.learning_rate or look at the last trajectories"
            )
        self._grad_norms.append(norm_value)
        optimizer.step()
        optimizer.zero_grad()
        cast(LRScheduler, self.lr_schedulers()).step()

    def _gradients_stay_local(self, local: bool) -> Any:
        """Under DDP, gradients are exchanged only in an update's last micro-batch; sharded, as the
        settings say."""
        keep_gradients_local(self.model, local, self.config.trainer.sharding)
        wrapped = self.trainer.strategy.model
        if local and isinstance(wrapped, DistributedDataParallel):
            return wrapped.no_sync()
        return nullcontext()

    @staticmethod
    def _name_positions(error: NonFiniteTokenError, batch: Batch) -> str:
        width = batch.ids.shape[1]
        places = "; ".join(
            batch.rows[position // width].place(position % width)
            for position in error.positions[:3]
        )
        return f"{error.tensor} is NaN or infinite at policy tokens: {places}"


def _wanted(batch: Batch) -> WantedTokens:
    return WantedTokens(batch.ids, batch.attention_mask, batch.mask, batch.shared, batch.packed)
