"""From an SM reservation to useful compute beside it."""
