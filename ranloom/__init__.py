"""RANLoom: compute sharing between a 5G base station and foundation-model training.

The library knows nothing of Prefect, DVC or MLflow; import what you need from its
packages, which depend on each other only from left to right:

``nr < ldpc | gpu | traffic < lut < mac < spare | federated < transport < training < report``
"""
