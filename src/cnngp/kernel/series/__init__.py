"""The Hermite series of `Elementwise`: quadrature, tables, and their packed form for engines."""
