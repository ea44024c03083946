"""One file per system. A new engine or trainer is a new module here that defines one object; nothing else."""

from __future__ import annotations

import difflib
import importlib
import pkgutil
from typing import Any, TypeVar

from eagle3lib.ecosystems._api import Api
from eagle3lib.ecosystems._base import Captures, Engine, Patch, System, TargetShape, Trainer
from eagle3lib.ecosystems._config_ids import LayerIds
from eagle3lib.ecosystems._form import Form, Seen
from eagle3lib.ecosystems._glance import Glance
from eagle3lib.ecosystems._layout import Layout, Origin, StoredSample
from eagle3lib.ecosystems._logs import LogReader
from eagle3lib.ecosystems._metrics import Metric
from eagle3lib.errors import InputError

__all__ = [
    "APIS", "ENGINES", "ENGINE_OF", "FORMS", "LAYOUTS", "LOGS", "METRICS", "TRAINERS", "Api", "Captures", "Engine",
    "Form", "Glance", "LayerIds", "Layout", "LogReader", "Metric", "Origin", "Patch", "Seen", "StoredSample", "System",
    "TargetShape", "Trainer", "engine", "flat_config", "trainer",
]  # fmt: skip

Kind = TypeVar("Kind", Engine, Form, Trainer)


_names = sorted(m.name for m in pkgutil.iter_modules(__path__) if not m.name.startswith("_"))
_modules = [importlib.import_module(f"{__name__}.{name}") for name in _names]


def _discover(kind: type[Kind]) -> dict[str, Kind]:
    found = {system.name: system for m in _modules for system in vars(m).values() if isinstance(system, kind)}
    return dict(sorted(found.items()))


ENGINES: dict[str, Engine] = _discover(Engine)
TRAINERS: dict[str, Trainer] = _discover(Trainer)
FORMS: dict[str, Form] = _discover(Form)
METRICS: tuple[Metric, ...] = tuple(metric for m in _modules for metric in getattr(m, "METRICS", ()))
LOGS: tuple[type[LogReader], ...] = tuple(m.LOGS for m in _modules if hasattr(m, "LOGS"))
#: Engines' names by the system that log lines are of: those of `x_logs` are of the engine `x`.
ENGINE_OF: dict[str, str] = {
    m.LOGS.shapes[0].system: name
    for m, name in zip(_modules, (name.removesuffix("_logs") for name in _names), strict=True)
    if hasattr(m, "LOGS") and name in ENGINES
}
APIS: tuple[Api, ...] = tuple(m.API for m in _modules if hasattr(m, "API"))
_layouts = [layout for m in _modules for layout in getattr(m, "LAYOUTS", ())]
LAYOUTS: tuple[Layout, ...] = tuple(sorted(_layouts, key=lambda layout: layout.general))


def flat_config(config: dict[str, Any]) -> dict[str, Any]:
    """A draft's config.json with the layer's numbers and the pass's flags at one level, whoever wrote it.

    What `eagle_config` says of the pass is lifted beside the rest; layer ids stay where they are, since where
    they stand decides who reads them.
    """
    flat = next((found for form in FORMS.values() if (found := form.flat_config(config)) is not None), config)
    flat = dict(flat)
    if isinstance(flat.get("architectures"), str):
        flat["architectures"] = [flat["architectures"]]
    nested = flat.get("eagle_config")
    if not isinstance(nested, dict):
        return flat
    lifted = {key: value for key, value in nested.items() if not key.endswith("layer_ids")}
    if lifted.pop("return_hidden_post_norm", False):  # TensorRT-LLM's word for norm_output
        lifted["norm_output"] = True
    return {**flat, **lifted}


def engine(name: str) -> Engine:
    """The engine of that name; case and punctuation do not matter ("llama.cpp", "SGLang").

    Raises:
        InputError: for an unknown name, with the nearest known one.
    """
    return _named("engine", name, ENGINES)


def trainer(name: str) -> Trainer:
    """The trainer of that name, as `engine`."""
    return _named("trainer", name, TRAINERS)


def _named(kind: str, name: str, systems: dict[str, Kind]) -> Kind:
    by_letters = {_letters(known): system for known, system in systems.items()}
    if (wanted := _letters(name)) in by_letters:
        return by_letters[wanted]
    near = difflib.get_close_matches(wanted, by_letters, n=1)
    hint = f"did you mean {by_letters[near[0]].name!r}? " if near else ""
    raise InputError(f"Unknown {kind} {name!r}: {hint}known are {', '.join(systems)}.")


def _letters(name: str) -> str:
    return "".join(c for c in name.lower() if c.isalnum())
