"""What every surface of Completions shares, from the request to the end of its Hold."""
