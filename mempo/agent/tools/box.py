"""The tools of a run, and those of one trajectory (specification section 3)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial

from mempo.agent.inert import make_inert
from mempo.agent.tools.making import MadeTool, make_tools
from mempo.agent.tools.own import Opened, OwnCall
from mempo.agent.tools.passages import Access, PassageSession, Search
from mempo.agent.tools.result import ToolResult
from mempo.agent.tools.timed import TimeLimit
from mempo.config import DEFAULT_TOOLS, RetrieverConfig
from mempo.retrieval.base import Retriever
from mempo.trajectory import Task


class ToolBox:
    """The tools of a run. Thread safe where they are.

    Args:
        retrievers: what search and access go through, by ``Task.corpus``.
        config: their limits, and those of tools that have none of their own.
        inert: takes tags and control marks out of what tools give (``Conversation.inert``).
        tools: ``None`` means search and access.
    """

    def __init__(
        self,
        retrievers: Mapping[str, Retriever],
        config: RetrieverConfig,
        inert: Callable[[str], str] = make_inert,
        tools: Sequence[MadeTool] | None = None,
    ) -> None:
        self.tools = tuple(make_tools(DEFAULT_TOOLS) if tools is None else tools)
        self._retrievers = dict(retrievers)
        self._config = config
        self._inert = inert

    @property
    def counted_apart(self) -> list[MadeTool]:
        """The tools with an error rate of their own; the others share the retriever's."""
        return [
            one
            for one in self.tools
            if one.entry.max_error_rate is not None or not isinstance(one.tool, Search | Access)
        ]

    def session(self, task: Task) -> ToolSession:
        """The tools of one trajectory. Raises ``ValueError`` for an unknown ``Task.corpus``, where
        a tool goes through it."""
        passages = None
        if any(isinstance(one.tool, Search | Access) for one in self.tools):
            passages = PassageSession(self._retriever(task), self._config, self._inert)
        calls = {one.entry.tag: self._call(one, passages, task) for one in self.tools}
        return ToolSession(calls, passages)

    def _retriever(self, task: Task) -> Retriever:
        if task.corpus not in self._retrievers:
            known = ", ".join(sorted(self._retrievers)) or "none"
            raise ValueError(
                f'task {task.id} asks for the corpus "{task.corpus}", but there is no retriever '
                f"of that name (there are: {known})"
            )
        return self._retrievers[task.corpus]

    def _call(
        self, made: MadeTool, passages: PassageSession | None, task: Task
    ) -> Callable[[str], ToolResult]:
        entry, tool, limit = made.entry, made.tool, self._limit(made)
        if isinstance(tool, Search | Access):
            assert passages is not None
            return partial(tool, passages, limit)
        return OwnCall(
            entry.tag,
            entry.argument,
            Opened(tool, task),
            limit,
            self._inert,
            entry.max_chars or self._config.page_chars,
            entry.short_chars,
        )

    def _limit(self, made: MadeTool) -> TimeLimit:
        own = made.entry.timeout_s
        if own is None:
            return TimeLimit(self._config.timeout_s, "retriever.timeout_s")
        return TimeLimit(own, f"{made.setting}.timeout_s")


class ToolSession:
    """The tools of one trajectory: ``calls`` by tag, and the ``passages`` that some go through.

    Calls of one session come one after another; several sessions may run at once.
    """

    def __init__(
        self,
        calls: Mapping[str, Callable[[str], ToolResult]],
        passages: PassageSession | None = None,
    ) -> None:
        self._calls = dict(calls)
        self._passages = passages

    def call(self, action: str, argument: str) -> ToolResult:
        """Runs the tool with the tag ``action``. Raises ``ValueError`` where there is none."""
        if action not in self._calls:
            known = " and ".join(self._calls)
            raise ValueError(f'there is no tool "{action}": the tools are {known}')
        return self._calls[action](argument)

    def mark_read(self, result: ToolResult, characters: int | None = None) -> None:
        """Moves the reading position of the result's page behind the first ``characters`` of its
        body (``None``: behind all of it), which are what the model was shown."""
        if self._passages is not None:
            self._passages.mark_read(result, characters)
