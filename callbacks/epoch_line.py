"""One plain line per epoch on the terminal."""

from __future__ import annotations

import lightning.pytorch as pl

from mempo.training.interface import epoch_record

PHASES = ("sync", "rollout", "scoring", "update")

_COLUMNS = (
    ("reward", "reward/mean", "{:.3f}"),
    ("exact match", "reward/exact_match", "{:.3f}"),
    ("memory reward", "memory/reward_mean", "{:+.3f}"),
    ("tokens", "tokens/total_mean", "{:.0f}"),
)


class EpochLineCallback(pl.Callback):
    """Prints reward, exact match, memory reward, tokens per trajectory and seconds per phase."""

    def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Prints the line on rank 0."""
        if trainer.is_global_zero:
            print(epoch_line(epoch_record(trainer), trainer.max_epochs), flush=True)


def epoch_line(record: dict[str, float], max_epochs: int | None) -> str:
    """The line for one epoch's record. What was not measured is a dash."""
    number = int(record["epoch"]) + 1
    of = "" if max_epochs is None or max_epochs < 0 else f"/{max_epochs}"
    parts = [f"epoch {number}{of}"]
    parts += [
        f"{name} {form.format(record[key]) if key in record else '–'}"
        for name, key, form in _COLUMNS
    ]
    seconds = [f"{p} {record[f'seconds/{p}']:.1f}" for p in PHASES if f"seconds/{p}" in record]
    if seconds:
        parts.append("seconds " + " ".join(seconds))
    return " | ".join(parts)
