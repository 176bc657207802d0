"""Training on virtual time, driven by the same coordinator core as the live runtime."""
