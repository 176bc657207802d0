"""Tables and figures: published values beside those of a run."""
