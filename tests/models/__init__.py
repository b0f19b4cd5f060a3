"""Tests of the bundled model and of the scripts which make models."""
