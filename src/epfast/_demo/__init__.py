"""The demonstration: a classifier on real data, then the schemes of Roche (2016) on the same."""

from __future__ import annotations

import importlib.util
import time
from pathlib import Path

from epfast._demo import classifier, schemes


def run(sweeps: int, pictures: Path | None) -> int:
    """Print what the fits find. Returns the exit status.

    sweeps: of the schemes. pictures: the folder for two files, None for no pictures.
    """
    begin = time.perf_counter()
    try:
        from sklearn.datasets import load_breast_cancer
    except ImportError:
        print("The demo reads a data set of scikit-learn: pip install 'epfast[sklearn,plot]'")
        return 1
    if pictures is not None and importlib.util.find_spec("matplotlib") is None:
        print("No pictures: matplotlib is not installed (pip install 'epfast[plot]').\n")
        pictures = None
    data = load_breast_cancer()
    rule = "-" * 79
    classifier.run(
        data.data, data.target, data.feature_names, pictures and pictures / "epfast_demo.png"
    )
    print(f"\n{rule}\n")
    schemes.run(data.data, data.target, sweeps, pictures and pictures / "epfast_schemes.png")
    print(f"\n{time.perf_counter() - begin:.1f} s in all.")
    return 0
