"""Running an instance: its processes, its servers, and the commands of whoever keeps it."""
