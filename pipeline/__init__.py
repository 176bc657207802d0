"""What a stage is, and how DVC, MLflow and the command line see it."""
