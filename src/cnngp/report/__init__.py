"""What a fitted model did, as values, figures and pages."""
