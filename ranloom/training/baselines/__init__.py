"""Other systems as policies over the same engine: how they place work and how they adapt."""
