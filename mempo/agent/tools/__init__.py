"""The agent's tools: search, access, and one's own (specification section 3)."""

from __future__ import annotations

from mempo.agent.tools.box import ToolBox, ToolSession
from mempo.agent.tools.making import MadeTool, check_tools, make_tools, protocol_of
from mempo.agent.tools.own import BadArgument
from mempo.agent.tools.passages import (
    ACCESS_FAILED,
    ACCESS_TIMED_OUT,
    ACCESS_UNREADABLE,
    EMPTY_PAGE_NAME,
    EMPTY_QUERY,
    NOTHING_FOUND,
    PAGE_END,
    SEARCH_FAILED,
    SEARCH_TIMED_OUT,
    SEARCH_UNREADABLE,
    UNKNOWN_PAGE,
    Access,
    Search,
)
from mempo.agent.tools.result import PagePart, ToolResult

__all__ = [
    "ACCESS_FAILED",
    "ACCESS_TIMED_OUT",
    "ACCESS_UNREADABLE",
    "EMPTY_PAGE_NAME",
    "EMPTY_QUERY",
    "NOTHING_FOUND",
    "PAGE_END",
    "SEARCH_FAILED",
    "SEARCH_TIMED_OUT",
    "SEARCH_UNREADABLE",
    "UNKNOWN_PAGE",
    "Access",
    "BadArgument",
    "MadeTool",
    "PagePart",
    "Search",
    "ToolBox",
    "ToolResult",
    "ToolSession",
    "check_tools",
    "make_tools",
    "protocol_of",
]
