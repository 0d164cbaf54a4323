"""How studies draw: rows as bars, and a figure as a file. matplotlib comes in when one is drawn."""

import io
import os
import pathlib
from collections.abc import Callable, Mapping, Sequence

from keras_bert_zoo.data.text_report import check_plot_path
from keras_bert_zoo.whole_files import write_whole


def plot_rows(
    rows: Sequence[Mapping], name: str | Callable, measures: Sequence[str], path: str | os.PathLike
) -> None:
    """Draw rows as bars, a panel a measure, with deviations as whiskers where rows have them.

    Args:
        rows: a study's.
        name: the key of what a row is called, or a function of the row.
        measures: keys of numbers; a None has no bar.
        path: ends in .png, .svg or .pdf. The file appears whole or not at all.

    Raises:
        ValueError: `path` ends in something else.
    """
    name_of = name if callable(name) else lambda row: str(row[name])
    figure = new_figure(path, (3.2 * len(measures) + 1.5, 0.45 * len(rows) + 1.2))
    panels = figure.subplots(1, len(measures), sharey=True, squeeze=False)[0]
    places = range(len(rows))
    for panel, measure in zip(panels, measures, strict=True):
        values = [row[measure] for row in rows]
        deviations = [row.get(f"{measure}_deviation") or 0 for row in rows]
        whiskers = deviations if any(deviations) else None
        bars = panel.barh(places, [v or 0 for v in values], xerr=whiskers, capsize=3)
        labels = [_text(value) for value in values]
        panel.bar_label(bars, labels, padding=4)
        panel.margins(x=0.3)
        panel.set_title(measure.replace("_", " "), loc="left")
        for side in ("top", "right"):
            panel.spines[side].set_visible(False)
    panels[0].set_yticks(places, [name_of(row) for row in rows])
    panels[0].invert_yaxis()
    save_figure(figure, path)


def new_figure(path: str | os.PathLike, size: tuple[float, float]):
    """Return a figure of a size in inches, once it is sure that `path` can be drawn to."""
    from matplotlib.figure import Figure

    check_plot_path(path)
    return Figure(figsize=size, layout="constrained")


def save_figure(figure, path: str | os.PathLike) -> None:
    """Write a figure, whole or not at all; no display is needed."""
    picture = io.BytesIO()
    figure.savefig(picture, format=pathlib.Path(path).suffix[1:], dpi=120)
    write_whole(path, picture.getvalue())


def _text(value):
    if value is None:
        return ""
    return f"{value:,}" if isinstance(value, int) else f"{value:,.4g}"
