"""SpecForge's offline files: `rows_{a}-{b}/data_{i}.ckpt`, or `.ckpt.gz`.

Sources, in sgl-project/SpecForge: scripts/prepare_hidden_states.py (writer), specforge 0.2.0,
algorithms/eagle3/data.py `normalize_offline_sample` (reader). Keys: `input_ids` [S], `loss_mask` [S],
`aux_hidden_state` [1, S, m·H], which feeds `fc`, and `hidden_state` [1, S, H], the last state behind the final norm.
The trainer renames both: its `hidden_state` is the former, its `target` the latter. It clears the last token's mask,
and so does this reader.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from eagle3lib import gzipped, pickles
from eagle3lib.axes import Known
from eagle3lib.boundaries import FINAL_NORMED, Boundary
from eagle3lib.ecosystems._files import by_length, dictionary, entry, named, token_mask, token_row_ids
from eagle3lib.ecosystems._glance import Glance
from eagle3lib.ecosystems._layout import Layout, Origin, StoredSample, last_and_aux, slots_then


class OfflineLayout(Layout):
    """One file a sample, in folders of some thousand."""

    name = "specforge"
    label = "SpecForge (rows_0-2000/data_0.ckpt)"

    def fits(self, glance: Glance) -> bool:
        parts = any(re.fullmatch(r"rows_\d+-\d+", name) for name in glance.names)
        return bool(parts or glance.files(".ckpt", ".ckpt.gz"))

    def files(self, folder: Path) -> Iterator[Path]:
        rows = sorted((f for f in folder.glob("rows_*-*") if f.is_dir()), key=lambda f: by_length(f.name))
        for part in (*rows, folder):
            yield from named(part, "", (".ckpt", ".ckpt.gz"))

    def read(self, file: Path, known: Known) -> Iterator[StoredSample]:
        if file.suffix == ".gz":
            with gzipped.unpacked(file) as content:
                data = pickles.read(content, file)
        else:
            data = pickles.read(file)
        token_ids = token_row_ids(entry(dictionary(data, file), "input_ids", file), file)
        mask = token_mask(entry(data, "loss_mask", file), file, len(token_ids)).clone()
        mask[-1] = False
        entry(data, "aux_hidden_state", file)  # never left out
        states = last_and_aux(data, ("hidden_state", "aux_hidden_state"), len(token_ids), known, file)
        yield StoredSample(f"{file.parent.name}/{file.name}", token_ids, states, mask)

    def boundaries(self, stored: StoredSample, origin: Origin) -> tuple[Boundary, ...] | None:
        return slots_then(FINAL_NORMED, stored, origin)


LAYOUTS = (OfflineLayout(),)
