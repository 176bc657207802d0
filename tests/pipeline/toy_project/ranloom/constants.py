"""Constants."""

TWO = 2.0
