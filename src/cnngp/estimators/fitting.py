"""Pipeline of a fit, from checked images and targets through the recipe and the posterior to a `Fit`."""

from __future__ import annotations

import time
import warnings
from dataclasses import replace
from numbers import Integral
from typing import TYPE_CHECKING, Any

import numpy as np

from cnngp.common import memory
from cnngp.common.arrays import DataError, to_numpy
from cnngp.common.devices import ActualDevice, array_module, output_on
from cnngp.common.progress import progress_bar
from cnngp.gp.checks import as_matrix, float64_buffer
from cnngp.gp.exact import ExactGP, Noise
from cnngp.gp.leave_one_out import names_of
from cnngp.gp.objectives import searched_points
from cnngp.gp.posterior import Method, Posterior
from cnngp.kernel.kernel import Kernel
from cnngp.matrix.store.spec import OtherMatrixError

from .candidates import preparations_of
from .certificate import FitReport, checked_sample, measured
from .choosing import Choice, Tell, choose
from .door import ONLY_EXACT, Training
from .fit import Fit
from .kernels import RecipeKernel, kernel_of, unit_of
from .labels import Targets
from .recipe import Recipe
from .request import Learning, Request
from .training_images import Images, balanced, is_repeated, joined, left_out_together

if TYPE_CHECKING:
    from .learning import Learned

# Smallest number of groups for learn=, which uses one image of each.
_FEWEST_GROUPS = 20
# A solve of up to this many images is too short for a progress bar.
_SOLVED_AT_ONCE = 1500


def fit(request: Request, training: Training, targets: Targets, tell: Tell = None) -> Fit:
    """Find the groups that are left out together, choose the recipe, learn variances, compute posterior and report.

    `tell` is called at each stage: "choosing" with the number of recipes, "chosen" with the `Choice`, "kernel" with the
    kernel and the images, before the matrix is computed.
    """
    images, given = training.images, training.K is not None
    if images is None:
        made = _exact(request, training, targets, None, request.noise_rule(False))
        return replace(made, y=training.y, names=training.names)
    codes = images.codes()
    together = left_out_together(training.groups, codes)
    training = replace(training, groups=together if request.inducing is None else joined(together))
    recipe = request.recipe
    choice: Choice | None = None
    # With a given matrix, or variances to learn, there is nothing to compare.
    compare = not given and request.learning is None
    if recipe is None or (request.preparation == "loo" and compare):
        n, m = len(images), request.inducing
        found = choose(
            images,
            targets,
            request.make,
            n * (n - 1) // 2 if m is None else n * (int(m) if isinstance(m, Integral) else len(m)),
            request.effort,
            training.groups,
            among=None if recipe is None else preparations_of(recipe.main, images.at(slice(0, 1))),
            compare=compare,
            preparation=None if request.preparation == "loo" else request.preparation,
            tell=tell,
        )
        recipe, choice = found.recipe, found if recipe is None else None
    if tell is not None and choice is not None:
        tell("chosen", choice)
    learned = None
    if request.learning is not None:
        learned = _learned(request, request.learning, training, images, targets, recipe)
        recipe = replace(recipe, terms=(replace(recipe.main, network=learned.network),))
    kernel = kernel_of(recipe, images, request.make)
    noise = request.noise_rule(choice is not None)
    if learned is not None and learned.noise is not None and noise == 0 and request.inducing is None:
        noise = learned.noise * float(kernel.diag(images.some()).mean())
    elif isinstance(request.network, Recipe) and not isinstance(noise, str):
        noise = float(noise * unit_of(kernel, recipe, images))
    if tell is not None and not given:
        tell("kernel", (kernel, images))
    if request.inducing is None:
        made = _exact(request, training, targets, kernel, noise)
    else:
        made = _inducing(request, training, images, targets, kernel, noise)
    gp = made.posterior
    if isinstance(recipe.noise, str | None):
        known = None if given or images.streamed or gp.exact is None else to_numpy(gp.exact.variances)
        recipe = replace(recipe, noise=float(gp.noise / unit_of(kernel, recipe, images, known)))
    said = None if choice is None else str(choice)
    report = replace(made.report, repeated=int(is_repeated(codes).sum()), choice=said)
    made = replace(made, y=training.y, names=training.names, choice=choice, learned=learned)
    return replace(made, recipe=recipe, report=report)


def _learned(
    request: Request, asked: Learning, training: Training, images: Images, targets: Targets, recipe: Recipe
) -> Learned:
    """Learn the variances of the recipe's network."""
    from .learning import Problem, learned

    names = names_of(training.groups)
    if names is not None and (count := len(np.unique(names))) < _FEWEST_GROUPS:
        raise DataError(
            f"learn= takes one image of each group, and {count} groups are too few to learn from (at least "
            f"{_FEWEST_GROUPS}); fit without learn="
        )
    if (name := training.noise_of_single_images) is not None:
        raise DataError(f"learn= finds one noise for all images; fit without {name}, or without learn")
    if asked.rule == "loo" and targets.no_label_twice(training.groups):
        raise DataError(
            "learn='loo' judges an image by others of its class, and no class has two images; use 'likelihood'"
        )
    seed = request.seed()
    rows = balanced(targets.Y, asked.images, seed, training.groups)
    given = kernel_of(recipe, images, request.make)
    X = to_numpy(given.terms[0].images(images.at(rows)).array)
    kernel = Kernel(recipe.main.network, given.main.device, given.dtype, given.main.threads)
    noise = request.noise_rule(False)
    problem = Problem(kernel, X, targets.Y[rows], asked.rule, noise, request.amplitude, targets.slopes)
    return learned(problem, asked, seed)


def _exact(request: Request, training: Training, targets: Targets, kernel: RecipeKernel | None, noise: Noise) -> Fit:
    """Compute the exact posterior of all images, by Cholesky or, if the factor does not fit in memory, iteratively."""
    images, K, Y, store, weight = training.images, training.K, targets.Y, request.store, training.weight
    given = K is not None
    device: ActualDevice = "cpu" if kernel is None else kernel.device
    entry = 8 if kernel is None else np.dtype(kernel.dtype).itemsize
    by_default = request.noise is None and noise == "loo" and not isinstance(request.network, Recipe)
    method = _choose_solver(request.solver, len(Y), K, store is not None, entry, 0.0 if by_default else noise, device)
    if by_default and method == "cholesky":
        _choose_solver("cholesky", len(Y), K, store is not None, entry, noise, device)
    elif by_default:
        noise = 0.0
    if method != "cholesky":
        if (name := training.noise_of_single_images) is not None:
            raise DataError(ONLY_EXACT.format(name))
        if kernel is not None and not kernel.single:
            raise DataError(f"solver={method!r} is for a recipe of one term; use solver='cholesky' or inducing=")
    told = []
    if noise == "loo" and targets.no_label_twice(training.groups):
        noise = 0.0
        if not by_default:
            told = ["noise='loo' judges an image by others of its class, and no class has two images; noise 0 is used"]
    if noise == 0 and weight is not None and weight.min() < weight.max():
        told.append(
            "sample_weight and class_weight divide the noise, which is 0 here, so all weights above 0 count the same; "
            "give noise= a number, 'loo' or 'ml'"
        )
    for message in told:
        warnings.warn(message, UserWarning, stacklevel=5)
    checked: dict[str, Any] = {}
    compiling, computing, engine = 0.0, 0.0, "given matrix"
    if kernel is not None and images is not None:
        if not given:
            if store is None:  # a store may already hold the matrix
                compiling = kernel.prepare(images.at(slice(0, 1024)))
            began = time.perf_counter()
            try:
                K = kernel(images.pixels, store=store, output=output_on(device))
            except OtherMatrixError as error:
                prepared = [t.term.preparation for t in kernel.terms if not t.is_plain]
                if not prepared:
                    raise
                raise OtherMatrixError(
                    f"{error}. (This fit prepares its images, by {prepared[0]!r}, so its matrix is not that of the "
                    "plain images; preparation='plain' uses these)"
                ) from None
            computing, engine = time.perf_counter() - began, kernel.engine(images.shape[1:])
        checked = checked_sample(kernel, images.pixels, K, given)
    posterior: Posterior
    if method == "cholesky":
        K = as_matrix(K)
        precision = np.dtype(K.dtype if kernel is None or given else kernel.dtype)
        own = kernel is not None and not kernel.single and not given  # a sum of terms, already in float64
        A = float64_buffer(K, overwrite=own, on_gpu=device == "cuda")
        del K
        began = time.perf_counter()
        doing = "choosing the noise and solving" if isinstance(noise, str) else "solving"
        with warnings.catch_warnings(), progress_bar(1, doing, "solve", wanted=len(Y) > _SOLVED_AT_ONCE, delay=0.0):
            if by_default:  # the search is a default, so the report says this instead of a warning
                warnings.filterwarnings("ignore", r"noise='loo' chose the most noise", UserWarning)
            posterior = ExactGP(
                A,
                Y,
                noise=noise,
                amplitude=request.amplitude,
                point_noise=training.image_noise,
                errors=None if training.y_std is None else training.y_std**2,
                weights=weight,
                overwrite=True,
                rounding=float(np.finfo(np.float32 if precision.itemsize <= 4 else np.float64).eps),
                groups=training.groups,
                loss=targets.loss,
            )
    else:
        from cnngp.gp.iterative import IterativeGP
        from cnngp.gp.solving.matrices import SymmetricMatrix

        began = time.perf_counter()
        options: dict[str, Any] = {"noise": noise, "amplitude": request.amplitude, "groups": training.groups}
        posterior = IterativeGP(SymmetricMatrix(K), Y, array_module(device), seed=request.seed(), **options)
    numbers = checked | measured(posterior) | {"method": method, "compile_seconds": compiling}
    report = FitReport(len(Y), engine, computing, time.perf_counter() - began, **numbers)
    return Fit(posterior, report, kernel, X=None if images is None else images.pixels, store=store)


def _choose_solver(asked: Method, n: int, K: Any, store: bool, entry: int, noise: Noise, device: ActualDevice) -> str:
    """Choose Cholesky unless another solver was requested, or the matrix is in a store and its factor exceeds memory.

    `entry` is the size in bytes of an entry of the computed kernel matrix.
    """
    stored = store or isinstance(getattr(K, "chunks", None), tuple)
    # The computed matrix (unless it is given or read from a store by tiles) and the float64 buffer; "ml" also needs
    # eigenvectors and workspace for all points, "loo" for a few thousand.
    first = 0 if K is not None or stored else entry
    searched = searched_points(noise, n)
    need = (first + 8) * n * n + 24 * searched * searched
    what = f"an exact fit of {n:,} images"
    if asked == "auto":
        free = memory.available(device)
        if free is None or need <= free:
            return "cholesky"
        if stored and not searched:
            return "cg"
    elif asked != "cholesky":
        memory.require(first * n * n, what, device)
        return asked
    try:
        memory.require(need, what, device)
    except MemoryError as error:
        if searched:
            raise MemoryError(f"{error}; noise={noise!r} takes most of it, give a number") from None
        raise MemoryError(
            f"{error}; or keep the matrix on disk with store=, where it is solved by iteration; or use inducing="
        ) from None
    return "cholesky"


def _inducing(
    request: Request, training: Training, images: Images, targets: Targets, kernel: RecipeKernel, noise: Noise
) -> Fit:
    """Compute the posterior with inducing images, and its measured excess error over the exact one."""
    from .inducing import Source, asked_for, excess, fit_inducing, pilot

    groups = training.groups
    source = Source(images, kernel, targets.Y, groups, noise, targets.loss, request.seed(), request.store)
    asked = asked_for(images, request.inducing)
    compiling = 0.0 if request.store is not None else kernel.prepare(images.at(slice(0, 2)))
    start = time.perf_counter()
    posterior, chosen = fit_inducing(source, asked, request.amplitude)
    numbers: dict[str, Any] = {"method": "inducing", "compile_seconds": compiling}
    if targets.wrong is not None and (few := pilot(source, asked, targets.wrong)) is not None:
        left = posterior.leave_one_out()
        error = float(targets.wrong(to_numpy(left.mean), to_numpy(left.targets)).mean())
        of = left.rows if groups is None else np.unique(groups[left.rows])
        numbers["excess"], numbers["excess_uncertainty"] = excess(*few, error, len(of))
    fitted = time.perf_counter()
    sample = chosen.Z[:64]
    numbers |= checked_sample(kernel, sample, to_numpy(kernel(sample)), given=False) | measured(posterior)
    # One pass computes the kernels and sums the system, so its time counts as that of the kernels.
    report = FitReport(len(targets.Y), kernel.engine(images.shape[1:]), fitted - start, 0.0, **numbers)
    return Fit(posterior, report, kernel, X=chosen.Z, rows=chosen.rows, store=request.store)
