# Subpackages, and the modules `cluster` and `torch`; the names after them are `__all__`.
from . import cluster as cluster
from . import datasets as datasets
from . import estimators as estimators
from . import gp as gp
from . import network as network
from . import report as report
from . import search as search
from . import torch as torch
from .common.arrays import DataError as DataError
from .estimators import GPClassifier as GPClassifier
from .estimators import GPRegressor as GPRegressor
from .kernel.check import WrongKernelError as WrongKernelError
from .kernel.engines.base import RangeError as RangeError
from .kernel.kernel import Kernel as Kernel
from .matrix.gram import gram as gram
from .network import AvgPool as AvgPool
from .network import Conv as Conv
from .network import ConvTranspose as ConvTranspose
from .network import Dense as Dense
from .network import GlobalAvgPool as GlobalAvgPool
from .network import Identity as Identity
from .network import NetworkError as NetworkError
from .network import Sequential as Sequential
from .network import Sum as Sum
from .network import from_json as from_json
from .network import zoo as zoo
from .network.layers.nonlinear import GELU as GELU
from .network.layers.nonlinear import Abs as Abs
from .network.layers.nonlinear import Cos as Cos
from .network.layers.nonlinear import Elementwise as Elementwise
from .network.layers.nonlinear import Erf as Erf
from .network.layers.nonlinear import LayerNorm as LayerNorm
from .network.layers.nonlinear import LeakyReLU as LeakyReLU
from .network.layers.nonlinear import NormalizedExp as NormalizedExp
from .network.layers.nonlinear import Rbf as Rbf
from .network.layers.nonlinear import ReLU as ReLU
from .network.layers.nonlinear import Sign as Sign
from .network.layers.nonlinear import Sin as Sin
from .network.layers.nonlinear import SquaredReLU as SquaredReLU
from .network.layers.nonlinear import Step as Step
from .torch_bridge import from_torch as from_torch
from .torch_bridge import gpytorch_kernel as gpytorch_kernel
from .torch_bridge import sample_network as sample_network

__version__: str
__all__: list[str]
