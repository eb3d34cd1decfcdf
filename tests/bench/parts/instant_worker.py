"""A worker whose engine answers at once: what is left of a request's time is the platform's own."""

import os
import signal
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]


def main() -> None:
    """Serve the model named on the command line until SIGTERM."""
    sys.path[:0] = [str(ROOT), str(ROOT / "platform")]
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "config.settings")
    import django

    django.setup()
    from inference import catalogue
    from tests.scripted import scripted_worker

    model = catalogue.current().find(sys.argv[1])
    assert model is not None
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    with scripted_worker(model) as engine:
        engine.answers = tuple(sys.argv[2:]) or ("a",)
        print("ready", flush=True)
        signal.sigwait({signal.SIGTERM})
    os._exit(0)


if __name__ == "__main__":
    main()
