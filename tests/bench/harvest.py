"""`script/bench harvest`: a harvest from submission to files, beside the engine's own speed.

End to end is what a client waits for: `POST /v1/harvest`, a runner that takes it up, a worker in a
process of its own, files, and the answer that says `done`. The engine's own speed is that of the
harvest library alone in this process, from the same texts to files. Both take turns on the same
prompts of mixed length, all Layers of the default model. The worker's first harvest, which loads
the model, stands apart.

With `--plain` the library is also compared with a plain transformers forward, which takes longer.
"""

import argparse
import contextlib
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "platform")]
os.environ["CATALOGUE_PATH"] = str(ROOT / "deploy" / "catalogue.toml")
os.environ["RATE_LIMIT_PER_MINUTE"] = "1000000"
os.environ["LOG_LEVEL"] = "WARNING"
import tests.servers  # noqa: E402 -- says where PostgreSQL and Valkey are, before Django

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "config.settings")

import django  # noqa: E402

tests.servers.start()
django.setup()

import httpx  # noqa: E402
import torch  # noqa: E402
from django.conf import settings  # noqa: E402
from django.core.management import call_command  # noqa: E402

from inference import catalogue, harvesting, valkey  # noqa: E402
from inference.engine.loading import LoadedModel  # noqa: E402
from inference.fleet import Fleet, harvest_worker  # noqa: E402
from tests.bench.parts import plain_forward  # noqa: E402
from tests.live import end, eventually, start_process, web_process  # noqa: E402

PARTS = ("load_s", "forward_s", "save_s", "upload_s")
READY_SECONDS = 120


def key_of_a_reader() -> str:
    """The key of a User with many tokens."""
    from accounts.keys import create_key
    from accounts.models import User
    from billing.grants import grant

    user = User.objects.create_user(email="bench@example.org")
    grant(user_id=user.id, tokens=10**12, by=None)
    return create_key(user=user, name="bench")[1]


@contextlib.contextmanager
def service(logs: Path, model: str) -> Iterator[httpx.Client]:
    """A web process, a runner in this process, and a harvest worker that waits without a model."""
    from billing.models import OwnerKind
    from completions.owner import own_as
    from harvests.following import HarvestKind
    from jobs.runner import RunnerThread

    own_as(OwnerKind.RUNNER)
    runner = RunnerThread((HarvestKind(),))
    runner.start()
    worker = start_process("worker", f"harvest.{model}", log=logs / "harvest-worker.log")
    try:
        with (
            web_process(logs / "web.log") as web,
            httpx.Client(
                base_url=web.address,
                headers={"Authorization": f"Bearer {key_of_a_reader()}"},
                timeout=120,
            ) as client,
        ):
            fleet = Fleet(valkey.connection())
            eventually(lambda: fleet.workers(harvest_worker(model)), READY_SECONDS)
            yield client
    finally:
        end(worker)
        runner.stop(0)


@dataclass
class Harvested:
    """What one harvest through the service took."""

    tokens: int
    seconds: float
    """From before its submission until `done` was read."""
    timings: dict[str, float]

    @property
    def speed(self) -> float:
        return self.tokens / self.seconds

    @property
    def beside(self) -> float:
        """Seconds outside the worker's own: the queue, rows, looks and answers."""
        return self.seconds - sum(self.timings.values())


def end_to_end(client: httpx.Client, model: str, texts: list[str]) -> Harvested:
    """Submit one harvest, wait for its end as a client does, and open its manifest."""
    began = time.monotonic()
    body = {"model": model, "prompts": texts, "layers": "all"}
    answer = client.post("/v1/harvest", json=body)
    answer.raise_for_status()
    while answer.json()["status"] in ("pending", "running"):
        address = f"/v1/harvest/{answer.json()['job_id']}"
        answer = client.get(address, params={"wait": "60"})
        answer.raise_for_status()
    seconds = time.monotonic() - began
    made = answer.json()
    assert made["status"] == "done", made
    result = made["result"]
    manifest = client.get(httpx.URL(result["manifest_url"]).raw_path.decode())
    assert len(manifest.json()["prompts"]) == len(texts), manifest.text[:300]
    return Harvested(result["tokens"], seconds, result["timings"])


@dataclass
class Own:
    """The harvest library alone, in this process."""

    loaded: LoadedModel
    texts: list[str]
    tokens: int
    seconds: list[float] = field(default_factory=list)

    def go(self, folder: Path) -> None:
        batch = settings.BASALT.harvest_batch_tokens
        run = plain_forward.harvesting(self.loaded, self.texts, folder, batch)
        began = time.monotonic()
        run()
        self.seconds.append(time.monotonic() - began)

    @property
    def speed(self) -> float:
        return self.tokens / statistics.median(self.seconds)


def measure(prompts: int, rounds: int) -> None:
    """Take turns and print both speeds."""
    entry = catalogue.current().default
    loaded = harvesting.load(entry, harvesting.confirmed(entry), lambda stage: None)
    texts = plain_forward.prompts_of(loaded, prompts, mixed=True)
    tokens = sum(len(one.ids) for one in loaded.tokenizer.encode_batch(texts))
    own = Own(loaded, texts, tokens)
    with (
        tempfile.TemporaryDirectory() as scratch,
        service(tests.servers.logs(), entry.id) as client,
    ):
        first = end_to_end(client, entry.id, texts)
        whole: list[Harvested] = []
        for _ in range(rounds):
            own.go(Path(scratch))
            whole.append(end_to_end(client, entry.id, texts))
    assert {each.tokens for each in (first, *whole)} == {tokens}
    speed = statistics.median(each.speed for each in whole)
    print(f"{entry.id}, {prompts} prompts of 20 to 250 words, {tokens} tokens, all Layers")
    print(f"  the engine's own harvest          {own.speed:7.0f} tokens/s")
    print(f"  submitted to files                {speed:7.0f} tokens/s  {speed / own.speed:5.2f}x")
    print(
        f"  the first, which loads the model  {first.speed:7.0f} tokens/s"
        f"  {first.speed / own.speed:5.2f}x"
    )
    for name in PARTS:
        seconds = statistics.median(each.timings[name] for each in whole)
        print(f"    {name:10} {seconds:8.2f} s, the first {first.timings[name]:.2f} s")
    beside = statistics.median(each.beside for each in whole)
    print(f"    {'the rest':10} {beside:8.2f} s, the first {first.beside:.2f} s")


def main() -> None:
    """Run the benchmark."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--prompts", type=int, default=32)
    options.add_argument("--rounds", type=int, default=3)
    options.add_argument("--plain", action="store_true", help="beside transformers as well")
    options.add_argument("--batch-tokens", type=int, nargs="+", default=[1024])
    options.add_argument("--sizes", type=int, nargs="+", default=[4, 8, 16])
    options.add_argument("--dtypes", nargs="+", default=["float32", "bfloat16"])
    asked = options.parse_args()
    call_command("migrate", verbosity=0)
    measure(asked.prompts, asked.rounds)
    if asked.plain:
        torch.set_num_threads(os.cpu_count() or 1)
        for dtype in asked.dtypes:
            for mixed in (True, False):
                plain_forward.compare(
                    dtype,
                    mixed=mixed,
                    count=asked.prompts,
                    rounds=asked.rounds,
                    batches=asked.batch_tokens,
                    sizes=asked.sizes,
                )


if __name__ == "__main__":
    main()
