"""`python -m experiments.rivals`."""

from experiments.command import run

run("rivals")
