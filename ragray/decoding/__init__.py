"""Finding the answer y, and its probability, under the two marginal models."""
