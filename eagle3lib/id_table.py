"""The table of what every system makes of one draft's layer ids, and which of them feed it as it was trained."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

from eagle3lib import ecosystems
from eagle3lib.boundaries import Boundary, boundary_name
from eagle3lib.ecosystems import Engine
from eagle3lib.errors import InputError
from eagle3lib.id_readings import IdReading, over_releases, read_by
from eagle3lib.investigation import Investigation


def case_id_table(investigation: Investigation, trained: Sequence[Boundary] | None) -> pd.DataFrame:
    """The ids of a case's draft, as every engine and every trainer reads them.

    The first row is the serving engine's, in its version, on the config that it was given; the others are on the
    draft's own config, the case's trainer marked. `as trained` says which equal the training wiring; without one the
    column is left out.

    Args:
        trained: the boundaries that fed `fc` in training, slot by slot.

    Raises:
        InputError: if the depth of the target is not known, or the case states a version that is none.
    """
    shape, config = investigation.shape, investigation.draft_config
    if shape is None:
        raise InputError("Expected the target's depth, found no [target] in the case; ids cannot be read without it.")
    rows = []
    if investigation.engine:
        reading = read_by(investigation.engine, investigation.served_config, shape, investigation.case.served.version)
        rows.append(_row("serves this case", reading, trained))
    for system in (*ecosystems.ENGINES.values(), *ecosystems.TRAINERS.values()):
        role = "engine" if isinstance(system, Engine) else "trainer"
        if system is investigation.trainer:
            role = "trainer of this draft" if investigation.trainer_is_told else "trainer, assumed of this draft"
        rows += [_row(role, reading, trained) for reading in over_releases(system, config, shape)]
    return pd.DataFrame(rows)


def _row(role: str, reading: IdReading, trained: Sequence[Boundary] | None) -> dict[str, str | bool]:
    fed = reading.boundaries
    row: dict[str, str | bool] = {
        "system": reading.system,
        "version": reading.version,
        "role": role,
        "ids": "default" if reading.ids is None else str(reading.ids),
        "feeds fc": reading.problem if fed is None else ", ".join(map(boundary_name, fed)),
    }
    if trained is not None:
        row["as trained"] = fed is not None and tuple(fed) == tuple(trained)
    return row | {"reads at": reading.spelling}
