"""The agent loop over engine and tools (specification section 4).

Rewards are computed as each trajectory finishes, while others go on. An exception anywhere stops
the collection.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from typing import Final

import jinja2

from mempo.agent.collection import Attempt, Collection, Progress, RolloutStopped, Watch
from mempo.agent.conversation import Conversation
from mempo.agent.error_rate import SHARED_LIMIT, ErrorRate, ErrorRates
from mempo.agent.prompts import load_template
from mempo.agent.protocol import trajectory_broken_rules
from mempo.agent.state_machine import Agent, AgentSettings
from mempo.agent.tools import MadeTool, ToolBox, make_tools
from mempo.config import Config, RewardConfig, writes_memory
from mempo.engine.interface import ChatEngine, GenerationEngine, Sampling
from mempo.judging.judging import CACHE_DIR, Judging
from mempo.retrieval.base import Retriever
from mempo.trajectory import Task, Trajectory

_NOBODY: Final = Watch()
_EXACT_MATCH: Final = RewardConfig()


class Rollout:
    """Collects trajectories. Knows nothing of Lightning.

    Args:
        engine: generates token ids.
        conversation: chat-template glue of the policy's tokenizer.
        toolbox: the agent's tools, whose tags are ``conversation``'s.
        template: the instruction template, with ``question`` and, false in contexts without one,
            ``memory``.
        reward: what a finished trajectory is worth.
        tool_workers: threads that run tools.
        max_tool_error_rate: share of a collection's tool calls that may fail for a reason that is
            not the model's own, before the run stops; of a tool of one's own that says nothing
            else (``ToolConfig.max_error_rate``), its calls.
        cache_dir: where a judge's verdicts are kept.
    """

    def __init__(
        self,
        engine: GenerationEngine,
        conversation: Conversation,
        toolbox: ToolBox,
        template: jinja2.Template,
        reward: RewardConfig = _EXACT_MATCH,
        tool_workers: int = 8,
        max_tool_error_rate: float = 0.2,
        cache_dir: str = CACHE_DIR,
    ) -> None:
        self.engine = engine
        self.conversation = conversation
        self.toolbox = toolbox
        self.template = template
        self.reward = reward
        self.cache_dir = cache_dir
        self.tool_workers = tool_workers
        self.max_tool_error_rate = max_tool_error_rate

    @classmethod
    def from_config(
        cls,
        config: Config,
        engine: GenerationEngine,
        conversation: Conversation,
        retrievers: Mapping[str, Retriever],
        tools: Sequence[MadeTool] | None = None,
    ) -> Rollout:
        """The rollout that a configuration describes, for training and for evaluation. ``tools``
        are the configuration's, which a run makes once (``None``: they are made here)."""
        made = make_tools(config.tools) if tools is None else tools
        return cls(
            engine,
            conversation,
            ToolBox(retrievers, config.retriever, conversation.inert, made),
            load_template(config.model.prompt_template, config.tools),
            config.reward,
            config.retriever.workers,
            config.retriever.max_tool_error_rate,
            config.cache_dir,
        )

    def collect(
        self,
        tasks: Sequence[Task],
        samples: int,
        settings: AgentSettings,
        sampling: Sampling,
        seed_parts: tuple[object, ...] = (),
        epoch: int = 0,
        watch: Watch = _NOBODY,
    ) -> list[Trajectory]:
        """``samples`` trajectories of every task, in the order (task, sample), all at once; see
        ``run``. ``seed_parts`` are run seed, epoch and rank."""
        attempts = {
            f"{index}/{sample}": Attempt(task, sample, settings, seed_parts, epoch)
            for index, task in enumerate(tasks)
            for sample in range(samples)
        }
        return self.run(attempts, sampling, watch)

    def run(
        self,
        attempts: Mapping[str, Attempt],
        sampling: Sampling,
        watch: Watch = _NOBODY,
        at_once: int | None = None,
    ) -> list[Trajectory]:
        """The attempts' trajectories, in their order.

        At most ``at_once`` run at a time (``None``: all): the next begins when one ends, so that
        many can be asked for and none waits for a long one. Any exception in the engine, a tool or
        a reward is raised here, after the engine has been emptied, and so is ``RolloutStopped``.
        """
        done: dict[str, Trajectory] = {}
        for key, trajectory in self.stream(attempts, sampling, watch.stopped, at_once):
            if trajectory.ending is None:
                continue
            done[key] = trajectory
            if watch.finished is not None:
                watch.finished(key, trajectory)
            if watch.progress is not None:
                watch.progress(Progress(1, trajectory.policy_tokens))
        return [done[key] for key in attempts]

    def stream(
        self,
        attempts: Mapping[str, Attempt],
        sampling: Sampling,
        stopped: Callable[[], bool] = lambda: False,
        at_once: int | None = None,
    ) -> Generator[tuple[str, Trajectory], None, None]:
        """Key and trajectory of an attempt each time that it has gone on; one that comes with its
        ``ending`` is judged. Nothing goes on between two steps of the iterator. Closing it, as an
        exception does, empties the engine.
        """
        errors = self._error_rates()
        with (
            Judging(self.reward, self.cache_dir) as judging,
            self.collection(attempts, sampling) as collection,
        ):
            for key, trajectory in collection.run(at_once or len(attempts), stopped, errors):
                if trajectory.ending is None:
                    yield key, trajectory
                else:
                    self._finish(key, trajectory, attempts[key].settings, judging)
                yield from judging.take()
            while judging.pending:
                if stopped():
                    raise RolloutStopped
                yield from judging.take(wait_seconds=1.0)
            judging.check()

    @contextmanager
    def collection(
        self,
        attempts: Mapping[str, Attempt],
        sampling: Sampling,
        executor: Executor | None = None,
    ) -> Iterator[Collection]:
        """A collection whose tools run on ``executor`` (without one: on threads of its own), which
        ends with the block. An exception within it empties the engine."""
        executor = executor or ThreadPoolExecutor(self.tool_workers, thread_name_prefix="tool")
        try:
            yield Collection(self.engine, executor, attempts, sampling, self._start_agent)
        except BaseException:
            self.engine.abort_all()
            raise
        finally:
            executor.shutdown(wait=False, cancel_futures=True)

    def error_limits(self) -> dict[str, tuple[str, float]]:
        """By the tag of each tool that is counted apart: setting and share of its calls that may
        fail."""
        limits = {}
        for tool in self.toolbox.counted_apart:
            rate = tool.entry.max_error_rate
            if rate is None:
                limits[tool.entry.tag] = SHARED_LIMIT, self.max_tool_error_rate
            else:
                limits[tool.entry.tag] = f"{tool.setting}.max_error_rate", rate
        return limits

    def _error_rates(self) -> ErrorRates:
        own = {
            tag: ErrorRate(rate, setting=setting, tool=tag)
            for tag, (setting, rate) in self.error_limits().items()
        }
        return ErrorRates(ErrorRate(self.max_tool_error_rate), own)

    def prompt(self, task: Task, context: str = "full") -> str:
        """The user turn that a trajectory of the task begins with."""
        question = self.conversation.inert(task.question)
        return self.template.render(question=question, memory=writes_memory(context))

    def prompt_ids(self, attempt: Attempt) -> list[int]:
        """What the trajectory of an attempt begins with."""
        prompt = self.prompt(attempt.task, attempt.settings.context)
        return self.conversation.prompt_ids(prompt)

    def _start_agent(self, attempt: Attempt) -> Agent:
        task = attempt.task
        prompt = self.prompt(task, attempt.settings.context)
        ids = self.conversation.prompt_ids(prompt)
        trajectory = Trajectory(task, attempt.epoch, attempt.sample, prompt_length=len(ids))
        settings = attempt.settings
        if isinstance(self.engine, ChatEngine):
            settings = replace(settings, prefill_memory=False)
        return Agent(
            trajectory,
            ids,
            self.conversation,
            self.toolbox.session(task),
            settings,
            self.engine.max_model_len,
            prompt,
        )

    def _finish(
        self, key: str, trajectory: Trajectory, settings: AgentSettings, judging: Judging
    ) -> None:
        """Has a finished trajectory judged (specification section 5)."""
        texts = [round_.text for round_ in trajectory.rounds]
        protocol = self.conversation.protocol.with_memory(writes_memory(settings.context))
        trajectory.format_valid = not trajectory_broken_rules(texts, protocol)
        judging.begin(key, trajectory)
