"""The way back through operations, for gradients: through closed forms and series, and the plan that has both."""
