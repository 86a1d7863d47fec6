"""Figures that the documentation quotes, each printed by a command."""
