"""The agent loop against the engine's own ``generate`` on the same token work.

    python benchmarks/rollout.py --model smollm2 --dtype bfloat16

Every trajectory has ``--rounds`` rounds of exactly ``--generated`` sampled tokens; all but the last
end with a scripted search, whose result has ``--observed`` tokens with the glue around it, and the
last with an answer (``benchmarks/scripted.py``). The sides, in turns, each from an empty prefix
cache:

- loop: the agent loop, tools of 0 ms
- loop_slow: the agent loop, tools of ``--tool-ms``
- generate: for each round one call of the engine's ``generate`` with the prompts, lengths and
  seeds of that round, as the loop's first run had them; no tools, no text, no trajectories
- straggler: the agent loop with tools of 0 ms, but the first call of one trajectory takes
  ``--straggler-seconds``

Before the timing, ``generate`` must sample what the loop sampled (in float32; a rare token may fall
to the other side of a draw, since batches differ). Prints one JSON line, last:
``loop_over_generate`` and ``loop_over_generate_200ms`` (sampled tokens a second, loop over
generate; the second with tools of ``--tool-ms``), ``slow_tool_delay_ratio`` (the seconds until all
others of the straggler have finished, over the same with tools of 0 ms for all).
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.common import (
    Words,
    argument_parser,
    forward_flops,
    matmul_peak,
    medians,
    print_result,
    print_seconds,
    save_model,
    time_sides,
)
from benchmarks.scripted import ForcedEngine, Request, ScriptedRetriever, observation_tokens
from mempo.agent.conversation import Conversation
from mempo.agent.prompts import load_template
from mempo.agent.rollout import Rollout
from mempo.agent.state_machine import AgentSettings
from mempo.agent.tools import ToolBox
from mempo.config import EngineConfig, RetrieverConfig
from mempo.engine.interface import Sampling
from mempo.runtime.library_warnings import quiet_libraries
from mempo.trajectory import Ending, Objective, Task

SAME_SAMPLES = 0.9
"""The least share of requests for which both sides must sample the same tokens, in float32."""

_STRAGGLER = "0/0"
"""The first sample of the first task."""

_SLOW_QUERY = "slow"


def main(argv: Sequence[str] | None = None) -> None:
    quiet_libraries()
    arguments = parse(argv)
    with tempfile.TemporaryDirectory() as folder:
        model, tokenizer = save_model(arguments.model, folder)
        operations = forward_flops(model, [1], 1)
        conversation = Conversation(tokenizer, "Answer.")
        bench = Bench(arguments, folder, conversation)
        try:
            measure(bench, arguments, operations)
        finally:
            bench.engine.close()


def measure(bench: Bench, arguments: argparse.Namespace, operations: float) -> None:
    """``operations`` of the model's weights for a token."""
    bench.loop(0.0)  # also warms up
    rounds = bench.rounds()
    same = bench.generate(rounds)
    if arguments.dtype == "float32" and same < SAME_SAMPLES:
        raise SystemExit(f"generate and the loop sampled the same in {same:.2f} of the rounds only")
    finished: dict[str, list[float]] = {"loop": [], "straggler": []}
    seconds, _ = time_sides(
        {
            "loop": lambda: finished["loop"].append(bench.loop(0.0)),
            "generate": lambda: bench.generate(rounds),
            "loop_slow": lambda: bench.loop(arguments.tool_ms / 1000),
            "straggler": lambda: finished["straggler"].append(
                bench.loop(0.0, arguments.straggler_seconds)
            ),
        },
        arguments.repeats,
    )
    print_seconds(seconds)
    median, others = medians(seconds), medians(finished)
    tokens = arguments.trajectories * arguments.rounds * arguments.generated
    print_result(
        "rollout",
        arguments,
        {
            "loop_over_generate": median["generate"] / median["loop"],
            "loop_over_generate_200ms": median["generate"] / median["loop_slow"],
            "slow_tool_delay_ratio": others["straggler"] / others["loop"],
            "others_finished_with": others["straggler"],
            "others_finished_without": others["loop"],
            "same_samples": same,
            "loop_tokens_per_second": tokens / median["loop"],
            "peak_share": operations
            * tokens
            / median["loop"]
            / matmul_peak(arguments.dtype, arguments.matmul_size),
            "generate_tokens_per_second": tokens / median["generate"],
            **{f"seconds_{name}": value for name, value in median.items()},
        },
    )


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argument_parser(__doc__, model="tiny")
    parser.add_argument("--trajectories", type=int, default=64, help="at once")
    parser.add_argument("--group", type=int, default=8, help="of them with the same prompt")
    parser.add_argument("--rounds", type=int, default=4, help="of each trajectory")
    parser.add_argument("--prompt", type=int, default=200, help="tokens of the prompt")
    parser.add_argument("--generated", type=int, default=100, help="sampled tokens a round")
    parser.add_argument("--observed", type=int, default=100, help="tokens between two rounds")
    parser.add_argument("--tool-ms", type=float, default=200.0, help="of the slower tools")
    parser.add_argument("--straggler-seconds", type=float, default=5.0, help="of its tools")
    parser.add_argument(
        "--workers", type=int, default=RetrieverConfig().workers, help="threads for tools"
    )
    parser.add_argument("--matmul-size", type=int, default=2048, help="of the peak's matrices")
    parser.add_argument("--kv-cache-gib", type=float, default=1.0, help="of the engine on a CPU")
    return parser.parse_args(argv)


class Bench:
    """The engine, the tasks and the two ways to sample."""

    def __init__(self, shape: argparse.Namespace, folder: str, conversation: Conversation) -> None:
        self._shape = shape
        self._conversation = conversation
        self._template = load_template("compact")
        words = Words(conversation.tokenizer, shape.seed)
        self._observation = words.fitted(
            lambda text: observation_tokens(conversation, text), shape.observed
        )
        self._tasks = [
            Task(str(index), (Objective(self._question(words), ("x",)),))
            for index in range(shape.trajectories // shape.group)
        ]
        config = EngineConfig(
            max_num_seqs=max(shape.trajectories, 128), cpu_kv_cache_gib=shape.kv_cache_gib
        )
        self.engine = ForcedEngine(folder, config, shape.dtype, conversation, self._ending)

    def loop(self, delay: float, straggler_seconds: float | None = None) -> float:
        """The agent loop; the seconds until all trajectories but the straggler had finished."""
        shape = self._shape
        slow = delay if straggler_seconds is None else straggler_seconds
        tools = ScriptedRetriever(self._observation, delay, {_SLOW_QUERY: slow})
        rollout = Rollout(
            self.engine,
            self._conversation,
            ToolBox({"default": tools}, RetrieverConfig(passage_chars=10**6)),
            self._template,
            tool_workers=shape.workers,
        )
        settings = AgentSettings(
            context="full",
            max_rounds=shape.rounds,
            max_response_tokens=10**6,
            max_round_tokens=shape.generated,
            max_observation_tokens=10**6,
        )
        self.engine.start()
        start = time.perf_counter()
        trajectories = rollout.collect(self._tasks, shape.group, settings, Sampling())
        wanted = (shape.rounds * shape.generated, shape.rounds - 1, Ending.ANSWERED)
        for trajectory in trajectories:
            if (trajectory.policy_tokens, trajectory.tool_calls, trajectory.ending) != wanted:
                raise SystemExit(f"{trajectory.name} is not what was scripted")
        ends = [r.finished_at for r in self.engine.requests if r.key != _STRAGGLER]
        return max(ends) - start

    def rounds(self) -> list[list[Request]]:
        """The requests of the last rollout, round by round."""
        return [
            [request for request in self.engine.requests if request.number == number]
            for number in range(1, self._shape.rounds + 1)
        ]

    def generate(self, rounds: Sequence[Sequence[Request]]) -> float:
        """The engine's ``generate`` for one round after the other; the share of the requests for
        which it sampled what the loop had sampled."""
        self.engine.start()
        same = 0
        for requests in rounds:
            sampled = self.engine.generate(requests)
            for request, ids in zip(requests, sampled, strict=True):
                if len(ids) != request.tokens:
                    raise SystemExit(f"generate gave {len(ids)} tokens for {request.tokens}")
                same += ids == request.sampled
        return same / sum(map(len, rounds))

    def _question(self, words: Words) -> str:
        """A question with which the whole prompt has the wanted number of tokens."""

        def length(question: str) -> int:
            return len(self._conversation.prompt_ids(self._template.render(question=question)))

        return words.fitted(length, self._shape.prompt)

    def _ending(self, key: str, number: int) -> str:
        if number == self._shape.rounds:
            return "<answer>x</answer>"
        slow = key == _STRAGGLER and number == 1
        return f"<search>{_SLOW_QUERY if slow else 'x'}</search>"


if __name__ == "__main__":
    main()
