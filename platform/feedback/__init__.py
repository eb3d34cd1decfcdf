"""Feedback: what people write to the team, with screenshots, and the team's tracker."""
