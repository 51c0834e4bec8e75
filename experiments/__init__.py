"""Experiments beyond the paper, each run by `python -m experiments.NAME`; docs/reproduce.md lists them.

An experiment is a module with `run(setting)` and optionally `draw(results, folder)`, like those of `cnngp.paper`.
"""
