"""Transfers, optical windows and the planner that chooses them."""
