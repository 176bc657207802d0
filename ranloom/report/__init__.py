"""Tables and figures: published values beside reproduced ones."""
