"""The addresses of the Loom pages, below `/loom`."""

from django.urls import path

from pages import loom, loom_changes, loom_events

ONE = "<uuid:loom_id>"
NODE = f"{ONE}/nodes/<uuid:node_id>"

urlpatterns = [
    path("new", loom.start, name="new-loom"),
    path("make", loom_changes.create, name="make-loom"),
    path("import", loom_changes.import_file, name="import-loom"),
    path(f"{ONE}", loom.page, name="one-loom"),
    path(f"{ONE}/state", loom.state, name="loom-state"),
    path(f"{ONE}/events", loom_events.events, name="loom-events"),
    path(f"{ONE}/export", loom.export, name="export-loom"),
    path(f"{ONE}/pin", loom.pin, name="pin-loom"),
    path(f"{ONE}/unpin", loom.unpin, name="unpin-loom"),
    path(f"{ONE}/rename", loom_changes.rename, name="rename-loom"),
    path(f"{ONE}/delete", loom_changes.delete, name="delete-loom"),
    path(f"{ONE}/look", loom_changes.look, name="look-at-loom"),
    path(f"{ONE}/stop", loom_changes.stop, name="stop-loom"),
    path(f"{ONE}/root", loom_changes.root, name="replace-root"),
    path(f"{ONE}/undo", loom_changes.undo, name="undo-loom"),
    path(f"{ONE}/redo", loom_changes.redo, name="redo-loom"),
    path(f"{NODE}", loom.node, name="loom-node"),
    path(f"{NODE}/branch", loom_changes.branch, name="branch-node"),
    path(f"{NODE}/edit", loom_changes.edit, name="edit-node"),
    path(f"{NODE}/split", loom_changes.split, name="split-node"),
    path(f"{NODE}/sibling", loom_changes.sibling, name="write-sibling"),
    path(f"{NODE}/delete", loom_changes.delete_node, name="delete-node"),
]
