"""The Hermite series of `Elementwise`: quadrature, tables, and how engines read them."""
