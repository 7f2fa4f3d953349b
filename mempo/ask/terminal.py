"""Questions and rounds in a terminal: as they come, and two models side by side."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import zip_longest

from rich.console import Console
from rich.rule import Rule
from rich.table import Table
from rich.text import Text

from mempo.ask.agent import LoadedAgent
from mempo.ask.shown import Row, cost_row, ending_row, round_rows, visible
from mempo.config import Config
from mempo.trajectory import Round, Trajectory


class ShownQuestion:
    """Prints one question and its rounds as they come. ``memory``: whether they write any."""

    def __init__(self, console: Console, memory: bool = True) -> None:
        self._console = console
        self._memory = memory
        self._before: str | None = None

    def question(self, question: str) -> None:
        self._console.print(Text(visible(question), "bold"))

    def round(self, one: Round) -> None:
        self._console.print(Rule(f"round {one.number}", align="left", style="dim"))
        self._rows(round_rows(one, self._before, coloured(self._console), self._memory))
        self._before = one.mem or self._before

    def end(self, trajectory: Trajectory, config: Config) -> None:
        self._console.print(Rule(style="dim"))
        self._rows((ending_row(trajectory, config), cost_row(trajectory)))

    def _rows(self, rows: Iterable[Row]) -> None:
        grid = Table.grid(padding=(0, 2))
        grid.add_column(style="dim", no_wrap=True, min_width=9)
        grid.add_column(overflow="fold")
        for name, text in rows:
            grid.add_row(name, text)
        self._console.print(grid)


def coloured(console: Console) -> bool:
    """Whether the console shows colours, so that differences need no marks."""
    return console.color_system is not None and not console.no_color


def answer_in_terminal(agent: LoadedAgent, question: str, console: Console) -> Trajectory:
    """Asks and prints."""
    shown = ShownQuestion(console, agent.has_memory())
    trajectory = agent.ask(question, on_round=shown.round)
    shown.end(trajectory, agent.config)
    return trajectory


def comparison(
    labels: Sequence[str],
    trajectories: Sequence[Trajectory],
    configs: Sequence[Config],
    colours: bool,
    memory: bool = True,
) -> Table:
    """One column for each model, one row for each round, then the answers and what they took."""
    table = Table(title=Text(visible(trajectories[0].task.question)), show_lines=True)
    table.add_column("", style="dim", no_wrap=True)
    for label in labels:
        table.add_column(Text(visible(label)), overflow="fold", ratio=1)
    columns = [_round_cells(one.rounds, colours, memory) for one in trajectories]
    for number, cells in enumerate(zip_longest(*columns, fillvalue=Text()), start=1):
        table.add_row(f"round {number}", *cells)
    ends = [ending_row(one, its) for one, its in zip(trajectories, configs, strict=True)]
    answered = (text if name == "answer" else _named(name, text) for name, text in ends)
    table.add_row("answer", *answered)
    table.add_row("used", *(cost_row(one)[1] for one in trajectories))
    return table


def _round_cells(rounds: Sequence[Round], colours: bool, memory: bool) -> list[Text]:
    before: str | None = None
    cells = []
    for one in rounds:
        rows = round_rows(one, before, colours, memory)
        cells.append(Text("\n").join(_named(name, text) for name, text in rows))
        before = one.mem or before
    return cells


def _named(name: str, text: Text) -> Text:
    return Text.assemble((f"{name}: ", "dim"), text)
