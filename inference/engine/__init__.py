"""The torch engine: requests in, events out. Nothing else of Basalt is imported here."""
