"""One optimizer step's forward and backward passes: the lean loss against the plain one.

    python benchmarks/update.py --model smollm2 --dtype bfloat16

Both sides compute the same loss and gradient on the same rows, in turns:

- lean: ``MemPOModule.loss``, whose output layer runs at policy positions only, in chunks, and with
  ``--prompt`` the tokens that all rows begin with once for a micro-batch; with ``--pack true`` rows
  end to end, without padding
- plain: the logits of every token in float32, ``log_softmax``, ``gather``, the entropy of every
  position (without gradient, as the lean side measures it), and the same ``policy_loss``

``--dtype bfloat16`` runs the passes under ``torch.autocast`` over float32 weights, as the trainer's
``bf16-mixed`` does. Gradients are compared before and after the timing. Memory is measured in the
first run of each side, whose gradients do not exist before it, so that they count on both sides.

Prints one JSON line, last: ``time_ratio`` and ``memory_ratio`` (lean over plain; memory above the
model at its peak), and ``peak_share``: the model's floating-point operations in a second of the
lean step, as a share of the best matrix product measured in the same dtype in the same run. The
operations are those of ``common.forward_flops`` for the forward pass, with the output layer at
policy positions only, and twice as many for the backward pass; what gradient checkpointing or
chunking computes again does not count, and neither does padding. It is null where a prompt is
computed once.
"""

from __future__ import annotations

import argparse
import math
import random
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import torch
from torch import Tensor

from benchmarks.common import (
    argument_parser,
    autocast,
    device,
    forward_flops,
    load_model,
    matmul_peak,
    medians,
    print_result,
    print_seconds,
    ratio_or_none,
    time_sides,
    with_peak_memory,
)
from mempo.command.cli import compose
from mempo.learning.batches import Batch, collate
from mempo.learning.loss import LossInputs, policy_loss
from mempo.learning.micro_batches import TrainingRow, is_sharing_worth_it, plan_micro_batches
from mempo.models.checkpointing import enable_gradient_checkpointing
from mempo.training.module import MemPOModule
from mempo.trajectory import Objective, SpanKind, Task, TokenSequence, Trajectory

CONFIGURATIONS = {"tiny": "tiny", "smollm2": "smollm2_135m"}
CHECKPOINTING = {"none": False, "full": True, "selective": "selective"}
PACKING = {"auto": "null", "true": "true", "false": "false"}
GRADIENT_TOLERANCE = {"float32": 1e-4, "bfloat16": 0.05}
"""Of the gradients' difference, as a share of their norm."""

_RUN = 64
"""Policy tokens come in runs: the last part of every 64 tokens."""

Loss = Callable[[Batch], Tensor]


def main(argv: Sequence[str] | None = None) -> None:
    arguments = parse(argv)
    model, _ = load_model(arguments.model)
    model.train()
    checkpointing = CHECKPOINTING[arguments.gradient_checkpointing]
    config = compose(
        overrides=[
            f"model={CONFIGURATIONS[arguments.model]}",
            f"model.gradient_checkpointing={checkpointing}",
            f"optimizer.pack_rows={PACKING[arguments.pack]}",
            "logger=none",
        ]
    )
    module = MemPOModule(model, config)
    rows = make_rows(arguments)
    budget, share, packed = arguments.micro_batch_tokens, module.shares_prompts, module.packs_rows
    share = share and is_sharing_worth_it(rows, budget, packed)
    lean_batches = micro_batches(rows, budget, share, packed)
    plain_batches = micro_batches(rows, arguments.plain_micro_batch_tokens or budget)

    def step(
        batches: Sequence[Batch], loss: Loss, checkpointing: Any
    ) -> Callable[[], dict[str, Tensor]]:
        def run() -> dict[str, Tensor]:
            model.gradient_checkpointing_disable()
            enable_gradient_checkpointing(model, checkpointing)
            module.zero_grad(set_to_none=True)
            for batch in batches:
                with autocast(arguments.dtype):
                    value = loss(batch)
                torch.autograd.backward(value)
            return {
                name: parameter.grad
                for name, parameter in model.named_parameters()
                if parameter.grad is not None
            }

        return run

    sides = {
        "lean": step(lean_batches, lambda batch: module.loss(batch)[0], checkpointing),
        "plain": step(plain_batches, lambda batch: plain_loss(module, batch), False),
    }
    step(micro_batches(rows[:1], budget), lambda batch: module.loss(batch)[0], False)()  # warms up
    peaks: dict[str, int | None] = {}
    checked: dict[str, dict[str, Tensor]] = {}
    for name, side in sides.items():
        module.zero_grad(set_to_none=True)
        checked[name], peaks[name] = with_peak_memory(side)
    difference = check_gradients(checked, arguments.dtype)
    checked.clear()
    machine_peak = matmul_peak(arguments.dtype, arguments.matmul_size)
    seconds, results = time_sides(sides, arguments.repeats)
    machine_peak = max(machine_peak, matmul_peak(arguments.dtype, arguments.matmul_size))
    difference = max(difference, check_gradients(results, arguments.dtype))

    print_seconds(seconds)
    median = medians(seconds)
    lengths = [len(row.sequence) for row in rows]
    policy_tokens = sum(row.sequence.policy_tokens for row in rows)
    flops = 3.0 * forward_flops(model, lengths, policy_tokens)
    print_result(
        "update",
        arguments,
        {
            "time_ratio": median["lean"] / median["plain"],
            "memory_ratio": ratio_or_none(peaks["lean"], peaks["plain"]),
            "peak_share": None if share else flops / median["lean"] / machine_peak,
            "gradient_difference": difference,
            "tokens": sum(lengths),
            "tokens_per_second": sum(lengths) / median["lean"],
            "policy_tokens": policy_tokens,
            "gflops": None if share else flops / median["lean"] / 1e9,
            "matmul_gflops": machine_peak / 1e9,
            **{f"peak_mib_{k}": None if v is None else v / 2**20 for k, v in peaks.items()},
            **{f"seconds_{name}": value for name, value in median.items()},
        },
    )


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argument_parser(__doc__, model="tiny")
    parser.add_argument("--tokens", type=int, default=4096, help="of the optimizer step")
    parser.add_argument("--sequences", type=int, default=4, help="that the tokens are split into")
    parser.add_argument("--prompt", type=int, default=0, help="tokens that all sequences share")
    parser.add_argument(
        "--spread",
        type=float,
        default=0.0,
        help="lengths behind the prompt are spread by this share of their mean, to both sides",
    )
    parser.add_argument(
        "--pack",
        choices=[*PACKING],
        default="auto",
        help="no padding on the lean side",
    )
    parser.add_argument("--policy-share", type=float, default=0.25, help="of the tokens")
    parser.add_argument("--micro-batch-tokens", type=int, default=4096, help="of the lean side")
    parser.add_argument(
        "--plain-micro-batch-tokens", type=int, default=None, help="None: as the lean side"
    )
    parser.add_argument("--matmul-size", type=int, default=2048, help="of the peak's matrices")
    parser.add_argument(
        "--gradient-checkpointing",
        choices=[*CHECKPOINTING],
        default="none",
        help="of the lean side; the plain side keeps everything",
    )
    return parser.parse_args(argv)


def make_rows(shape: argparse.Namespace) -> list[TrainingRow]:
    """Rows of random tokens with random advantages, weighted over the whole step."""
    rng = random.Random(shape.seed)
    mean = shape.tokens // shape.sequences
    after_prompt = shape.policy_share * mean / (mean - shape.prompt)
    policy_from = round(_RUN * (1.0 - after_prompt))
    prompt = [rng.randrange(1000) for _ in range(shape.prompt)]
    task = Task("random", (Objective("", ("",)),))
    trajectories: list[Trajectory] = []
    for sample in range(shape.sequences):
        place = 2 * sample / max(shape.sequences - 1, 1) - 1  # from -1 to 1
        length = mean + round(shape.spread * place * (mean - shape.prompt))
        mask = [0] * shape.prompt + [
            int(position % _RUN >= max(policy_from, 1)) for position in range(length - shape.prompt)
        ]
        sequence = TokenSequence(
            ids=prompt + [rng.randrange(1000) for _ in range(length - shape.prompt)],
            mask=mask,
            logprobs=[-7.0 if policy else None for policy in mask],
            kinds=[SpanKind.OTHER if policy else SpanKind.CONTEXT for policy in mask],
            advantages=[rng.gauss(0.0, 1.0) * policy for policy in mask],
        )
        trajectories.append(Trajectory(task, 0, sample, shape.prompt, sequences=[sequence]))
    weight = 1.0 / sum(trajectory.policy_tokens for trajectory in trajectories)
    return [TrainingRow(t, t.sequences[0], weight) for t in trajectories]


def micro_batches(
    rows: Sequence[TrainingRow], budget: int, share_prompts: bool = False, packed: bool = False
) -> list[Batch]:
    plan = plan_micro_batches(rows, budget, share_prompts, packed)
    return [
        collate(members, index == len(plan) - 1, share_prompts, packed).to(device())
        for index, members in enumerate(plan)
    ]


def plain_loss(module: MemPOModule, batch: Batch) -> Tensor:
    """The same loss from the logits of every token."""
    model: Any = module.model
    logits = model(
        input_ids=batch.ids, attention_mask=batch.attention_mask, use_cache=False
    ).logits.float()
    logprobs = torch.log_softmax(logits[:, :-1], dim=-1)  # (B, T - 1, V)
    chosen = logprobs.gather(-1, batch.ids[:, 1:].unsqueeze(-1)).squeeze(-1)
    with torch.no_grad():
        entropy = -(logprobs.exp() * logprobs).sum(-1)

    def from_first(values: Tensor) -> Tensor:
        """With a place for the first token, which nothing precedes."""
        return torch.nn.functional.pad(values, (1, 0))

    inputs = LossInputs(
        from_first(chosen),
        batch.old_logprobs,
        batch.advantages,
        batch.mask,
        batch.weights,
        entropy=from_first(entropy),
        engine_logprobs=batch.engine_logprobs,
    )
    return policy_loss(inputs, module.config.loss)[0]


def check_gradients(gradients: dict[str, dict[str, Tensor]], dtype: str) -> float:
    """The difference of the two sides' gradients over their norm; ends the program above the
    tolerance."""
    lean, plain = gradients["lean"], gradients["plain"]
    if lean.keys() != plain.keys() or not lean:
        raise SystemExit("the two sides give gradients to different parameters")
    apart = sum(float((lean[name] - plain[name]).double().square().sum()) for name in lean)
    size = sum(float(plain[name].double().square().sum()) for name in plain)
    difference = math.sqrt(apart / size)
    if not difference < GRADIENT_TOLERANCE[dtype]:
        raise SystemExit(f"the gradients differ by {difference} of their norm")
    return difference


if __name__ == "__main__":
    main()
