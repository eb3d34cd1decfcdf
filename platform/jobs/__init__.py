"""Work in the background: the queue, the runner, Jobs, and the Runs of the Playground."""
