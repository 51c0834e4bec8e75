"""A fit from checked values: images and targets, a recipe that was asked for or chosen, a posterior, a `Fit`."""

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
from .request import Request
from .training_images import Images, balanced, is_repeated, joined, left_out_together

if TYPE_CHECKING:
    from .learning import Learned

# Of groups of images, of which learn= takes one image each.
_FEWEST_GROUPS = 20
# Times the largest variance: noise beyond it means that leave-one-out found nothing in the labels.
_ONLY_NOISE = 1e3
# A solve of no more images is over before anybody waits for it.
_SOLVED_AT_ONCE = 1500


def fit(request: Request, training: Training, targets: Targets, tell: Tell = None) -> Fit:
    """The pipeline: what is left out together, the recipe, the variances to learn, the posterior, the report.

    `tell` is called as stages are reached: "choosing" with the number of recipes, "chosen" with the `Choice`, "kernel"
    with the kernel and the images that it is about to be computed for.
    """
    images, given = training.images, training.K is not None
    if images is None:
        made = _exact(request, training, targets, None, request.noise_rule(False))
        return replace(made, y=training.y, names=training.names)
    codes = images.codes()
    together = left_out_together(training.groups, codes)
    training = replace(training, groups=together if request.inducing is None else joined(together))
    recipe, choice = _decided(request, training, images, targets, tell)
    if tell is not None and choice is not None:
        tell("chosen", choice)
    recipe, found = _learned(request, training, images, targets, recipe)
    kernel = kernel_of(recipe, images, request.make)
    noise = request.noise_rule(choice is not None)
    if found is not None and found.noise is not None and noise == 0 and request.inducing is None:
        noise = found.noise * float(kernel.diag(images.some()).mean())
    elif isinstance(request.network, Recipe) and not isinstance(noise, str):
        noise = float(noise * unit_of(kernel, recipe, images))
    if tell is not None and not given:
        tell("kernel", (kernel, images))
    if request.inducing is None:
        made = _exact(request, training, targets, kernel, noise)
    else:
        made = _inducing(request, training, images, targets, kernel, noise)
    gp, report = made.posterior, replace(made.report, repeated=int(is_repeated(codes).sum()))
    if isinstance(recipe.noise, str | None):
        known = None if given or images.streamed or gp.exact is None else to_numpy(gp.exact.variances)
        recipe = replace(recipe, noise=float(gp.noise / unit_of(kernel, recipe, images, known)))
    if choice is not None:
        seconds = None if given or request.store is not None else report.kernel_seconds
        only_noise = request.noise is None and gp.noise > _ONLY_NOISE * gp.largest_variance
        said = choice.text(seconds) + ("; to this network the targets look like noise" if only_noise else "")
        report = replace(report, choice=said)
    return replace(made, recipe=recipe, report=report, choice=choice, learned=found, y=training.y, names=training.names)


def _decided(
    request: Request, training: Training, images: Images, targets: Targets, tell: Tell
) -> tuple[Recipe, Choice | None]:
    """The recipe that was asked for, or one that is chosen; why, where the network was chosen.

    Where a matrix is given, or variances are to be learned, there is nothing to compare.
    """
    asked, compare = request.recipe, training.K is None and request.learning is None
    if asked is not None and (request.preparation != "loo" or not compare):
        return asked, None
    n, m = len(images), request.inducing
    choice = choose(
        images,
        targets,
        request.make,
        n * (n - 1) // 2 if m is None else n * (int(m) if isinstance(m, Integral) else len(m)),
        request.effort,
        training.groups,
        among=None if asked is None else preparations_of(asked.main, images.at(slice(0, 1))),
        compare=compare,
        preparation=None if request.preparation == "loo" else request.preparation,
        tell=tell,
    )
    return choice.recipe, choice if asked is None else None


def _learned(
    request: Request, training: Training, images: Images, targets: Targets, recipe: Recipe
) -> tuple[Recipe, Learned | None]:
    """The recipe with the network's variances learned, where that was asked for."""
    asked, groups, names = request.learning, training.groups, names_of(training.groups)
    if asked is None:
        return recipe, None
    from .learning import Problem, learned

    if names is not None and (count := len(np.unique(names))) < _FEWEST_GROUPS:
        raise DataError(
            f"learn= takes one image of each group, and {count} groups are too few to learn from (at least "
            f"{_FEWEST_GROUPS}); fit without learn="
        )
    if training.image_noise is not None or training.weight is not None:
        raise DataError(
            "learn= finds one noise for all images; fit without image_noise, sample_weight and class_weight, or "
            "without learn"
        )
    if asked.rule == "loo" and targets.no_label_twice(groups):
        raise DataError(
            "learn='loo' judges an image by others of its class, and no class has two images; use 'likelihood'"
        )
    seed = request.seed()
    rows = balanced(targets.Y, asked.images, seed, groups)
    given = kernel_of(recipe, images, request.make)
    X = to_numpy(given.terms[0].once(images.at(rows)).array)
    kernel = Kernel(recipe.main.network, given.main.device, given.dtype, given.main.threads)
    noise = request.noise_rule(False)
    problem = Problem(kernel, X, targets.Y[rows], asked.rule, noise, request.amplitude, targets.slopes)
    found = learned(problem, asked, seed)
    return replace(recipe, terms=(replace(recipe.main, network=found.network),)), found


def _exact(request: Request, training: Training, targets: Targets, kernel: RecipeKernel | None, noise: Noise) -> Fit:
    """The posterior of all images, by a factor of their matrix or, where that does not fit, by iteration over it."""
    images, K, Y, store = training.images, training.K, targets.Y, request.store
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
        for name, known in (("image_noise", training.image_noise), ("sample_weight or class_weight", training.weight)):
            if known is not None:
                raise DataError(ONLY_EXACT.format(name))
        if kernel is not None and not kernel.single:
            raise DataError(f"solver={method!r} is for a recipe of one term; use solver='cholesky' or inducing=")
    if noise == "loo" and targets.no_label_twice(training.groups):
        noise = 0.0
        if not by_default:
            warnings.warn(
                "noise='loo' judges an image by others of its class, and no class has two images; noise 0 is used",
                UserWarning,
                stacklevel=5,
            )
    if noise == 0 and training.weight is not None and training.weight.min() < training.weight.max():
        warnings.warn(
            "sample_weight and class_weight divide the noise, which is 0 here, so all weights above 0 count the same; "
            "give noise= a number, 'loo' or 'ml'",
            UserWarning,
            stacklevel=5,
        )
    compiling = 0.0
    if kernel is not None and images is not None and not given and store is None:
        compiling = kernel.prepare(images.at(slice(0, 1024)))  # with a store there may be nothing left to compute
    start = time.perf_counter()
    if kernel is not None and images is not None and not given:
        K = _matrix(kernel, images, store)
    computed = begun = time.perf_counter()
    checked = {} if kernel is None or images is None else checked_sample(kernel, images.pixels, K, given)
    posterior: Posterior
    if method == "cholesky":
        K = as_matrix(K)
        precision = np.dtype(K.dtype if kernel is None or given else kernel.dtype)
        own = kernel is not None and not kernel.single and not given  # a sum, which is in float64 already
        A = float64_buffer(K, overwrite=own, on_gpu=device == "cuda")
        del K
        begun = time.perf_counter()
        doing = "choosing the noise and solving" if isinstance(noise, str) else "solving"
        with warnings.catch_warnings(), progress_bar(1, doing, "solve", wanted=len(Y) > _SOLVED_AT_ONCE, delay=0.0):
            if by_default:  # nobody asked for a search, so the report says it instead
                warnings.filterwarnings("ignore", r"noise='loo' chose the most noise", UserWarning)
            posterior = ExactGP(
                A,
                Y,
                noise=noise,
                amplitude=request.amplitude,
                point_noise=training.image_noise,
                weights=training.weight,
                overwrite=True,
                rounding=float(np.finfo(np.float32 if precision.itemsize <= 4 else np.float64).eps),
                groups=training.groups,
                loss=targets.loss,
            )
    else:
        from cnngp.gp.iterative import IterativeGP
        from cnngp.gp.solving.matrices import SymmetricMatrix

        posterior = IterativeGP(
            SymmetricMatrix(K),
            Y,
            array_module(device),
            noise=noise,
            amplitude=request.amplitude,
            seed=request.seed(),
            groups=training.groups,
        )
    report = FitReport(
        len(Y),
        "given matrix" if given or kernel is None or images is None else kernel.engine(images.shape[1:]),
        computed - start,
        time.perf_counter() - begun,
        method=method,
        compile_seconds=compiling,
        **checked | measured(posterior),
    )
    return Fit(posterior, report, kernel, X=None if images is None else images.pixels, store=store)


def _choose_solver(asked: Method, n: int, K: Any, store: bool, entry: int, noise: Noise, device: ActualDevice) -> str:
    """Cholesky unless another solver was asked for, or the matrix is in a store and its factor is beyond memory.

    `entry` is the size in bytes of an entry of the kernel matrix as it is computed.
    """
    stored = store or isinstance(getattr(K, "chunks", None), tuple)
    # The matrix as it comes (from a store it comes by tiles), the float64 buffer; "ml" needs eigenvectors and workspace
    # for all points, "loo" for a few thousand.
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


def _matrix(kernel: RecipeKernel, images: Images, store: Any) -> Any:
    if store is None:
        return kernel.gram(images.pixels, output=output_on(kernel.device))
    try:
        return kernel.gram(images.pixels, store=store)
    except OtherMatrixError as error:
        prepared = [t.term.preparation for t in kernel.terms if not t.is_plain]
        if not prepared:
            raise
        raise OtherMatrixError(
            f"{error}. (This fit prepares its images, by {prepared[0]!r}, so its matrix is not that of the "
            "plain images; preparation='plain' uses these)"
        ) from None


def _inducing(
    request: Request, training: Training, images: Images, targets: Targets, kernel: RecipeKernel, noise: Noise
) -> Fit:
    """The posterior through inducing images, with its measured distance from the exact one."""
    from .inducing import Source, asked_for, excess, fit_inducing, pilot

    groups = training.groups
    source = Source(images, kernel, targets.Y, groups, noise, targets.loss, request.seed(), request.store)
    asked = asked_for(images, request.inducing)
    compiling = 0.0 if request.store is not None else kernel.prepare(images.at(slice(0, 2)))
    start = time.perf_counter()
    posterior, chosen = fit_inducing(source, asked, request.amplitude)
    above: dict[str, Any] = {}
    if targets.wrong is not None and (few := pilot(source, asked, targets.wrong)) is not None:
        left = posterior.leave_one_out()
        error = float(targets.wrong(to_numpy(left.mean), to_numpy(left.targets)).mean())
        of = left.rows if groups is None else np.unique(groups[left.rows])
        above = dict(zip(("excess", "excess_uncertainty"), excess(*few, error, len(of)), strict=True))
    begun = time.perf_counter()
    sample = chosen.Z[:64]
    report = FitReport(
        len(targets.Y),
        kernel.engine(images.shape[1:]),
        begun - start,
        time.perf_counter() - begun,
        method="inducing",
        compile_seconds=compiling,
        **checked_sample(kernel, sample, to_numpy(kernel(sample)), given=False) | measured(posterior) | above,
    )
    return Fit(posterior, report, kernel, X=chosen.Z, rows=chosen.rows, store=request.store)
