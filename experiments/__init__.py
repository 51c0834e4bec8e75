"""Experiments that go beyond the paper, each run by `python -m experiments.NAME`; docs/reproduce.md lists them.

An experiment is a module with `run(setting)` and `draw(results, folder)`, as those of `cnngp.paper`.
"""
