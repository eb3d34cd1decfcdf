"""Models and the engines that run them: catalogue, client, wire, workers."""
