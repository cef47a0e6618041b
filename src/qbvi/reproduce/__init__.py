"""The paper's experiments, our numbers beside the published ones: ``qbvi reproduce`` (docs/reproduce.md)."""
