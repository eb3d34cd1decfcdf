"""The wire contract: routes, streams, limits and errors of `/v1`."""
