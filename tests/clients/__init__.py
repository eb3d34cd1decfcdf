"""Programs of other people, unchanged, against a served instance."""
