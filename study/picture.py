"""The picture of the study: exact match against the number of questions, a band over seeds."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from statistics import fmean

from study.cells import CONTEXTS
from study.report import TITLES, Record, group, objectives, seed_means


def draw(path: Path, records: Sequence[Record], variants: Sequence[str] = ()) -> None:
    """A panel for each context; a line through the means of the seeds, a band from the lowest to
    the highest. ``variants``: which, in this order; none: all that there are."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 4.2), layout="constrained")
    FigureCanvasAgg(figure)
    by_variant = group(records)
    names = [name for name in variants or by_variant if name in by_variant]
    for axis, context in zip(figure.subplots(1, len(CONTEXTS), sharey=True), CONTEXTS, strict=True):
        counts = objectives(records, context)
        for index, name in enumerate(names):
            values = [seed_means(by_variant[name], context, n, "exact_match") for n in counts]
            known = [(int(n), one) for n, one in zip(counts, values, strict=True) if one]
            places = [n for n, _ in known]
            axis.plot(places, [fmean(one) for _, one in known], "o-", color=f"C{index}", label=name)
            lowest, highest = ([end(one) for _, one in known] for end in (min, max))
            axis.fill_between(places, lowest, highest, color=f"C{index}", alpha=0.2, linewidth=0)
        axis.set_title(TITLES[context])
        axis.set_xlabel("questions per task")
        axis.set_xticks([int(n) for n in counts])
        axis.set_ylim(-3.0, 103.0)
        axis.grid(alpha=0.3)
    figure.axes[0].set_ylabel("exact match, %")
    figure.legend(*figure.axes[0].get_legend_handles_labels(), loc="outside right upper")
    # Without a date the same study gives the same file.
    figure.savefig(path, dpi=150, metadata={"Software": None})
