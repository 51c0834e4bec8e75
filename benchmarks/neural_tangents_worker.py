"""Worker for benchmarks/cpu.py in a separate environment with neural-tangents. Each line read starts a timed run.

It does not import cnngp. JAX's SAME padding differs at stride 2, which changes values by 3 % but not the work.
"""

import os
import sys
import time

os.environ["XLA_FLAGS"] = "--xla_cpu_multi_thread_eigen=true intra_op_parallelism_threads=2"
os.environ["JAX_PLATFORMS"] = "cpu"

import jax
import numpy as np
from neural_tangents import stax


def resnet(blocks, gain=1.0):
    def conv(k, stride=1):
        return stax.Conv(1, (k, k), (stride, stride), padding="SAME", W_std=1.0, b_std=None)

    layers = [conv(3)]
    for stage in range(3):
        s = 1 if stage == 0 else 2
        body = stax.serial(conv(3, s), stax.Relu(), conv(3))
        layers += [stax.Relu(), stax.FanOut(2), stax.parallel(conv(1, s), body), stax.FanInSum()]
        for _ in range(blocks - 1):
            body = stax.serial(stax.Relu(), conv(3), stax.Relu(), conv(3))
            layers += [stax.FanOut(2), stax.parallel(stax.Identity(), body), stax.FanInSum()]
    return stax.serial(*layers, stax.Flatten(), stax.Dense(1), stax.Relu(), stax.Dense(1))


def convnet():
    layers = []
    for _ in range(7):
        layers += [stax.Conv(1, (7, 7), padding="SAME", W_std=1.67, b_std=2.8), stax.Relu()]
    return stax.serial(*layers, stax.Flatten(), stax.Dense(1, W_std=1.67, b_std=2.8))


def stack(*parts):
    """The pooled networks of benchmarks/cpu.py: a number stands for that many 3 × 3 convolutions with ReLUs."""
    layers = []
    for part in parts:
        convolution = [stax.Conv(1, (3, 3), padding="SAME", W_std=2**0.5, b_std=None), stax.Relu()]
        layers += convolution * part if isinstance(part, int) else [part]
    return stax.serial(*layers, stax.Flatten(), stax.Dense(1))


def pool(size, stride):
    return stax.AvgPool((size, size), (stride, stride))


NETS = {
    "resnet(32)": lambda: resnet(5),
    "CIFAR resnet(32)": lambda: resnet(5),
    "convnet()": convnet,
    "pooled twice": lambda: stack(2, pool(2, 2), 2, pool(2, 2), 1),
    "pool, then 5 × 5": lambda: stack(2, pool(2, 2), 3, pool(5, 1)),
    "global on 8 × 8": lambda: stack(3, stax.GlobalAvgPool()),
    "global on 32 × 32": lambda: stack(3, stax.GlobalAvgPool()),
}

name, n, channels, size, block, dtype = sys.argv[1], *map(int, sys.argv[2:6]), sys.argv[6]
jax.config.update("jax_enable_x64", dtype == "float64")
_, _, kernel_fn = NETS[name]()
kernel_fn_raw = jax.jit(lambda x, z: kernel_fn(x, z, "nngp"))
rng = np.random.default_rng(0)
x = rng.random((n, size, size, channels)).astype(dtype)
z = rng.random((n, size, size, channels)).astype(dtype)


def run():
    start = time.perf_counter()
    for i in range(0, n, block):
        for j in range(0, n, block):
            np.asarray(kernel_fn_raw(x[i : i + block], z[j : j + block]))
    return time.perf_counter() - start


kernel_fn_raw(x[:block], z[:block]).block_until_ready()
print("ready", flush=True)
for _ in sys.stdin:
    print(run(), flush=True)
