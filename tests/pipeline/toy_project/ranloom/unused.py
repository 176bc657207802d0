"""Imported for types only."""
