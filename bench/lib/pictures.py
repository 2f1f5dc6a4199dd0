"""Pictures of results: in the style of the documentation, as small files."""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

STYLE = Path(__file__).parents[2] / "docs" / "plain.mplstyle"
#: of a file: enough for lines and points, with their smooth edges
COLOURS = 64


@contextmanager
def picture(
    path: Path, columns: int, rows: int = 1, size: tuple[float, float] = (3.3, 2.9), **given: Any
) -> Iterator[Any]:
    """Panels of a size in inches, row by row, to be drawn on; then the file is written.

    ``given`` goes to ``matplotlib.pyplot.subplots``.
    """
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt
    from PIL import Image

    with plt.style.context(STYLE):
        given["figsize"] = size[0] * columns, size[1] * rows
        figure, axes = plt.subplots(rows, columns, squeeze=False, **given)
        yield axes.ravel()
        content = io.BytesIO()
        figure.savefig(content, format="png")
        plt.close(figure)
    whole = Image.open(content).convert("RGB")
    whole.quantize(COLOURS, Image.Quantize.MAXCOVERAGE).save(path, optimize=True)
    print(f"wrote {path}")


def legend_below(axis: Any, columns: int) -> None:
    """One legend for all panels, below them, of what one panel shows."""
    handles, labels = axis.get_legend_handles_labels()
    axis.figure.legend(handles, labels, loc="outside lower center", ncols=columns)
