"""Explorers for JupyterLab: a dropdown a choice, and the figure that answers it.

Every notebook shows its static figures first; these come on top where `interactive` is true, and need a kernel.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from html import escape
from pathlib import Path

import ipywidgets
import pandas as pd
from IPython.display import display
from matplotlib.figure import Figure

from eagle3lib.bench import Answer, Bench, state
from eagle3lib.boundaries import Wiring, boundary_name
from eagle3lib.case import Case
from eagle3lib.case_text import case_text, with_wiring, write_case


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


def wiring_bench(bench: Bench, case: Case, file: Path) -> None:
    """Show a dropdown a slot and a flag; the answer on the bench's few tokens at once, on all in the background.

    A change stops the refining of the state before. The state stands below as a case, which a button writes to `file`.
    """
    slots = [
        ipywidgets.Dropdown(options=[(boundary_name(b), b) for b in options], value=b, description=f"slot {i + 1}")
        for i, (options, b) in enumerate(zip(bench.slots, bench.best.slots, strict=True))
    ]
    flags = {
        name: ipywidgets.Dropdown(options=list(values), value=values[0], description=name.replace("_", " "))
        for name, values in bench.flags.items()
        if len(values) > 1
    }
    answers, text = ipywidgets.HTML(), ipywidgets.HTML()
    write = ipywidgets.Button(description="write the case", tooltip=str(file))
    running = threading.Event()  # set to stop the refining under way

    def chosen() -> Wiring:
        return state(bench.draft, [s.value for s in slots], {name: flag.value for name, flag in flags.items()})

    def refine(wiring: Wiring, quick: str, stop: threading.Event) -> None:
        best = iter(bench.refine(bench.best, stop.is_set))
        for answer in bench.refine(wiring, stop.is_set):
            if (other := next(best, None)) is None or stop.is_set():
                return
            answers.value = quick + _answers_html({"chosen": answer, "best": other})

    def change(_: object) -> None:
        nonlocal running
        running.set()
        running = threading.Event()
        wiring = chosen()
        quick = _answers_html({"chosen": bench.quick(wiring), "best": bench.quick(bench.best)})
        answers.value = quick
        text.value = f"<pre>{escape(case_text(with_wiring(case, wiring), file.parent.resolve()))}</pre>"
        threading.Thread(target=refine, args=(wiring, quick, running), daemon=True).start()

    def written(_: object) -> None:
        write.description = f"written to {write_case(case, chosen(), file).name}"

    for dropdown in (*slots, *flags.values()):
        dropdown.observe(change, names="value")
    write.on_click(written)
    change(None)
    display(ipywidgets.HBox(slots), ipywidgets.HBox(list(flags.values())), answers, write, text)


def _answers_html(answers: Mapping[str, Answer]) -> str:
    """A table of answers, with intervals."""
    rows = {
        name: {
            "wiring": str(a.wiring),
            "tokens": a.tokens,
            "accuracy": str(a.accuracy),
            "cross-entropy": str(a.cross_entropy),
            "above the best": str(a.excess),
            "acceptance length": str(a.length),
        }
        for name, a in answers.items()
    }
    return pd.DataFrame.from_dict(rows, orient="index").to_html()
