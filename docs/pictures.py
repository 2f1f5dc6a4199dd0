"""How pictures of the gallery are drawn: in one style, whichever program was before."""

from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt

STYLE = Path(__file__).with_name("plain.mplstyle")


def reset(gallery_conf: dict[str, Any], script: str) -> None:
    """Before each program, called by sphinx-gallery."""
    plt.close("all")
    plt.rcdefaults()
    plt.style.use(STYLE)
