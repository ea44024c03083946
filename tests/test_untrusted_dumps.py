"""Files that lie: refused before memory is taken, by one sentence; and mutations of a file of every layout."""

from __future__ import annotations

import gzip
import io
import json
import math
import resource
import shutil
import struct
import tempfile
import zipfile
from pathlib import Path

import pytest
import torch
import toys
import written
from complaints import complaint
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file

from eagle3lib import gzipped, pickles
from eagle3lib.axes import Known
from eagle3lib.dumps import open_dump
from eagle3lib.errors import InputError
from eagle3lib.plain_file import VARIABLE
from eagle3lib.sample import Sample

KNOWN = Known(hidden_size=toys.HIDDEN)
#: Bytes that a refusal may take; the files below claim thousands of times that.
ROOM = 64 * 2**20


def peak() -> int:
    """The most memory that this process has held, in bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def cheap_complaint(action, *parts: str) -> None:
    """As `complaint`, and without memory worth mentioning."""
    before = peak()
    complaint(action, *parts)
    assert peak() - before < ROOM


def test_a_gzip_bomb_is_refused(tmp_path, monkeypatch):
    """A few kilobytes that unpack to half a gigabyte of zeros: the bound is met before it is written."""
    monkeypatch.setattr(gzipped, "ALWAYS_ALLOWED", 2**24)
    part = tmp_path / "rows_0-1"
    part.mkdir()
    with gzip.open(part / "data_0.ckpt.gz", "wb") as out:
        for _ in range(512):
            out.write(bytes(2**20))
    cheap_complaint(lambda: open_dump(tmp_path, (0,)), "data_0.ckpt.gz", "unpacks to more than 32 times")
    assert not list(Path(tempfile.gettempdir()).glob("eagle3lib-*/content"))


@pytest.mark.parametrize("cut", [20, 200])
def test_a_cut_or_foreign_gzip_file(cut, tmp_path):
    written.specforge(tmp_path, written.samples(1), packed=True)
    (file,) = tmp_path.rglob("*.gz")
    file.write_bytes(file.read_bytes()[:-cut])
    complaint(lambda: open_dump(tmp_path, (0,)), file.name, "not a whole gzip file")
    file.write_bytes(b"\x00" * 100)
    complaint(lambda: open_dump(tmp_path, (0,)), file.name, "not a whole gzip file")


def test_a_deflated_archive_is_refused(tmp_path):
    """torch stores; what is deflated could unpack to anything."""
    written.modelopt(tmp_path / "dump", written.samples(1))
    (file,) = (tmp_path / "dump").iterdir()
    packed = io.BytesIO()
    with zipfile.ZipFile(file) as old, zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as new:
        for name in old.namelist():
            new.writestr(name, old.read(name) if not name.endswith("/0") else bytes(2**28))
    file.write_bytes(packed.getvalue())
    cheap_complaint(lambda: pickles.read(file), str(file), "archive is compressed")


def test_a_tensor_that_shows_more_than_it_stores_is_refused(tmp_path):
    """One row a billion times: eight numbers on disk."""
    file = tmp_path / "a.pt"
    torch.save({"input_ids": torch.arange(5), "hidden_states": torch.zeros(1, 8).expand(10**9, 8)}, file)
    cheap_complaint(lambda: pickles.read(file), str(file), "shows more than the 32 bytes stored")


def test_tensors_of_other_kinds_are_refused(tmp_path):
    """Sparse, complex and on no device at all."""
    for tensor in (torch.eye(4).to_sparse(), torch.zeros(3, dtype=torch.complex64), torch.zeros(3, device="meta")):
        torch.save({"hidden_states": tensor}, tmp_path / "a.pt")
        complaint(lambda: pickles.read(tmp_path / "a.pt"), "a.pt", "tensors alone")


def safetensors_file(header: dict | bytes, data: bytes = b"", length: int | None = None) -> bytes:
    """A file with that header, whose length may lie."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text) if length is None else length) + text + data


ENTRY = {"dtype": "F32", "shape": [4], "data_offsets": [0, 16]}
LIES = {
    "length": safetensors_file({"a": ENTRY}, bytes(16), length=2**60),
    "shape": safetensors_file({"a": ENTRY | {"shape": [2**40]}}, bytes(16)),
    "overflow": safetensors_file({"a": ENTRY | {"shape": [2**33, 2**33]}}, bytes(16)),
    "negative": safetensors_file({"a": ENTRY | {"shape": [-4]}}, bytes(16)),
    "fraction": safetensors_file({"a": ENTRY | {"shape": [4.0]}}, bytes(16)),
    "offsets": safetensors_file({"a": ENTRY | {"data_offsets": [0, 2**40]}}, bytes(16)),
    "backwards": safetensors_file({"a": ENTRY | {"data_offsets": [16, 0]}}, bytes(16)),
    "before": safetensors_file({"a": ENTRY | {"data_offsets": [-8, 8]}}, bytes(16)),
    "dtype": safetensors_file({"a": ENTRY | {"dtype": "F7"}}, bytes(16)),
    "no entry": safetensors_file({"a": 3}, bytes(16)),
    "list": safetensors_file(b"[1, 2]", bytes(16)),
    "nested": safetensors_file(b"[" * 100_000, bytes(16)),
}


@pytest.mark.parametrize("plain", [False, True], ids=["mapped", "plain"])
@pytest.mark.parametrize("lie", LIES)
def test_a_header_that_lies_is_refused(lie, plain, tmp_path, monkeypatch):
    """By safetensors' own library, and by the reader for file systems that map nothing."""
    monkeypatch.setenv(VARIABLE, str(int(plain)))
    (tmp_path / "sample_000000.safetensors").write_bytes(LIES[lie])
    cheap_complaint(lambda: open_dump(tmp_path), "sample_000000.safetensors", "not a whole safetensors file")


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ('{"meta_info": ' + "[" * 100_000, "is not JSON"),
        ('{"meta_info": ' + "1" * 5000 + "}", "is not JSON"),
        ('{"meta_info": {"hidden_states": 3}}', "meta_info.hidden_states"),
        ('{"meta_info": {"hidden_states": [[1, 2]]}, "input_ids": [1e400], "output_ids": [1]}', "input_ids"),
        ('{"meta_info": {"hidden_states": [[1, 2]]}, "input_ids": [10000000000000000000], "output_ids": [1]}', "ids"),
        ('{"meta_info": {"hidden_states": [[1, 2], [1]]}, "input_ids": [1], "output_ids": [1]}', "rows of numbers"),
        ('{"meta_info": {"hidden_states": [[1, [2]]]}, "input_ids": [1], "output_ids": [1]}', "rows of numbers"),
        ('{"meta_info": {"hidden_states": [["x"]]}, "input_ids": [1], "output_ids": [1]}', "rows of numbers"),
        ('{"meta_info": {"hidden_states": []}, "input_ids": [1], "output_ids": [1]}', "rows of numbers"),
    ],
)
def test_json_that_is_no_response(text, part, tmp_path):
    (tmp_path / "responses.json").write_text(text)
    complaint(lambda: open_dump(tmp_path, (0,), known=KNOWN), "responses.json", part)


def test_nan_is_data(tmp_path):
    """In a tensor and in JSON."""
    (sample,) = written.samples(1)
    sample.states[2][3] = math.nan
    for writer in (written.own, written.sglang):
        folder = tmp_path / writer.__name__
        boundaries = writer(folder, [sample]) if writer is written.own else writer(folder, [sample], (2,))
        (found,) = open_dump(folder, boundaries, known=KNOWN)
        assert found.state(2)[3].isnan().all()


def test_links_are_followed(tmp_path):
    """As the Hugging Face cache links into blobs/."""
    written.own(tmp_path / "blobs", written.samples(2))
    (tmp_path / "dump").mkdir()
    for i, file in enumerate(sorted((tmp_path / "blobs").iterdir())):
        blob = file.rename(file.with_name(f"b10b{i}"))
        (tmp_path / "dump" / file.name).symlink_to(Path("..") / "blobs" / blob.name)
    assert len(list(open_dump(tmp_path / "dump"))) == 2


@pytest.fixture(scope="module", params=written.WRITERS)
def healthy(request, tmp_path_factory):
    """One sample's dump in each layout: its folder, the boundaries, and the sample as it comes back."""
    folder = tmp_path_factory.mktemp("healthy") / "dump"
    boundaries = written.WRITERS[request.param](folder, written.samples(1))
    (sample,) = open_dump(folder, boundaries, known=KNOWN, turns=written.RULE)
    return folder, boundaries, sample


@st.composite
def mutations(draw):
    """What to do to a file's bytes: flips, a cut, an insertion, a lying number."""
    kind = draw(st.sampled_from(["flip", "cut", "insert", "number", "repeat"]))
    place = draw(st.one_of(st.floats(0, 1), st.floats(0, 0.05), st.floats(0.9, 1)))
    return kind, place, draw(st.binary(min_size=1, max_size=9)), draw(st.sampled_from([2**62, 2**32, 0, 2**31, -1]))


def mutated(data: bytes, mutation) -> bytes:
    """The bytes after a mutation."""
    kind, place, fill, lie = mutation
    at = min(int(place * len(data)), len(data) - 1)
    changed = {
        "flip": data[:at] + bytes(b ^ (f or 1) for b, f in zip(data[at:], fill, strict=False)) + data[at + len(fill) :],
        "cut": data[:at],
        "insert": data[:at] + fill + data[at:],
        "number": data[:at] + struct.pack("<q", lie) + data[at + 8 :],
        "repeat": data[:at] + data[max(0, at - 64) : at] * 3 + data[at:],
    }
    return changed[kind]


@settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(mutation=mutations(), which=st.integers(0, 2))
def test_a_mutated_file_gives_a_sample_or_one_error(healthy, mutation, which):
    """Nothing else comes out, and what comes out has the sizes of a sample."""
    folder, boundaries, sample = healthy
    with tempfile.TemporaryDirectory() as scratch:
        copy = Path(scratch) / "dump"
        shutil.copytree(folder, copy)
        files = sorted(f for f in copy.rglob("*") if f.is_file() and f.stat().st_size)
        file = files[which % len(files)]
        file.write_bytes(mutated(file.read_bytes(), mutation))
        try:
            found = list(open_dump(copy, boundaries, known=KNOWN, turns=written.RULE))
        except InputError as error:
            assert "\n" not in str(error)
            assert str(copy) in str(error) or file.name in str(error)
            return
        for one in found:
            sound(one, sample)


def sound(found: Sample, like: Sample) -> None:
    """Sizes that belong together; every number can be read."""
    n = len(found.token_ids)
    assert len(found.loss_mask) == n
    assert tuple(found.states) == tuple(like.states)
    for state in found.states.values():
        assert state.shape[0] in (n, n - 1, n - 2)
        assert state.shape[1] == toys.HIDDEN
        state.float().sum()
    assert found.token_ids.min() >= 0
    assert found.n_pairs >= 0


def test_a_shard_is_never_taken_from_elsewhere(tmp_path):
    """NeMo's manifest names no shards, and what lies outside the folder is not looked at."""
    written.nemo(tmp_path / "dump", written.samples(1))
    save_file({"input_ids": torch.zeros(1)}, tmp_path / "shard-000009.safetensors")
    manifest = json.loads((tmp_path / "dump" / "manifest.json").read_text())
    (tmp_path / "dump" / "manifest.json").write_text(json.dumps(manifest | {"shards": ["../shard-000009.safetensors"]}))
    assert len(list(open_dump(tmp_path / "dump", known=KNOWN))) == 1


def test_an_archive_that_says_it_spans_disks_is_one_sentence(tmp_path):
    """Python's own test for an archive raises of it."""
    file = tmp_path / "data.pt"
    torch.save({"a": torch.zeros(3)}, file)
    content = file.read_bytes()
    at = content.rindex(b"PK\x06\x07") if b"PK\x06\x07" in content else None
    assert at is not None, "torch writes a locator of the 64-bit end record"
    file.write_bytes(content[: at + 4] + b"\x07" + content[at + 5 :])
    complaint(lambda: pickles.read(file), str(file), "archive is broken")
