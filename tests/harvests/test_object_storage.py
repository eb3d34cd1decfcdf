"""Files on an S3-compatible storage, over HTTP: moto's server stands in for one."""

import time
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import boto3
import httpx
import pytest
from django.conf import settings
from django.core.files.storage import storages
from moto.server import ThreadedMotoServer

from harvests import files
from harvests.files import Links, StorageSink

BUCKET = "basalt-harvests"


@pytest.fixture
def bucket(monkeypatch: pytest.MonkeyPatch) -> Iterator[object]:
    """A bucket, and Django's default storage in it."""
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0)
    server.start()
    host, port = server.get_host_and_port()
    address = f"http://{host}:{port}"
    httpx.post(f"{address}/moto-api/reset").raise_for_status()
    keys = {"aws_access_key_id": "test", "aws_secret_access_key": "secret"}
    client = boto3.client("s3", endpoint_url=address, region_name="eu-central-1", **keys)
    client.create_bucket(
        Bucket=BUCKET, CreateBucketConfiguration={"LocationConstraint": "eu-central-1"}
    )
    chosen = settings.BASALT.model_copy(
        update={
            "file_storage": f"s3://{BUCKET}/site",
            "s3_endpoint_url": address,
            "s3_region": "eu-central-1",
            "s3_access_key": "test",
            "s3_secret_key": "secret",
        }
    )
    from config.settings import file_storage

    before = settings.STORAGES
    monkeypatch.setattr(settings, "BASALT", chosen)
    settings.STORAGES = {**before, "default": file_storage(chosen)}
    _forget_storages()
    yield client
    settings.STORAGES = before
    _forget_storages()
    server.stop()


def _forget_storages() -> None:
    from django.core.files import storage
    from django.utils.functional import empty

    storages._backends = None
    storages._storages = {}
    storages.__dict__.pop("backends", None)
    storage.default_storage._wrapped = empty


def names(client: object) -> list[str]:
    found = client.list_objects_v2(Bucket=BUCKET)  # type: ignore[attr-defined]
    return [each["Key"] for each in found.get("Contents", [])]


def test_files_lie_in_the_bucket_and_links_of_the_storage_open_them(
    bucket: object, tmp_path: Path
) -> None:
    target = files.target_of(uuid4(), uuid4())
    sink = StorageSink(tmp_path, target)
    for name, data in (("shard_00000.safetensors", b"rows" * 1000), ("manifest.json", b"{}")):
        (tmp_path / name).write_bytes(data)
        sink.keep(tmp_path / name)
    assert sorted(names(bucket)) == [
        f"site/{target}/manifest.json",
        f"site/{target}/shard_00000.safetensors",
    ]
    assert not list(tmp_path.iterdir())
    links = Links(uuid4(), target, expires=int(time.time()) + 604_800)
    link = links.to("shard_00000.safetensors")
    assert "X-Amz-Expires=604800" in link or "X-Amz-Expires=604799" in link
    assert httpx.get(link).content == b"rows" * 1000
    part = httpx.get(link, headers={"Range": "bytes=4-7"})
    assert (part.status_code, part.content) == (206, b"rows")
    assert files.opened_by(uuid4(), "manifest.json", "9999999999", "x") is None
    files.discard(target)
    assert names(bucket) == []


def test_a_name_that_is_taken_is_an_error(bucket: object, tmp_path: Path) -> None:
    sink = StorageSink(tmp_path, "harvests/a/b")
    for _ in range(2):
        (tmp_path / "manifest.json").write_bytes(b"{}")
        if not names(bucket):
            sink.keep(tmp_path / "manifest.json")
    with pytest.raises(OSError, match="has a file"):
        sink.keep(tmp_path / "manifest.json")
