"""Progress in a notebook: the terminal's display, in a widget where there are widgets, else in the cell's output."""

from __future__ import annotations

import io
import sys
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from rich.console import Console, Group, RenderableType

from autotune.measuring import Objective
from autotune.terminal.progress import Live
from autotune.wording import labelled

if TYPE_CHECKING:
    from types import TracebackType

COLUMNS = 110
"""As wide as a notebook's output usually is."""
REFRESH_SECONDS = 1.0
"""More would only take time from what is being measured."""
_FORMAT = '<pre style="margin: 0; line-height: 1.3; overflow-x: auto; font-family: monospace">{code}</pre>'


def in_notebook() -> bool:
    """Whether this process is a notebook's kernel."""
    return hasattr(_shell(), "kernel")


def at_prompt() -> bool:
    """Whether a person enters one piece of code after the other: in a notebook, in IPython, in Python's own prompt."""
    return _shell() is not None or hasattr(sys, "ps1")


def _shell() -> Any:
    """IPython's shell; None outside of it."""
    get_ipython: Callable[[], Any] = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)
    return get_ipython()


class NotebookLive(Live):
    """The terminal's live display, drawn as HTML; notes stay below it.

    Args:
        objective: What is shown of a burst.
        seconds: What is left of the budget.
        pane: Where it is drawn.
    """

    def __init__(self, objective: Objective, seconds: float, pane: Pane) -> None:
        super().__init__(Console(file=io.StringIO()), objective=objective, seconds=seconds, screen=_Ticker(self._draw))
        self._notes: list[RenderableType] = []
        self._pane = pane

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Removes the display, for the result says it better; after an error its last state stays."""
        super().__exit__(kind, error, trace)
        if kind is None:
            self._pane.close()

    def note(self, text: str) -> None:
        """Keeps the note below the display."""
        self._notes.append(labelled("note", text))

    def _draw(self) -> None:
        self._pane.show(as_html(Group(self.render(), *self._notes)), self.spent)


class Pane:
    """A place in the cell's output, with a bar of the budget: what is shown there can be replaced."""

    def __init__(self) -> None:
        from IPython import display

        untyped: Any = display
        self._html = untyped.HTML
        self._handle = untyped.display(self._html(""), display_id=True)

    def show(self, html: str, spent: float) -> None:
        """Replaces what is shown; `spent` is the share of the budget."""
        bar = f'<progress value="{spent:.3f}" style="width: 100%"></progress>'
        self._handle.update(self._html(bar + html))

    def close(self) -> None:
        """Removes it."""
        self._handle.update(self._html(""))


class WidgetPane(Pane):
    """The same in widgets."""

    def __init__(self) -> None:
        import ipywidgets
        from IPython import display

        untyped: Any = display
        layout = ipywidgets.Layout(width="100%")
        self._bar = ipywidgets.FloatProgress(min=0.0, max=1.0, layout=layout)
        self._text = ipywidgets.HTML()
        self._box = ipywidgets.VBox([self._bar, self._text])
        untyped.display(self._box)

    def show(self, html: str, spent: float) -> None:
        """Replaces what is shown."""
        self._bar.value, self._text.value = spent, html

    def close(self) -> None:
        """Removes the widgets."""
        for widget in (self._box, self._bar, self._text):
            widget.close()


def make_notebook_progress(objective: Objective, seconds: float) -> NotebookLive:
    """Progress with widgets where ipywidgets is installed."""
    try:
        pane: Pane = WidgetPane()
    except ImportError:
        pane = Pane()
    return NotebookLive(objective, seconds, pane)


def as_html(renderable: RenderableType) -> str:
    """What a terminal would show, with its colours."""
    console = Console(
        file=io.StringIO(), record=True, width=COLUMNS, force_jupyter=False, force_terminal=True, highlight=False
    )
    console.print(renderable)
    return console.export_html(inline_styles=True, code_format=_FORMAT)


class _Ticker:
    """Draws at once when asked, and every second from a thread of its own.

    Args:
        draw: Draws.
    """

    transient = False

    def __init__(self, draw: Callable[[], None]) -> None:
        self._draw = draw
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._tick, name="autotune-progress", daemon=True)

    def start(self, refresh: bool = False) -> None:
        """Begins."""
        if refresh:
            self.refresh()
        self._thread.start()

    def stop(self) -> None:
        """Ends, with what stands there now."""
        self._ended.set()
        self._thread.join()
        self.refresh()

    def refresh(self) -> None:
        """Draws now."""
        with self._lock:
            self._draw()

    def _tick(self) -> None:
        while not self._ended.wait(REFRESH_SECONDS):
            self.refresh()
