"""The addresses of the Playground, below `/playground`."""

from django.urls import path

from pages import playground, playground_runs, playground_vectors, run_events, run_export, run_loom

ONE = "runs/<int:number>"
VECTOR = "vectors/<uuid:vector_id>"

urlpatterns = [
    path("models", playground.models, name="playground-models"),
    path("tokens", playground.tokens, name="playground-tokens"),
    path("export", run_export.export, name="export-runs"),
    path("runs", playground_runs.start, name="start-runs"),
    path(ONE, playground_runs.whole, name="run"),
    path(f"{ONE}/events", run_events.events, name="run-events"),
    path(f"{ONE}/branch", playground_runs.branch, name="branch-run"),
    path(f"{ONE}/stop", playground_runs.stop, name="stop-run"),
    path(f"{ONE}/delete", playground_runs.delete, name="delete-run"),
    path(f"{ONE}/norms", playground_runs.norms, name="run-norms"),
    path(f"{ONE}/activations.npy", playground_runs.numbers, name="run-numbers"),
    path(f"{ONE}/loom", run_loom.open_in_loom, name="open-run-in-loom"),
    path("vectors", playground_vectors.vectors, name="vectors"),
    path("vectors/save", playground_vectors.save, name="save-vector"),
    path(f"{VECTOR}/rename", playground_vectors.rename, name="rename-vector"),
    path(f"{VECTOR}/delete", playground_vectors.delete, name="delete-vector"),
    path(f"{VECTOR}/file", playground_vectors.file, name="vector-file"),
]
