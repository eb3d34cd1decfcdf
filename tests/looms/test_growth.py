"""Nodes as they grow: in the background, each as one Completion."""

import pytest

pytestmark = pytest.mark.timeout(60)


def test_smoke(loom, grows):
    (node,) = loom.branch(loom.root, max_tokens=4, seed=9)
    assert (node["status"], node["text"]) == ("queued", "")
    asked = grows.next()
    asked.say(" upon")
    asked.say(" a", finish="length")
    asked.finish()
    done = loom.until(node["id"], "completed", "failed")
    assert done["text"] == " upon a", done
