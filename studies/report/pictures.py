"""Pictures of a study: the report's figures, drawn by Matplotlib."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from . import figures, what_mattered
from .content import ReportView
from .data import report_view
from .drawing import Chart, Parallel
from .results import samples_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from ..storage.store import Store

Drawing = Chart | Parallel
# By kind: the function that draws it, and the data that it shows, which a study may lack.
KINDS: Mapping[str, tuple[Callable[[ReportView], Drawing | Sequence[Drawing] | None], str]] = {
    "curves": (figures.curves, "the epochs of trials"),
    "promotions": (figures.promotions, "which trials reached which of several rungs"),
    "genealogy": (figures.genealogy, "who copied whom in a population (--scheduler pbt)"),
    "profiles": (
        lambda report: figures.profiles(samples_of(report), report.objective),
        "results that differ, of a confirmation's seeds (rekindle confirm) or of --seeds 3 or more",
    ),
    "importance": (what_mattered.importances, "what explains the results of 8 or more configurations"),
    "marginals": (what_mattered.marginals, "what explains the results, of enough configurations"),
    "pairs": (what_mattered.pairs, "what two hyperparameters explain together, of enough configurations"),
    "ranks": (what_mattered.ranks, "how the results of 4 or more trials at two rungs agree"),
    "parallel": (figures.parallel, "the results of two or more trials by hyperparameters that differ"),
    "slice": (figures.slices, "the results of two or more trials by hyperparameters that differ"),
    "pareto": (figures.front, "trials with several objectives (--objective)"),
    "workers": (figures.workers, "which process trained when"),
}
ENDINGS = (".png", ".svg", ".pdf")


def plot(store: Store, study: str, kind: str) -> Figure:
    """Return a picture of a study, as a Matplotlib figure.

    Args:
        store: store that holds the study.
        study: name of the study.
        kind: key of `KINDS`.

    Raises:
        ValueError: the kind is unknown, the study lacks the data for it, or Matplotlib is not installed.
        UnknownStudy: the study does not exist.
    """
    if kind not in KINDS:
        raise ValueError(f"a picture is one of {', '.join(KINDS)}, but got {kind!r}")
    try:
        from .matplotlib_figures import figure_of
    except ImportError as error:
        raise ValueError(f"pictures need the library matplotlib: pip install 'rekindle-rl[plot]' ({error})") from None
    find, shows = KINDS[kind]
    drawing = find(report_view(store, study))
    if not drawing:
        raise ValueError(f"a picture of {kind} shows {shows}, but study {study} has nothing of that")
    return figure_of(drawing if isinstance(drawing, Sequence) else [drawing])


def save(figure: Figure, path: Path) -> None:
    """Write a picture to a file; equal pictures give equal bytes.

    Raises:
        ValueError: the file cannot be written.
    """
    import matplotlib

    check_ending(path)
    dates = {".png": {"Software": None}, ".svg": {"Date": None}, ".pdf": {"CreationDate": None}}
    try:
        with matplotlib.rc_context({"svg.hashsalt": "rekindle"}):
            figure.savefig(path, dpi=150, metadata=dates[path.suffix])
    except OSError as error:
        why = error.strerror or str(error)
        raise ValueError(f"a picture is written to a file, but {path} cannot be: {why}; give another -o") from None


def check_ending(path: Path) -> None:
    """Raise ValueError unless the file's extension is a format of pictures."""
    if path.suffix not in ENDINGS:
        raise ValueError(f"a picture's file ends in {', '.join(ENDINGS)}, but got {path}; give another -o")


class Pictures:
    """Methods of a study that return its pictures, as Matplotlib figures."""

    name: str
    store: Store

    def plot(self, kind: str) -> Figure:
        """Return a picture of the study; for the kinds, see `rekindle plot`."""
        return plot(self.store, self.name, kind)

    def plot_curves(self) -> Figure:
        """Return the learning curves of all trials, and the best one's interval."""
        return self.plot("curves")

    def plot_promotions(self) -> Figure:
        """Return a picture of which trials were promoted to which rung."""
        return self.plot("promotions")

    def plot_genealogy(self) -> Figure:
        """Return the genealogy of a population: which member continued from which."""
        return self.plot("genealogy")

    def plot_profiles(self) -> Figure:
        """Return the performance profiles: the fraction of trainings above each threshold."""
        return self.plot("profiles")

    def plot_importance(self) -> Figure:
        """Return the importances of the searched hyperparameters."""
        return self.plot("importance")

    def plot_marginals(self) -> Figure:
        """Return the effect of each hyperparameter on the objective."""
        return self.plot("marginals")

    def plot_pairs(self) -> Figure:
        """Return the importances of pairs of hyperparameters."""
        return self.plot("pairs")

    def plot_ranks(self) -> Figure:
        """Return the rank correlations between rungs."""
        return self.plot("ranks")

    def plot_parallel(self) -> Figure:
        """Return parallel coordinates, with one line for each trial."""
        return self.plot("parallel")

    def plot_slice(self) -> Figure:
        """Return the results against each searched hyperparameter."""
        return self.plot("slice")

    def plot_pareto(self) -> Figure:
        """Return the Pareto front of the first two objectives."""
        return self.plot("pareto")

    def plot_workers(self) -> Figure:
        """Return the work of each process over time, with takeovers and failures."""
        return self.plot("workers")
