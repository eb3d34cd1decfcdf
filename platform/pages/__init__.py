"""Pages without a sign-in: the front page and the docs."""
