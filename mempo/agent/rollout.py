"""The agent loop over engine and tools, with no lock-step (specification section 4).

Each trajectory runs on its own: GENERATING → TOOL → GENERATING → … → DONE. The engine is stepped
by one thread; tools run on worker threads meanwhile; a slow tool holds up nobody else. Rewards are
computed as each trajectory finishes. An exception anywhere stops the collection.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass

import jinja2

from mempo.agent.conversation import Conversation
from mempo.agent.error_rate import ErrorRate
from mempo.agent.prompts import load_template
from mempo.agent.protocol import trajectory_broken_rules
from mempo.agent.state_machine import Agent, AgentSettings, GenerationRequest
from mempo.agent.tools import ToolBox, ToolResult
from mempo.config import Config
from mempo.engine.interface import GenerationEngine, Sampling
from mempo.learning.rewards import outcome_reward, score_answer
from mempo.retrieval.base import Retriever
from mempo.runtime.seeds import derive_seed
from mempo.trajectory import Task, Trajectory

_IDLE_WAIT_SECONDS = 1.0


@dataclass(frozen=True)
class Progress:
    """One tick of the progress bar."""

    trajectories_done: int
    tokens: int


@dataclass(frozen=True)
class Attempt:
    """One trajectory to make. The seeds of its requests come from ``seed_parts``, the task's id,
    the sample's number and the request's number within the trajectory, and from nothing else."""

    task: Task
    sample: int
    settings: AgentSettings
    seed_parts: tuple[object, ...] = ()


class RolloutStopped(Exception):
    """The rollout was asked to stop."""


class Rollout:
    """Collects trajectories. Knows nothing of Lightning.

    Args:
        engine: generates token ids.
        conversation: chat-template glue of the policy's tokenizer.
        toolbox: search and page access.
        template: the instruction template, with ``question``.
        reward_metric: which answer metric the outcome reward uses.
        tool_workers: threads that run tools.
        max_tool_error_rate: share of a collection's tool calls that may fail for a reason that is
            not the model's own, before the run stops.
    """

    def __init__(
        self,
        engine: GenerationEngine,
        conversation: Conversation,
        toolbox: ToolBox,
        template: jinja2.Template,
        reward_metric: str = "exact_match",
        tool_workers: int = 8,
        max_tool_error_rate: float = 0.2,
    ) -> None:
        self.engine = engine
        self.conversation = conversation
        self.toolbox = toolbox
        self.template = template
        self.reward_metric = reward_metric
        self.tool_workers = tool_workers
        self.max_tool_error_rate = max_tool_error_rate

    @classmethod
    def from_config(
        cls,
        config: Config,
        engine: GenerationEngine,
        conversation: Conversation,
        retrievers: Mapping[str, Retriever],
    ) -> Rollout:
        """The rollout that a configuration describes, for training and for evaluation."""
        return cls(
            engine,
            conversation,
            ToolBox(retrievers, config.retriever, conversation.inert),
            load_template(config.model.prompt_template),
            config.reward.metric,
            config.retriever.workers,
            config.retriever.max_tool_error_rate,
        )

    def collect(
        self,
        tasks: Sequence[Task],
        samples: int,
        settings: AgentSettings,
        sampling: Sampling,
        seed_parts: tuple[object, ...] = (),
        epoch: int = 0,
        progress: Callable[[Progress], None] | None = None,
        stopped: Callable[[], bool] = lambda: False,
    ) -> list[Trajectory]:
        """``samples`` trajectories of every task, in the order (task, sample), all at once; see
        ``run``. ``seed_parts`` are run seed, epoch and rank."""
        attempts = {
            f"{index}/{sample}": Attempt(task, sample, settings, seed_parts)
            for index, task in enumerate(tasks)
            for sample in range(samples)
        }
        return self.run(attempts, sampling, epoch, progress, stopped=stopped)

    def run(
        self,
        attempts: Mapping[str, Attempt],
        sampling: Sampling,
        epoch: int = 0,
        progress: Callable[[Progress], None] | None = None,
        finished: Callable[[str, Trajectory], None] | None = None,
        at_once: int | None = None,
        stopped: Callable[[], bool] = lambda: False,
    ) -> list[Trajectory]:
        """The attempts' trajectories, in their order.

        At most ``at_once`` run at a time (``None``: all): the next begins when one ends, so that
        many can be asked for and none waits for a long one. ``finished`` is called with key and
        trajectory as it ends. Any exception in the engine, a tool or a reward is raised here, after
        the engine has been emptied, and so is ``RolloutStopped`` once ``stopped`` says so, which is
        asked before every engine step.
        """
        done: dict[str, Trajectory] = {}

        def report(key: str, trajectory: Trajectory) -> None:
            done[key] = trajectory
            if finished is not None:
                finished(key, trajectory)
            if progress is not None:
                progress(Progress(1, trajectory.policy_tokens))

        executor = ThreadPoolExecutor(self.tool_workers, thread_name_prefix="tool")
        try:
            self._run(
                attempts, sampling, epoch, at_once or len(attempts), executor, report, stopped
            )
        except BaseException:
            self.engine.abort_all()
            raise
        finally:
            executor.shutdown(wait=False, cancel_futures=True)
        return [done[key] for key in attempts]

    def _start_agent(self, attempt: Attempt, epoch: int) -> Agent:
        task = attempt.task
        question = self.conversation.inert(task.question)
        prompt = self.conversation.prompt_ids(self.template.render(question=question))
        trajectory = Trajectory(task, epoch, attempt.sample, prompt_length=len(prompt))
        return Agent(
            trajectory,
            prompt,
            self.conversation,
            self.toolbox.session(task),
            attempt.settings,
            self.engine.max_model_len,
        )

    def _run(
        self,
        attempts: Mapping[str, Attempt],
        sampling: Sampling,
        epoch: int,
        at_once: int,
        executor: ThreadPoolExecutor,
        report: Callable[[str, Trajectory], None],
        stopped: Callable[[], bool],
    ) -> None:
        agents: dict[str, Agent] = {}
        waiting = deque(attempts)
        pending_tools: dict[Future[ToolResult], str] = {}
        errors = ErrorRate(self.max_tool_error_rate)

        def proceed(key: str) -> None:
            """Moves one trajectory to its next wait: for the engine, for a tool, or for nothing."""
            agent = agents[key]
            call = agent.pending_call
            if call is not None:
                pending_tools[executor.submit(agent.session.call, *call)] = key
            elif (request := agent.next_request()) is not None:
                self._submit(key, agent, request, sampling, attempts[key].seed_parts)
            else:
                del agents[key]
                self._finish(agent.trajectory)
                report(key, agent.trajectory)

        def begin() -> None:
            while waiting and len(agents) < at_once:
                key = waiting.popleft()
                agents[key] = self._start_agent(attempts[key], epoch)
                proceed(key)

        begin()
        while pending_tools or self.engine.has_unfinished():
            if stopped():
                raise RolloutStopped
            for generation in self.engine.step() if self.engine.has_unfinished() else ():
                agents[generation.key].receive(
                    generation.ids, generation.logprobs, generation.finish_reason
                )
                proceed(generation.key)
            begin()
            if not pending_tools:
                continue
            idle = not self.engine.has_unfinished()
            done, _ = wait(
                pending_tools,
                timeout=_IDLE_WAIT_SECONDS if idle else 0,
                return_when=FIRST_COMPLETED,
            )
            for future in done:
                key = pending_tools.pop(future)
                result = future.result()
                errors.record(result)
                agents[key].observe(result)
                proceed(key)
            begin()
        errors.check()

    def _submit(
        self,
        key: str,
        agent: Agent,
        request: GenerationRequest,
        sampling: Sampling,
        seed_parts: tuple[object, ...],
    ) -> None:
        trajectory = agent.trajectory
        seed = derive_seed(*seed_parts, trajectory.task.id, trajectory.sample, request.number)
        self.engine.submit(key, request.prompt_ids, request.max_tokens, seed, sampling)

    def _finish(self, trajectory: Trajectory) -> None:
        """Judges a finished trajectory (specification section 5)."""
        texts = [round_.text for round_ in trajectory.rounds]
        trajectory.format_valid = not trajectory_broken_rules(texts)
        trajectory.metrics = score_answer(trajectory.answer, trajectory.task)
        trajectory.reward = outcome_reward(
            trajectory.metrics, trajectory.format_valid, self.reward_metric
        )
