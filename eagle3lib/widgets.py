"""Explorers for JupyterLab: choices, and the figure or the text that answers them.

Every notebook shows its static figures first; these come on top where `interactive` is true. An explorer says when
it is computing, shows a mistake as its sentence, and leaves its first answer as a picture for a viewer without widgets.
"""

from __future__ import annotations

import base64
import io
import threading
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from html import escape
from pathlib import Path

import ipywidgets
import pandas as pd
from IPython.display import HTML, display
from matplotlib.figure import Figure

from eagle3lib.bench import Answer, Bench, state
from eagle3lib.boundaries import Wiring, boundary_name
from eagle3lib.case import Case
from eagle3lib.case_text import case_text, with_wiring, write_case
from eagle3lib.errors import InputError
from eagle3lib.markup import table_html
from eagle3lib.replay_view import round_html
from eagle3lib.rollout import Rollout
from eagle3lib.rounds import walk

WIDE = {"description_width": "initial"}


class Surface:
    """Where an explorer's answer stands, and above it the line that says what is under way.

    Attributes:
        box: the widget to show.
    """

    def __init__(self) -> None:
        self._status = ipywidgets.HTML(layout={"min_height": "1.6em"})
        self._answer = ipywidgets.HTML()
        self.box = ipywidgets.VBox([self._status, self._answer])

    @property
    def html(self) -> str:
        """The answer that stands there."""
        return self._answer.value

    def say(self, text: str) -> None:
        """Show what is under way; nothing with ""."""
        self._status.value = f'<span role="status">{escape(text)}</span>'

    def show(self, answer: Figure | HTML) -> None:
        """Put an answer in place of the one before."""
        self._answer.value = _figure_html(answer) if isinstance(answer, Figure) else answer.data

    def compute(self, draw: Callable[[], Figure | HTML]) -> None:
        """Show what `draw` returns, or the sentence of its InputError; until then, that it is being computed."""
        self.say("computing …")
        try:
            self.show(draw())
        except InputError as error:
            self.show(HTML(f"<p>{escape(str(error))}</p>"))
        except Exception as error:
            self.show(HTML(f"<p>This could not be computed ({escape(repr(error))}).</p>"))
            raise  # JupyterLab's log has the traceback
        finally:
            self.say("")


def explore(draw: Callable[..., Figure | HTML], choices: Mapping[str, Sequence], start: Mapping[str, object]) -> None:
    """Show a slider for each choice among numbers and a dropdown for each other, and `draw(**chosen)` below.

    Args:
        draw: takes each choice by its name; called anew at every change.
        choices: the options of each, in order.
        start: the option that each shows first.
    """
    controls = {name: _control(name, list(options), start[name]) for name, options in choices.items()}
    surface = Surface()

    def change(_: object = None) -> None:
        surface.compute(lambda: draw(**{name: control.value for name, control in controls.items()}))

    for control in controls.values():
        control.observe(change, names="value")
    change()
    display(_Explorer([*controls.values()], surface))


def replay_explorer(
    replay: Callable[[str, int], Rollout],
    wirings: Sequence[str],
    responses: Sequence[str],
    steps: int,
    text: Callable[[int], str],
    hide_text: bool = False,
) -> None:
    """Show a response round by round: what was drafted, what was accepted, under each wiring.

    Args:
        replay: the rollout of a wiring's name and a response's place; asked once for each.
        steps: K.
        text: a token's text by id, as `Target.text`.
        hide_text: show blocks in place of texts, and numbers in place of names.
    """
    replay = cache(replay)
    names = [(f"response {i + 1}" if hide_text else name, i) for i, name in enumerate(responses)]
    wiring = ipywidgets.Dropdown(options=list(wirings), description="wiring", style=WIDE)
    response = ipywidgets.Dropdown(options=names, description="response", style=WIDE)
    number = ipywidgets.IntSlider(value=1, min=1, description="round", style=WIDE, continuous_update=False)
    play = ipywidgets.Play(value=1, min=1, interval=1500)
    ipywidgets.jslink((play, "value"), (number, "value"))
    surface = Surface()

    def shown() -> HTML:
        return HTML(round_html(replay(wiring.value, response.value), steps, number.value - 1, text, hide_text))

    def first() -> HTML:
        """Another response or wiring has rounds of its own."""
        rounds = len(walk(replay(wiring.value, response.value), steps))
        number.unobserve_all("value")
        number.value = play.value = 1
        number.max = play.max = max(rounds, 1)
        number.observe(lambda _: surface.compute(shown), names="value")
        return shown()

    for dropdown in (wiring, response):
        dropdown.observe(lambda _: surface.compute(first), names="value")
    surface.compute(first)
    display(_Explorer([wiring, response, play, number], surface))


def wiring_bench(bench: Bench, case: Case, file: Path) -> None:
    """Show a dropdown a slot and a flag; the answer on the bench's few tokens at once, on all in the background.

    A change stops the refining of the state before. The state stands below as a case, which a button writes to `file`.
    """
    slots = [
        ipywidgets.Dropdown(options=[(boundary_name(b), b) for b in options], value=b, description=f"slot {i + 1}")
        for i, (options, b) in enumerate(zip(bench.slots, bench.best.slots, strict=True))
    ]
    flags = {
        name: ipywidgets.Dropdown(options=values, value=values[0], description=name.replace("_", " "), style=WIDE)
        for name, values in bench.flags.items()
        if len(values) > 1
    }
    surface, text = Surface(), ipywidgets.HTML()
    write = ipywidgets.Button(description="write the case", tooltip=str(file))
    running = threading.Event()  # set to stop the refining under way

    def chosen() -> Wiring:
        return state(bench.draft, [s.value for s in slots], {name: flag.value for name, flag in flags.items()})

    def quick(wiring: Wiring) -> dict[str, Answer]:
        return {"chosen, first tokens": bench.quick(wiring), "best, first tokens": bench.quick(bench.best)}

    def refine(wiring: Wiring, stop: threading.Event) -> None:
        answers = quick(wiring)
        best = iter(bench.refine(bench.best, stop.is_set))
        for answer in bench.refine(wiring, stop.is_set):
            if (other := next(best, None)) is None or stop.is_set():
                return
            surface.say(f"on more responses: {answer.tokens} tokens so far …")
            answers |= {"chosen, responses": answer, "best, responses": other}
            surface.show(_answers(answers))
        surface.say("")

    def change(_: object = None) -> None:
        nonlocal running
        running.set()
        running = threading.Event()
        wiring = chosen()
        surface.compute(lambda: _answers(quick(wiring)))
        text.value = f"<pre>{escape(case_text(with_wiring(case, wiring), file.parent.resolve()))}</pre>"
        threading.Thread(target=refine, args=(wiring, running), daemon=True).start()

    def written(_: object) -> None:
        write.description = f"written to {write_case(case, chosen(), file).name}"

    for dropdown in (*slots, *flags.values()):
        dropdown.observe(change, names="value")
    write.on_click(written)
    change()
    display(_Explorer([*slots, *flags.values()], surface, [write, text]))


def _control(name: str, options: Sequence, value: object) -> ipywidgets.Widget:
    """A slider among numbers, a dropdown among anything else; options may be pairs of a label and a value."""
    numbers = all(isinstance(option, int | float) and not isinstance(option, bool) for option in options)
    kind = ipywidgets.SelectionSlider if numbers and len(options) > 1 else ipywidgets.Dropdown
    more = {"continuous_update": False} if kind is ipywidgets.SelectionSlider else {}
    return kind(options=list(options), value=value, description=name.replace("_", " "), style=WIDE, **more)


class _Explorer(ipywidgets.VBox):
    """Controls in rows, the answer, and what belongs below it; a viewer without widgets takes the answer alone."""

    def __init__(
        self, controls: Sequence[ipywidgets.Widget], surface: Surface, below: Sequence[ipywidgets.Widget] = ()
    ) -> None:
        rows = ipywidgets.HBox(list(controls), layout={"flex_flow": "row wrap"})
        super().__init__([rows, surface.box, *below])
        self._surface = surface

    def _repr_mimebundle_(self, **kwargs: object) -> dict:
        still = f"{self._surface.html}<p><small>In JupyterLab, with a kernel, choices stand here.</small></p>"
        return super()._repr_mimebundle_(**kwargs) | {"text/html": still}


def _figure_html(figure: Figure) -> str:
    """A figure as an image whose text alternative is its titles."""
    png = io.BytesIO()
    figure.savefig(png, format="png", dpi=110)
    titles = [axes.get_title(loc) for axes in figure.axes for loc in ("left", "center")]
    alt = "; ".join(filter(None, [figure.get_suptitle(), *titles]))
    return f'<img alt="{escape(alt)}" src="data:image/png;base64,{base64.b64encode(png.getvalue()).decode()}">'


def _answers(answers: Mapping[str, Answer]) -> HTML:
    """A table of answers, with intervals."""
    rows = {
        name: {
            "wiring": str(a.wiring),
            "tokens": a.tokens,
            "accuracy": f"{a.accuracy:.3f}",
            "cross-entropy": f"{a.cross_entropy:.2f}",
            "above the best": f"{a.excess:.2f}",
            "acceptance length": f"{a.length:.2f}",
        }
        for name, a in answers.items()
    }
    table = table_html(pd.DataFrame.from_dict(rows, orient="index"), "Chain, greedy, bonus included; 95 % intervals")
    return HTML(f"{_TABLE_STYLE}{table}")


#: A widget has none of a notebook's own table styles.
_TABLE_STYLE = """<style>
.widget-html-content table{border-collapse:collapse;line-height:1.4}
.widget-html-content :is(th,td){text-align:left;vertical-align:top;padding:.15em 1em .15em 0}
</style>"""
