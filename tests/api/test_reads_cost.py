"""Reads and steering cost no tokens of their own."""

import pytest

from tests.live import InBackground


@pytest.mark.row("C-335")
def test_a_read_and_a_steer_add_nothing_to_the_hold(caller, scripted) -> None:
    body = {
        "prompt": [5, 6, 7],
        "max_tokens": 10,
        "output_residual_stream": [0, 1],
        "apply_steering_vectors": [{"layer_indices": [1], "activations": [[0.5] * 64]}],
    }
    request = InBackground(caller.client, body)
    asked = scripted.next()
    assert asked.request.read_layers == (0, 1)
    assert asked.request.steering
    assert caller.left() == 100_000 - 13
    request.leave()
