"""Explorers for JupyterLab: a dropdown a choice, and the figure that answers it.

Every notebook shows its static figures first; these come on top where `interactive` is true, and need a kernel.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import ipywidgets
from IPython.display import display
from matplotlib.figure import Figure


def explore(draw: Callable[..., Figure], choices: Mapping[str, Sequence], start: Mapping[str, object]) -> None:
    """Show one dropdown a choice, and `draw(**chosen)`, drawn anew at every change.

    Args:
        draw: takes each choice by its name.
        choices: the options of each dropdown.
        start: the option that each shows first.
    """
    dropdowns = {
        name: ipywidgets.Dropdown(options=list(options), value=start[name], description=name.replace("_", " "))
        for name, options in choices.items()
    }
    output = ipywidgets.interactive_output(lambda **chosen: display(draw(**chosen)), dropdowns)
    display(ipywidgets.HBox(list(dropdowns.values())), output)
