"""The paper's experiments through the public interface, each against its published numbers: `cnngp reproduce`.

An experiment is a module with two functions. `run(setting)` computes it piece by piece through `setting.run`, so that a
killed run goes on, and returns what `results.Results` says. `draw(results, folder)`, where there is something to draw,
writes its figures, each as PNG and as SVG, and returns their paths.
"""
