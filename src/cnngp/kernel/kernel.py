"""`Kernel`: a network's covariance function on arrays. Checks the input, chooses the engine, returns matrices."""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, overload

import numpy as np
from numpy.typing import NDArray

from cnngp.common.arrays import DataError, Output, as_images, check_output, to_numpy
from cnngp.common.devices import ActualDevice, Device, actual_device
from cnngp.common.progress import progress_bar
from cnngp.network.composition import check_network
from cnngp.network.layers import Network, NetworkError, as_layer
from cnngp.network.walk import has_bare_function

from .check import LOOKED_AT, Verdict, check_gradient, remembered
from .check import check as compared
from .engines.base import DiagonalEngine, Engine, GradientEngine, TangentEngine, check_pixels, checked_weights
from .making import checked, make_engine, make_gradient
from .program import Kind, check_slopes
from .symmetry import SymmetricEngine, Symmetry, check_symmetry

if TYPE_CHECKING:
    import torch

    from .sklearn_kernel import NetworkKernel


class Kernel:
    """Covariance function of an infinitely wide network, or its neural tangent kernel.

    `kernel(X)` is the exactly symmetric matrix of one set of images with the exact diagonal, `kernel(X, Z)` the matrix
    of two sets, `kernel.diag(X)` the diagonal alone. An entry depends only on its two images: it is bit-identical for
    any batch, number of threads and order of the arguments (with pools, the order may change the last bits).

    Parameters
    ----------
    network : the layers, such as `Sequential(Conv(3), ReLU(), Dense())` or `zoo.resnet(32)`.
    device : "cpu", "cuda", or "auto" for the GPU if there is one.
    dtype : "float32" (relative error about 1e-7) or "float64".
    threads : CPU threads; by default NUMBA_NUM_THREADS or OMP_NUM_THREADS if set, else every core.
    kind : "nngp" for the kernel of the Gaussian process, the covariance of the network's outputs; "ntk" for the neural
        tangent kernel, the covariance of their gradients, which describes wide networks trained by gradient descent
        (docs/ntk.md). `both` computes the two in one pass.
    check : compare the kernel of two images with the float64 reference before the first matrix of each network, image
        shape and engine, and raise `WrongKernelError` if they are far apart. This takes a fraction of a second, and
        the result is cached on disk.
    symmetry : "flip" averages the kernel over left and right, k(x, z) and k(x, mirrored z); "d4" averages over the
        eight rotations and reflections of a square.

    >>> import numpy as np
    >>> from cnngp import Conv, Dense, Kernel, ReLU, Sequential
    >>> kernel = Kernel(Sequential(Conv(3), ReLU(), Dense()), device="cpu", dtype="float64")
    >>> X = np.arange(32.0).reshape(2, 1, 4, 4) / 32
    >>> K = kernel(X)
    >>> K.round(4)
    array([[0.0251, 0.066 ],
           [0.066 , 0.1933]])
    >>> bool((kernel(X[:1], X)[0, 1] == K[0, 1]) and (kernel.diag(X) == K.diagonal()).all())
    True
    """

    def __init__(
        self,
        network: Network,
        device: Device = "auto",
        dtype: str = "float32",
        threads: int | None = None,
        kind: Kind = "nngp",
        check: bool = True,
        symmetry: Symmetry | None = None,
    ) -> None:
        layer = as_layer(network, "Kernel: network")
        check_network(layer)
        self.dtype, self.threads = checked(device, dtype, threads, kind)
        self.kind: Kind = kind
        if kind == "ntk":
            check_slopes(layer)
        self.network: Network = layer
        self._asked: Device = device
        self.device: ActualDevice = actual_device(device)
        if not isinstance(check, bool):
            raise ValueError(f"Kernel: check={check!r} is not True or False")
        self.check = check
        check_symmetry(symmetry)
        self.symmetry: Symmetry | None = symmetry
        self._kept: dict[Hashable, Any] = {}
        """Engines, each made at first use."""
        self._verdicts: dict[tuple[Kind, tuple[int, ...]], Verdict | None] = {}
        self._fingerprint = layer.fingerprint if has_bare_function(layer) else None

    @overload
    def __call__(
        self, X: Any, Z: Any = None, *, output: Literal["numpy"] = "numpy", progress: bool = True
    ) -> NDArray[Any]: ...
    @overload
    def __call__(self, X: Any, Z: Any = None, *, output: Literal["torch"], progress: bool = True) -> torch.Tensor: ...
    @overload
    def __call__(self, X: Any, Z: Any = None, *, output: Output, progress: bool = True) -> Any: ...
    def __call__(self, X: Any, Z: Any = None, *, output: Output = "numpy", progress: bool = True) -> Any:
        """Compute K(X, Z), shape (N, M), or K(X, X) with its exact diagonal; the tangent kernel Θ if `kind` is "ntk".

        `output` selects a "numpy", "cupy" or "torch" array. A progress bar appears on a terminal after a second.
        """
        engine, x, z = self._given(X, Z, output, self.kind)
        with progress_bar(_pairs(x, z), "kernel", "pair", wanted=progress) as bar:
            if z is None:
                return engine.symmetric(x, output, bar.update)
            return engine.cross(x, z, output, bar.update)

    def both(
        self, X: Any, Z: Any = None, *, output: Output = "numpy", progress: bool = True
    ) -> tuple[NDArray[Any], NDArray[Any]]:
        """Compute (K, Θ), the GP's kernel and the tangent kernel, in one pass; `kind` does not matter.

        >>> import numpy as np
        >>> from cnngp import Dense, Kernel, ReLU, Sequential
        >>> K, theta = Kernel(Sequential(Dense(), ReLU(), Dense()), device="cpu").both(np.eye(2))
        >>> K.round(4)
        array([[0.25  , 0.0796],
               [0.0796, 0.25  ]], dtype=float32)
        >>> theta.round(4)
        array([[0.5   , 0.0796],
               [0.0796, 0.5   ]], dtype=float32)
        """
        self._refuse_symmetry("both")
        engine, x, z = self._given(X, Z, output, "ntk")
        assert isinstance(engine, TangentEngine)
        with progress_bar(_pairs(x, z), "kernel", "pair", wanted=progress) as bar:
            return engine.both(x, z, output, bar.update)

    def _given(self, X: Any, Z: Any, output: Output, kind: Kind) -> tuple[Engine, Any, Any]:
        """Return the engine and both sets of images in its form, after the range check and the self-check."""
        check_output(output)
        x, z = self._sets(X, Z)
        engine = self.engine_for(x.shape[1:], kind)
        if self.check:
            self._verify(x, kind)
        if z is None:
            return engine, _flat(x), None
        for images in (x, z):
            engine.diagonal(_flat(images))  # raises RangeError
        return engine, _flat(x), _flat(z)

    def diag(self, X: Any) -> NDArray[Any]:
        """Diagonal of `kernel(X)`, K(x, x) for each image, at the cost of N images instead of N² pairs."""
        x = self._images(X, "X")
        return self.engine_for(x.shape[1:]).diagonal(_flat(x)).astype(self.dtype)

    @overload
    def gradient(
        self, X: Any, Z: Any, G: Any, *, wrt: Literal["parameters"] = "parameters", progress: bool = True
    ) -> dict[str, float]: ...
    @overload
    def gradient(self, X: Any, Z: Any, G: Any, *, wrt: Literal["images"], progress: bool = True) -> Any: ...
    def gradient(self, X: Any, Z: Any, G: Any, *, wrt: str = "parameters", progress: bool = True) -> Any:
        """Gradient Σ_ij G_ij ∂K_ij/∂θ for every parameter θ of the network, by the names of `network.parameters()`.

        With G = ∂L/∂K this is the gradient of any L that depends on the parameters through K, such as a likelihood. G
        has the shape of K(X, Z), or of K(X) including the diagonal if Z is None.

        `wrt="images"` returns Σ_ij G_ij ∂K_ij/∂pixel for every pixel instead: two arrays of the shapes of X and Z, or
        one of the shape of X if Z is None. On a GPU the first gradient of a network is compared with the CPU's on two
        of the images if `check` is True.

        >>> import numpy as np
        >>> from cnngp import Dense, Kernel, ReLU, Sequential
        >>> kernel = Kernel(Sequential(Dense(2.0, 0.5), ReLU(), Dense()), device="cpu")
        >>> kernel.gradient(np.eye(2), None, np.ones((2, 2)))["layers[0].weight_var"]
        0.6500...
        """
        if self.kind != "nngp":
            raise ValueError("gradient is for the kernel of the Gaussian process; use Kernel(network, kind='nngp')")
        self._refuse_symmetry("gradient")
        x, z = self._sets(X, Z)
        if wrt not in ("parameters", "images"):
            raise ValueError(f"Kernel.gradient: wrt={wrt!r} is not 'parameters' or 'images'")
        weights = checked_weights(G, (len(x), len(x if z is None else z)))
        shape, to_images = tuple(x.shape[1:]), wrt == "images"
        engine = self.gradient_engine(shape, to_images)
        variances = engine if isinstance(engine, DiagonalEngine) else self.engine_for(shape)
        for images in (x,) if z is None else (x, z):
            variances.diagonal(_flat(images))  # raises RangeError
        if self.device == "cpu":
            x, z = to_numpy(x), None if z is None else to_numpy(z)
        elif self.check:
            remembered(
                self.network,
                (shape, engine.identity),
                lambda: check_gradient(
                    self.network, np.dtype(self.dtype), engine,
                    lambda dtype: make_gradient(self.network, shape, to_images, "cpu", dtype, self.threads),
                    partial(self._images, name="X"), x,
                ),
            )  # fmt: skip
        with progress_bar(_pairs(x, z), "kernel", "pair", wanted=progress) as bar:
            found = engine.gradient(_flat(x), None if z is None else _flat(z), weights, bar.update)
        if found.of_x is None:
            return found.parameters
        of_x = found.of_x.reshape(x.shape)
        return of_x if z is None or found.of_z is None else (of_x, found.of_z.reshape(z.shape))

    def prepare(self, X: Any) -> float:
        """Compile the code that `kernel(X)` needs, or load it from the cache, and return the seconds taken.

        Every call does this by itself when needed; use `prepare` to time compilation separately.
        """
        begun = time.perf_counter()
        with progress_bar(None, "compiling", "part"):
            x = self._images(X[:2], "X")
            self.engine_for(x.shape[1:]).symmetric(_flat(x))
            if self.check:
                self.verify(X)
        return time.perf_counter() - begun

    def verify(self, X: Any) -> Verdict | None:
        """Compare the kernel of two of these images with the float64 reference, unless done before for their shape.

        Every matrix begins with this if `check` is True. Returns None if the images, such as blank ones, prevent it.

        >>> import numpy as np
        >>> from cnngp import Dense, Kernel
        >>> verdict = Kernel(Dense(), device="cpu").verify(np.eye(3))
        >>> verdict.error < 1e-6
        True
        """
        return self._verify(self._images(X[:LOOKED_AT], "X"), self.kind)

    def _verify(self, x: Any, kind: Kind) -> Verdict | None:
        shape = tuple(x.shape[1:])
        if self._verdicts.get((kind, shape)) is None:
            engine_for, to_engine = partial(self._engine, kind=kind), partial(self._images, name="X")
            self._verdicts[kind, shape] = remembered(
                self.network,
                (shape, engine_for(shape).identity, kind),
                lambda: compared(self.network, np.dtype(self.dtype), engine_for, to_engine, x, kind),
            )
        return self._verdicts[kind, shape]

    def verdict(self, input_shape: Sequence[int]) -> Verdict | None:
        """Result of `verify` for images of this shape; None if nothing was compared yet."""
        return self._verdicts.get((self.kind, tuple(input_shape)))

    def engine_for(self, input_shape: Sequence[int], kind: Kind | None = None) -> Engine:
        """Return the engine for images of one shape, made at first use; `kind` defaults to the kernel's own."""
        shape, kind = tuple(input_shape), kind or self.kind
        engine = self._engine(shape, kind)
        averaged: Engine = self._once((kind, shape, self.symmetry), lambda: self._averaged(engine, shape))
        return averaged

    def engine_on(self, card: int, input_shape: Sequence[int]) -> Engine:
        """Return a new engine like that of `engine_for`, on one of several GPUs."""
        shape = tuple(input_shape)
        made = make_engine(self.network, shape, self.kind, self.device, self.dtype, self.threads, [card])
        return self._averaged(made, shape)

    def gradient_engine(self, input_shape: Sequence[int], to_images: bool = False) -> GradientEngine:
        """Return the gradient engine for images of one shape, made at first use; `to_images` adds those by pixels."""
        shape, device, dtype = tuple(input_shape), self.device, self.dtype
        make = partial(make_gradient, self.network, shape, to_images, device, dtype, self.threads)
        engine: GradientEngine = self._once((shape, to_images), make)
        return engine

    def _averaged(self, engine: Engine, shape: tuple[int, ...]) -> Engine:
        return engine if self.symmetry is None else SymmetricEngine(engine, self.symmetry, shape)

    def _once(self, key: Hashable, make: Callable[[], Any]) -> Any:
        if key not in self._kept:
            self._kept[key] = make()
        return self._kept[key]

    def _refuse_symmetry(self, what: str) -> None:
        if self.symmetry is not None:
            raise ValueError(f"Kernel.{what} is for kernels without symmetry={self.symmetry!r}")

    def _engine(self, shape: tuple[int, ...], kind: Kind) -> Engine:
        """Return the engine of the network itself, without averaging over a symmetry."""
        if self._fingerprint is not None and self._fingerprint != self.network.fingerprint:
            raise NetworkError(
                f"a function of {self.network!r} gives other values than when this Kernel was made, and its tables are "
                "of the old ones; make a new Kernel, and let its functions depend on nothing that changes"
            )
        make = partial(make_engine, self.network, shape, kind, self.device, self.dtype, self.threads)
        engine: Engine = self._once((kind, shape), make)
        return engine

    def with_network(self, network: Network, *, dtype: str | None = None, check: bool | None = None) -> Kernel:
        """Return the kernel of another network, with the settings of this one unless others are given."""
        check = self.check if check is None else check
        return Kernel(network, self._asked, dtype or self.dtype, self.threads, self.kind, check, self.symmetry)

    def as_sklearn(self, input_shape: Sequence[int]) -> NetworkKernel:
        """A `sklearn.gaussian_process.kernels.Kernel` on flat rows, for GaussianProcessRegressor, SVC and KernelRidge.

        >>> from cnngp import Dense, Kernel
        >>> Kernel(Dense(), device="cpu").as_sklearn((1, 2, 2))([[1.0, 0.0, 0.0, 2.0]])
        array([[1.25]])
        """
        from .sklearn_kernel import NetworkKernel

        self._refuse_symmetry("as_sklearn")
        return NetworkKernel(
            self.network, tuple(input_shape), self._asked, self.dtype, self.threads, self.kind, self.check
        )

    def _sets(self, X: Any, Z: Any) -> tuple[Any, Any]:
        """Return both sets of images, checked to have one image shape; the second is None if Z is None."""
        x, z = self._images(X, "X"), None if Z is None else self._images(Z, "Z")
        if z is not None and x.shape[1:] != z.shape[1:]:
            raise DataError(f"X holds images of shape {x.shape[1:]} and Z of shape {z.shape[1:]}; they must agree")
        return x, z

    def _images(self, X: Any, name: str) -> Any:
        images = as_images(X, np.dtype(self.dtype), name, on_gpu=self.device == "cuda")
        check_pixels(images, np.dtype(self.dtype), name)
        return images

    def __repr__(self) -> str:
        threads = "" if self.threads is None else f", threads={self.threads}"
        kind = "" if self.kind == "nngp" else f", kind={self.kind!r}"
        check = "" if self.check else ", check=False"
        check += "" if self.symmetry is None else f", symmetry={self.symmetry!r}"
        return f"Kernel({self.network!r}, device={self.device!r}, dtype={self.dtype!r}{threads}{kind}{check})"

    def __reduce__(self) -> tuple[Any, ...]:
        return Kernel, (self.network, self._asked, self.dtype, self.threads, self.kind, self.check, self.symmetry)


def as_kernel(
    network: Network | Kernel,
    device: Device = "auto",
    dtype: str = "float32",
    threads: int | None = None,
    kind: Kind = "nngp",
) -> Kernel:
    """Return a `Kernel` unchanged, or make one from a network.

    A `Kernel` has its own device, precision, threads and kind, so other values raise `ValueError`. The defaults request
    nothing and go with any `Kernel`.
    """
    if not isinstance(network, Kernel):
        return Kernel(network, device, dtype, threads, kind)
    dtype, threads = checked(device, dtype, threads, kind)
    settings: tuple[tuple[str, object, object, object], ...] = (
        ("device", device, "auto", network.device),
        ("dtype", dtype, "float32", network.dtype),
        ("threads", threads, None, network.threads),
        ("kind", kind, "nngp", network.kind),
    )
    for name, value, default, own in settings:
        if value not in (default, own):
            raise ValueError(
                f"{name}={value!r}, but the Kernel that was given has {name}={own!r}; make it with "
                f"Kernel(network, {name}={value!r}), or give the network"
            )
    return network


def _flat(x: Any) -> Any:
    """Reshape (N, C, …) to (N, C, locations)."""
    return x.reshape(x.shape[0], x.shape[1], -1)


def _pairs(x: Any, z: Any) -> int:
    return len(x) * (len(x) - 1) // 2 if z is None else len(x) * len(z)


__all__ = ["DataError", "Kernel", "NetworkError", "as_kernel"]
