"""Inference from matrices: exact, iterative and through inducing points; probabilities from what they give."""
