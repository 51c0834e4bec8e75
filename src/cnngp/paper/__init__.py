"""The paper's experiments beside their published numbers: `cnngp reproduce`.

An experiment is a module with two functions. `run(setting)` computes it piece by piece through `setting.run`, so that a
killed run can continue, and returns `results.Results`. The optional `draw(results, folder)` writes its figures, each as
PNG and as SVG, and returns their paths.
"""
