"""One table of the options of all commands, and the Click commands built from it.

A command is a function of one argument, `asked`, whose attributes are the values of the command's options.
"""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Self

import click
from click import Choice

from .output import speaking

Asked = SimpleNamespace
"""Values of a command's options, from the command line or the defaults."""


class Kind(click.ParamType):  # type: ignore[type-arg]
    """Type of an option: its name in the help, its parser, and what the error message says was expected."""

    def __init__(self, name: str, parse: Callable[[str], Any] = str, expected: str = "") -> None:
        self.name, self._parse, self._expected = name, parse, expected

    def convert(self, value: Any, param: Any, ctx: Any) -> Any:
        try:
            return self._parse(value) if isinstance(value, str) else value
        except ValueError:
            self.fail(f"{value or repr('')}: expected {self._expected}", param, ctx)


def _shape(least: int, most: int) -> Callable[[str], tuple[int, ...]]:
    """Parser for `least` to `most` positive integers separated by commas or crosses."""

    def parse(value: str) -> tuple[int, ...]:
        sizes = tuple(map(int, re.split(r"[,x×]", value)))
        if not least <= len(sizes) <= most or min(sizes) < 1:
            raise ValueError
        return sizes

    return parse


def _widths(value: str) -> tuple[int, ...]:
    """Parse at least two different positive integers separated by commas."""
    widths = tuple(map(int, value.split(",")))
    if len(set(widths)) < 2 or min(widths) < 1:
        raise ValueError
    return widths


def _number(least: float, *words: str) -> Callable[[str], str | float]:
    """Parser for a finite number of at least `least`, or one of the words that choose it, such as loo."""

    def parse(value: str) -> str | float:
        if value in words:
            return value
        number = float(value)
        if not least <= number < math.inf:
            raise ValueError
        return number

    return parse


def _not_empty(value: str) -> str:
    """Reject an empty source: it would mean the current folder."""
    if not value.strip():
        raise ValueError
    return value


_SHARE = click.FloatRange(0.0, 1.0, min_open=True, max_open=True)
_FLAG, _NUMBER, _FROM_0 = Kind("flag"), click.IntRange(1), click.IntRange(0)
_FILE, _FOLDER, _TABLE, _PATHS = Kind("FILE", Path), Kind("FOLDER", Path), Kind("FILE.csv", Path), Kind("PATHS", Path)
_DATA = Kind("DATA", _not_empty, "the name of a data set, an .npz file or a folder of images; this folder itself is .")
_STORE, _ADDRESS, _NAME = Kind("STORE"), Kind("ADDRESS"), Kind("NAME")
_WORD, _SCALE = "NUMBER|ml|loo", "ml, loo or a positive number"
_SIZE = Kind("HxW", _shape(1, 2), "a height and a width such as 48x64, or one number for both")
_SHAPES = "the channels, then the sizes, such as 1,28,28 for images or 1,128 for signals"
_NOISE = "a variance of 0 or more, ml to choose it by likelihood, or loo by leave-one-out"
_WIDTHS = "at least two different positive integers with commas, such as 4,16,64"
_PREPARATIONS = ("plain", "contrast", "detail", "edges", "normalised", "standardised", "zca", "patches", "spectral")
_PREPARED = f"How each image is prepared: {', '.join(_PREPARATIONS)}"


@dataclass(frozen=True)
class Option:
    """An option of some commands. A name in capitals is an argument; a flag that defaults to on also gets --no-NAME."""

    name: str
    commands: str
    kind: click.ParamType  # type: ignore[type-arg]
    default: Any = None
    short: str = ""
    help: str = ""

    def says(self, help: str) -> Self:
        """Return the option with its help text."""
        return replace(self, help=help)

    @property
    def parameter(self) -> click.Parameter:
        """The option as a Click parameter."""
        word, kind = f"--{self.name.replace('_', '-')}", self.kind
        if self.name.isupper():
            many, needed = -1 if kind is _PATHS else 1, self.name != "NAME"
            named = self.name if isinstance(kind, Choice) else None
            return click.Argument([self.name.lower()], metavar=named, type=kind, required=needed, nargs=many)
        if kind is _FLAG:
            words = [f"{word}/--no-{self.name}" if self.default else word, *filter(None, [self.short])]
            return click.Option(words, is_flag=True, default=self.default, help=self.help)
        taken = kind.name if isinstance(kind, Kind) else "|".join(getattr(kind, "choices", "N"))
        metavar = taken if len(taken) < 40 else "NAME"
        repeated = self.name == "full"
        return click.Option([word], type=kind, metavar=metavar, default=self.default, multiple=repeated, help=self.help)


_FITS = "classify regress"
_READS = f"{_FITS} gram search sample"
_KERNELS = f"{_FITS} gram search"
_PAPER = "reproduce experiment"
_EVERY = f"{_READS} predict view networks info {_PAPER}"

OPTIONS = (
    # Arguments
    Option("MODEL", "predict view", _FILE).says(
        "A file that a fit or an estimator's save wrote, or a folder with model.gp."
    ),
    Option("IMAGES", "predict", _PATHS).says("Image files, or folders of them."),
    Option("NAME", "networks", _NAME).says("A network to show layer by layer: a name or a JSON file."),
    Option("EXPERIMENT", "reproduce", Choice(["table1", "figure2", "figure3", "all"])).says(
        "What to reproduce: table1, figure2, figure3 or all."
    ),
    # Images
    Option("data", "classify gram search sample", _DATA, "digits").says(
        "digits, mnist, fashion_mnist, cifar10, an .npz file, a folder with one sub-folder per class, or a table "
        "(.csv) of image files."
    ),
    Option("data", "regress", _DATA).says("A table (.csv) of image files with a column of numbers, or an .npz file."),
    Option("columns", _READS, _NAME).says("Column of a table with the labels or numbers."),
    Option("split", f"{_FITS} gram", Choice(["standard", "paper"]), "standard").says(
        "The paper's has validation images."
    ),
    Option("train", _KERNELS, _NUMBER).says("Use only the first N training images."),
    Option("validation", "search", _NUMBER).says("Use only the first N validation images."),
    Option("test", _FITS, _FROM_0).says("Use only the first N test images; 0 makes no test set and fits all images."),
    Option("test", "search", _FLAG, False).says("Also give the chosen network's error on the test images."),
    Option("images", "sample", _NUMBER, 4).says("Number of images, taken from the start of the training set."),
    Option("features", f"{_FITS} gram", Kind("FILE.npy")).says(
        "Rows of numbers to fit instead of pixels, as of a pretrained network: one for each row of a table."
    ),
    Option("size", _READS, _SIZE).says("Resize the images to this height and width, such as 48x64, or 48."),
    Option("aspect", _READS, Choice(["squash", "pad"]), "squash").says(
        "Stretch images of another shape, or add borders."
    ),
    Option("skip_bad", _READS, _FLAG, False).says("Leave out files that cannot be read, instead of stopping."),
    Option("max_pixels", f"{_READS} predict view", _NUMBER).says("Refuse larger image files; by default 40 million."),
    Option("input_shape", _READS, Kind("C,H,W", _shape(2, 4), _SHAPES)).says("Shape of each row of an .npz file."),
    Option("input_shape", "networks", Kind("C,H,W", _shape(1, 4), _SHAPES), "1,28,28").says("Shape of an image."),
    # Networks and fits
    Option("network", f"{_FITS} gram", _NAME, "auto").says("auto, a name from `cnngp networks`, or a JSON file."),
    Option("network", "sample", _NAME, "small_cnn").says("auto, a name from `cnngp networks`, or a JSON file."),
    Option("recipe", f"{_FITS} gram", Kind("FILE.json", Path)).says("A recipe.to_json() instead of a network."),
    Option("space", "search", Kind("SPACE"), "paper-cnn").says("paper-cnn, paper-residual or pooled."),
    Option("noise", _FITS, Kind(_WORD, _number(0.0, "ml", "loo"), _NOISE)).says(
        "Noise variance in the kernel's units, or ml or loo to choose it; by default loo with --network auto and for "
        "numbers, else 0."
    ),
    Option("amplitude", _FITS, Kind(_WORD, _number(1e-300, "ml", "loo"), _SCALE), "ml").says("Scale of the kernel."),
    Option("learn", _FITS, Choice(["loo", "likelihood"])).says("Learn the network's variances."),
    Option("effort", _FITS, Choice(["quick", "normal", "best"]), "normal").says("What choosing may cost."),
    Option("preparation", _FITS, Choice([*_PREPARATIONS, "loo"])).says(
        f"{_PREPARED}; loo chooses one by leave-one-out; by default chosen with auto, plain with others."
    ),
    Option("preparation", "gram", Choice([*_PREPARATIONS]), "plain").says(f"{_PREPARED}."),
    Option("draws", "search", _NUMBER, 27).says("Number of networks in all, with those in the study."),
    Option("full", "search", Kind("N[@IMAGES]")).says(
        "Score the best again: 3 takes the best three with all training images, 20@10000 the best twenty with 10,000. "
        "May be repeated."
    ),
    Option("sampler", "search", Choice(["random", "tpe"]), "random").says("tpe learns from the draws before."),
    Option("channels", "sample", Kind("N,N,…", _widths, _WIDTHS), "4,16,64").says("Channels of the first stage."),
    Option("samples", "sample", click.IntRange(20), 1000).says("Number of networks drawn at each width."),
    Option("outputs", "sample", _NUMBER, 64).says("Outputs per network; more of them make the estimates more precise."),
    Option("seed", f"search sample {_PAPER}", _FROM_0, 0).says("The same seed draws the same networks."),
    Option("coverage", "predict view", _SHARE).says("How often sets or intervals are to hold the truth."),
    Option("quick", _PAPER, _FLAG, False).says("A small version that takes minutes on two cores."),
    # Machines
    Option("device", f"{_KERNELS} predict view {_PAPER}", Choice(["auto", "cpu", "cuda"]), "auto").says(
        "auto takes a GPU if there is one."
    ),
    Option("device", "sample", Choice(["cpu", "cuda"]), "cpu").says("Where the finite networks run: cpu or cuda."),
    Option("dtype", _KERNELS, Choice(["float32", "float64"]), "float32").says("Precision of the kernel."),
    Option("threads", f"{_KERNELS} {_PAPER}", _NUMBER).says("CPU threads; by default, all."),
    Option("kind", _KERNELS, Choice(["nngp", "ntk"]), "nngp").says("The kernel, or the tangent kernel."),
    Option("processes", "search", _NUMBER, 1).says("Number of processes on this machine."),
    Option("scheduler", f"gram search {_PAPER}", _ADDRESS).says("A Dask cluster, such as tcp://host:8786."),
    Option("budget", _PAPER, Kind("SECONDS", _number(1e-9), "a positive number of seconds")).says(
        "Start no piece that would end after so many seconds."
    ),
    # Files
    Option("store", _FITS, _STORE).says("Keep the kernels in this folder or fsspec URL, and continue from there."),
    Option("store", "gram", _STORE).says("Where the matrix goes: a folder or an fsspec URL."),
    Option("tile", "gram", _NUMBER).says("Side of a tile in images; by default a few seconds of work."),
    Option("verify", "gram", _FLAG, True).says("Check the tiles that are already in the store."),
    Option("plan", "gram", _FLAG, False).says("Show what it would cost, after timing a few pairs; nothing is stored."),
    Option("status", "gram", _STORE).says("Show what a store holds."),
    Option("study", "search", _NAME).says("Journal or database URL of all draws; by default in OUTPUT."),
    Option("best", "search", _FILE).says("File for the best network; by default OUTPUT/best.json."),
    Option("output", _FITS, _FOLDER).says("Folder for report and model; by default out/DATA-NETWORK-N."),
    Option("output", "search", _FOLDER).says(
        "Folder for results and the best network; by default out/search-DATA-SPACE."
    ),
    Option("output", "sample", _FILE, "sample.png").says("File for the picture: .png, .pdf or .svg."),
    Option("out", _PAPER, _FOLDER).says("Folder for the results and the finished pieces."),
    Option("data", _PAPER, _FOLDER).says("Folder that contains mnist/; by default CNNGP_DATA, then the cache."),
    Option("model", _FITS, _FLAG, True).says("Save the model; the file takes 2·N² bytes for N images in float32."),
    Option("suspects", _FITS, _TABLE).says("Write a table of all training images, the most suspect labels first."),
    Option("labels", "view", _TABLE).says("CSV file for decisions about labels; by default MODEL.labels.csv."),
    Option("suspects", "view", _NUMBER).says("Show so many; by default those beyond the model's errors."),
    Option("port", "view", click.IntRange(0, 65_535), 0).says("Port on this machine; 0 takes a free one."),
    Option("browser", "view", _FLAG, True).says("Open the page in a browser."),
    # What is printed
    Option("verbose", _FITS, _FLAG, False, "-v").says("Also print what was measured about the fit, as in the report."),
    Option("json", _EVERY, _FLAG, False).says("Print JSON to standard output and everything else to standard error."),
    Option("quiet", _EVERY, _FLAG, False, "-q").says("Print only warnings, errors and JSON."),
)


_WORDS = "cnngp.words"  # key of the command line as it was typed
SETTINGS = {"help_option_names": ["-h", "--help"], "show_default": True}


def of_command(command: str) -> list[Option]:
    """Return the options of a command."""
    return [option for option in OPTIONS if command in option.commands.split()]


class Interrupted(Exception):
    """Ctrl-C with the command's message, which Click would drop: it ends the process silently."""


class Command(click.Command):
    """The command `name`, which calls `run`: the docstring of `run` is its help, its options come from the table."""

    def __init__(self, name: str, run: Callable[[Asked], None], examples: Sequence[str] = ()) -> None:
        def command(**given: Any) -> None:
            context = click.get_current_context()
            words = f"{context.command_path} {shlex.join(context.meta[_WORDS])}".strip()
            try:
                with speaking(given["json"], given["quiet"]):
                    run(Asked(**given, words=words))
            except KeyboardInterrupt as error:
                raise Interrupted(str(error) or "interrupted") from None

        lines = ["Example:" if len(examples) == 1 else "Examples:", *examples]
        super().__init__(
            name,
            params=[option.parameter for option in of_command(name)],
            callback=command,
            help=run.__doc__,
            epilog="\b\n" + "\n  ".join(lines) if examples else None,
            context_settings=SETTINGS,
        )

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        ctx.meta[_WORDS] = list(args)
        return super().parse_args(ctx, args)

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Also list the arguments with their help, which Click leaves out."""
        arguments = [(option.name, option.help) for option in of_command(str(self.name)) if option.name.isupper()]
        if arguments:
            with formatter.section("Arguments"):
                formatter.write_dl(arguments)
        super().format_options(ctx, formatter)
