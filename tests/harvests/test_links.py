"""Files end to end: a real worker writes them, links open them, for seven days and no longer."""

import json
import time
from collections.abc import Iterator
from datetime import datetime, timedelta
from email.utils import formatdate
from pathlib import Path
from urllib.parse import parse_qs, urlsplit
from uuid import UUID, uuid4

import httpx
import pytest
import torch
from django.conf import settings
from safetensors.torch import load as load_tensors

from api.ranges import Span, Unsatisfiable, span_of
from harvests import files
from harvests.files import sign
from inference import catalogue
from tests.conftest import Caller
from tests.harvests.conftest import SMALL, Runners, submitted, until
from tests.live import Web


@pytest.fixture(scope="module")
def worker(harvest_web: Web) -> Iterator[object]:
    """A real harvest worker in this process."""
    from harvests.worker import HarvestWorker

    before = torch.get_num_threads()
    entry = catalogue.current().find(SMALL)
    assert entry is not None
    working = HarvestWorker(entry)
    working.start()
    yield working
    working.stop(1.0)
    torch.set_num_threads(before)


@pytest.fixture
def done(reader: Caller, runner: Runners, worker: object) -> dict:
    """A harvest that is done: three prompts in two shards, one of them cut."""
    made = submitted(
        reader,
        prompts=["Paris", "the house of wood " * 30, "Größe 🌶"],
        shard_size=2,
        layers=[3, 1],
        batch_size=4,
    )
    return until(reader, made, "done", 60)


_served: list[str] = []


@pytest.fixture(autouse=True)
def _address(harvest_web: Web) -> None:
    _served[:] = [harvest_web.address]


def here(link: str) -> str:
    """A link to where the web process of the tests listens, which its settings do not know."""
    parts = urlsplit(link)
    assert f"{parts.scheme}://{parts.netloc}" == settings.BASALT.api_url
    return f"{_served[0]}{parts.path}?{parts.query}"


def fetched(link: str, **headers: str) -> httpx.Response:
    return httpx.get(here(link), headers=headers, timeout=30)


@pytest.mark.row("C-495", "C-496", "C-498", "C-499", "C-503", "C-504", "C-641")
def test_links_open_every_file_without_a_key(done: dict, reader: Caller) -> None:
    result = done["result"]
    manifest = fetched(result["manifest_url"]).json()
    assert manifest["run_id"] == done["job_id"]
    assert manifest["layout_version"] == 2
    assert manifest["model_id"] == SMALL
    assert "sha256:" in manifest["model_identity"]
    assert manifest["layer_indices"] == result["layer_indices"] == [1, 3]
    assert manifest["batch_size"] == 4
    assert manifest["cut_prompts"] == [1]
    assert [shard["file"] for shard in manifest["shards"]] == [
        urlsplit(link).path.rsplit("/", 1)[1] for link in result["shard_urls"]
    ]
    total = 0
    for shard, link in zip(manifest["shards"], result["shard_urls"], strict=True):
        tensors = load_tensors(fetched(link).content)
        assert {t["name"]: t["shape"] for t in shard["tensors"]} == {
            name: list(tensor.shape) for name, tensor in tensors.items()
        }
        total += sum(len(tensors[f"tokens_{i}"]) for i in shard["prompt_indices"])
    assert total == result["tokens"]
    assert len(load_tensors(fetched(result["shard_urls"][0]).content)["tokens_1"]) == 60
    statistics = load_tensors(fetched(result["stats_url"]).content)
    assert statistics["mean"].shape == (2, 64)
    sizes = [
        int(fetched(link).headers["content-length"])
        for link in (result["manifest_url"], result["stats_url"], *result["shard_urls"])
    ]
    assert sum(sizes) == result["bytes_written"]
    assert done["tokens"] == min(result["tokens"], done["reserved_tokens"])


@pytest.mark.row("C-496", "C-497")
def test_each_read_makes_new_links_and_old_ones_keep_their_own_time(
    done: dict, reader: Caller
) -> None:
    time.sleep(1.1)
    again = reader.client.get(f"/v1/harvest/{done['job_id']}").json()
    assert again["result"]["manifest_url"] != done["result"]["manifest_url"]
    for seen in (done, again):
        assert fetched(seen["result"]["manifest_url"]).status_code == 200
        link = parse_qs(urlsplit(seen["result"]["manifest_url"]).query)
        expires = datetime.fromisoformat(seen["urls_expire_at"])
        assert int(link["expires"][0]) == int(expires.timestamp())
        left = expires - datetime.now(expires.tzinfo)
        assert timedelta(days=7) - timedelta(minutes=5) < left <= timedelta(days=7)


@pytest.mark.row("C-496", "C-641")
def test_a_link_that_ran_out_or_was_changed_opens_nothing(done: dict, harvest_web: Web) -> None:
    job = done["job_id"]
    soon = int(time.time()) + 60

    def status(name: str, expires: object, signature: str, job_id: str = job) -> int:
        path = f"{harvest_web.address}/files/harvests/{job_id}/{name}"
        answer = httpx.get(path, params={"expires": str(expires), "signature": signature})
        if answer.status_code != 200:
            assert "request_id" in answer.json()
        return answer.status_code

    manifest = sign(UUID(job), "manifest.json", soon)
    assert status("manifest.json", soon, manifest) == 200
    past = int(time.time()) - 1
    assert status("manifest.json", past, sign(UUID(job), "manifest.json", past)) == 403
    assert status("manifest.json", soon + 1, manifest) == 403
    assert status("stats.safetensors", soon, manifest) == 403
    assert status("manifest.json", soon, "") == 403
    assert status("manifest.json", "soon", manifest) == 403
    other = str(uuid4())
    assert status("manifest.json", soon, manifest, other) == 403
    assert status("manifest.json", soon, sign(UUID(other), "manifest.json", soon), other) == 403
    for name in ("..%2F..%2Fup.env", "identity.json", "shard_1.safetensors", "manifest.json%00"):
        assert status(name, soon, sign(UUID(job), name, soon)) in (403, 404)
    assert (
        status("shard_00077.safetensors", soon, sign(UUID(job), "shard_00077.safetensors", soon))
        == 404
    )
    plain = f"{harvest_web.address}/files/harvests/{job}/manifest.json"
    assert httpx.get(plain).status_code == 403
    assert httpx.post(plain).status_code == 405


def test_ranges_let_a_download_go_on(done: dict) -> None:
    link = done["result"]["shard_urls"][0]
    whole = fetched(link)
    assert whole.headers["accept-ranges"] == "bytes"
    size, tag = len(whole.content), whole.headers["etag"]
    first = fetched(link, Range="bytes=0-999")
    rest = fetched(link, Range="bytes=1000-", **{"If-Range": tag})
    assert (first.status_code, rest.status_code) == (206, 206)
    assert first.headers["content-range"] == f"bytes 0-999/{size}"
    assert rest.headers["content-range"] == f"bytes 1000-{size - 1}/{size}"
    assert first.content + rest.content == whole.content
    assert fetched(link, Range="bytes=-7").content == whole.content[-7:]
    past = fetched(link, Range=f"bytes={size}-")
    assert past.status_code == 416
    assert past.headers["content-range"] == f"bytes */{size}"
    other = fetched(link, Range="bytes=1000-", **{"If-Range": '"another"'})
    assert (other.status_code, other.content) == (200, whole.content)
    head = httpx.head(here(link))
    assert int(head.headers["content-length"]) == size
    assert head.content == b""


def test_a_manifest_is_sent_as_it_is(done: dict) -> None:
    link = done["result"]["manifest_url"]
    answer = fetched(link, **{"Accept-Encoding": "gzip"})
    assert "content-encoding" not in answer.headers
    assert len(answer.content) == int(answer.headers["content-length"])
    assert json.loads(answer.content)["prompts"][0] == "Paris"


@pytest.mark.parametrize(
    ("header", "span"),
    [
        (None, None),
        ("bytes=0-0", Span(0, 1)),
        ("bytes=2-", Span(2, 10)),
        ("bytes=2-100", Span(2, 10)),
        ("bytes=-3", Span(7, 10)),
        ("bytes=-30", Span(0, 10)),
        ("bytes=5-2", None),
        ("bytes=0-1,4-5", None),
        ("lines=0-1", None),
        ("bytes=a-b", None),
        ("bytes=-", None),
    ],
)
def test_a_range_is_one_span(header: str | None, span: Span | None) -> None:
    assert span_of(header, 10) == span


@pytest.mark.parametrize("header", ["bytes=10-", "bytes=10-12", "bytes=-0"])
def test_a_range_past_the_end(header: str) -> None:
    with pytest.raises(Unsatisfiable):
        span_of(header, 10)


def test_a_download_takes_little_memory(
    done: dict, harvest_web: Web, tmp_path: Path, django_db_blocker
) -> None:
    from harvests.models import HarvestRun

    folder = Path(settings.MEDIA_ROOT) / HarvestRun.objects.get(harvest_id=done["job_id"]).folder
    large = folder / "shard_00001.safetensors"
    size = 400 * 2**20
    with large.open("r+b") as file:
        file.truncate(size)
    before = harvest_web.memory()
    got = 0
    with httpx.stream("GET", here(done["result"]["shard_urls"][1]), timeout=60) as answer:
        for piece in answer.iter_bytes():
            got += len(piece)
            if got > 200 * 2**20:
                break
        time.sleep(0.5)
        grown = harvest_web.memory() - before
    assert grown < 60 * 2**20
    large.unlink()
    assert fetched(done["result"]["shard_urls"][1]).status_code == 404


@pytest.mark.row("C-500", "C-507", "C-505")
def test_projections_come_as_float32(reader: Caller, runner: Runners, worker: object) -> None:
    import base64

    import numpy as np

    axes = np.zeros((2, 64), dtype="<f4")
    axes[0, 5], axes[1, 9] = 3.0, 0.5
    data = base64.b64encode(axes.tobytes()).decode()
    asked = {"project_onto": {"data": data, "dtype": "float32", "shape": [2, 64]}}
    made = submitted(reader, prompts=["Paris"], layers="all", **asked)
    plain = submitted(reader, prompts=["Paris"], layers="all")
    result = until(reader, made, "done", 60)["result"]
    assert result["contents"] == "projections"
    found = load_tensors(fetched(result["shard_urls"][0]).content)["prompt_0"]
    link = until(reader, plain, "done", 60)["result"]["shard_urls"][0]
    rows = load_tensors(fetched(link).content)["prompt_0"].float()
    assert found.dtype == torch.float32
    assert found.shape[0] == 4
    torch.testing.assert_close(found, rows[..., [5, 9]], rtol=2**-7, atol=1e-6)


def test_a_cancel_in_the_middle_of_a_run_stops_it_and_leaves_no_files(
    reader: Caller, runner: Runners, worker: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    from harvests.models import HarvestRun
    from inference.harvest import forward

    passes = []
    plain = forward.Forward.run

    def slow(self, prompts, take) -> None:
        passes.append(len(prompts))
        for _ in range(600):
            self.before_layer()
            time.sleep(0.05)
        plain(self, prompts, take)

    monkeypatch.setattr(forward.Forward, "run", slow)
    made = submitted(reader)
    until(reader, made, "running")
    deadline = time.monotonic() + 20
    while not passes and time.monotonic() < deadline:
        time.sleep(0.02)
    assert passes
    answer = reader.client.delete(f"/v1/harvest/{made['job_id']}").json()
    assert (answer["status"], answer["tokens"]) == ("cancelled", made["reserved_tokens"])
    monkeypatch.setattr(forward.Forward, "run", plain)
    after = submitted(reader)
    until(reader, after, "done", 20)
    run = HarvestRun.objects.get(harvest_id=made["job_id"])
    assert run.folder == ""
    assert not (Path(settings.MEDIA_ROOT) / files.FOLDER / made["job_id"]).exists() or not any(
        (Path(settings.MEDIA_ROOT) / files.FOLDER / made["job_id"]).rglob("*.*")
    )
    assert not list((settings.BASALT.var_dir / files.SCRATCH).iterdir())


@pytest.mark.row("C-512")
def test_weights_that_were_changed_run_nothing(
    reader: Caller, runner: Runners, nothing_live: None
) -> None:
    from harvests.worker import HarvestWorker

    entry = catalogue.current().find("reads-larger")
    assert entry is not None
    weights = settings.BASALT.models / "reads-larger" / "model.safetensors"
    whole = weights.read_bytes()
    weights.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    working = HarvestWorker(entry)
    working.start()
    try:
        made = submitted(reader, model="reads-larger")
        seen = until(reader, made, "failed", 30)
    finally:
        working.stop(1.0)
        weights.write_bytes(whole)
    assert "could not be confirmed as the model's pinned revision" in seen["error"]
    assert seen["tokens"] == 0


def test_dates_in_if_range_work_too(done: dict) -> None:
    link = done["result"]["stats_url"]
    changed = fetched(link).headers["last-modified"]
    assert fetched(link, Range="bytes=0-1", **{"If-Range": changed}).status_code == 206
    other = formatdate(0, usegmt=True)
    assert fetched(link, Range="bytes=0-1", **{"If-Range": other}).status_code == 200
