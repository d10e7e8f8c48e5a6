"""The harness that repairs by search, without a model."""
