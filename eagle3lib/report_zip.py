"""OUT/report.zip: the whole report as one file, whose links work wherever it is unpacked."""

from __future__ import annotations

import os
import zipfile
from pathlib import Path

from eagle3lib.first_page import download_paths, index_html, whole_paths
from eagle3lib.report import Report, page_path
from eagle3lib.results import file_name

EARLIEST = (1980, 1, 1, 0, 0, 0)  # a fixed time, so that equal files give equal archives


def write_zip(report: Report) -> Path:
    """Write OUT/report.zip with the first page, every page, and what they link to; return its path.

    Checkpoints and dumps that a notebook wrote are left out: a report is to be sent by mail.
    """
    archive = report.out / "report.zip"
    partial = archive.with_name(f".{archive.name}.part")
    folder = f"{file_name(report.case['name'])}-report"
    with zipfile.ZipFile(partial, "w", zipfile.ZIP_DEFLATED) as packed:
        _add(packed, f"{folder}/index.html", index_html(report).encode())
        for path in _files(report):
            _add(packed, f"{folder}/{path.relative_to(report.out).as_posix()}", path.read_bytes())
    os.replace(partial, archive)
    return archive


def _files(report: Report) -> list[Path]:
    pages = [page_path(outcome.notebook, report.out) for outcome in report.outcomes]
    downloads = [path for outcome in report.outcomes for path in download_paths(report, outcome)]
    return [*(page for page in pages if page.exists()), *downloads, *whole_paths(report)]


def _add(packed: zipfile.ZipFile, name: str, data: bytes) -> None:
    packed.writestr(zipfile.ZipInfo(name, EARLIEST), data, zipfile.ZIP_DEFLATED)
