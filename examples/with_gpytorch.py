"""A convolutional network's kernel in a GPyTorch model: exact regression with a learned scale and noise."""

import gpytorch
import torch

import cnngp
from cnngp import datasets, zoo


class Model(gpytorch.models.ExactGP):
    def __init__(self, x, y, likelihood) -> None:
        super().__init__(x, y, likelihood)
        self.mean = gpytorch.means.ZeroMean()
        self.kernel = gpytorch.kernels.ScaleKernel(cnngp.gpytorch_kernel(zoo.small_cnn(), (1, 8, 8)))

    def forward(self, x):
        return gpytorch.distributions.MultivariateNormal(self.mean(x), self.kernel(x))


def main() -> float:
    """Regress the digit's value on its image; returns the root mean squared error on unseen digits."""
    data = datasets.digits().take(train=300, test=100)
    x, x_test = (torch.as_tensor(images).double().flatten(1) for images in (data.X, data.X_test))
    y, y_test = (torch.as_tensor(labels).double() - 4.5 for labels in (data.y, data.y_test))

    likelihood = gpytorch.likelihoods.GaussianLikelihood().double()
    model = Model(x, y, likelihood).double()
    model.kernel.outputscale = 100.0  # the kernel's own scale is arbitrary: start near the targets' variance
    loss = gpytorch.mlls.ExactMarginalLogLikelihood(likelihood, model)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.5)
    for _ in range(60):  # the network's matrix is computed once: only scale and noise are learned
        optimizer.zero_grad()
        objective = -loss(model(x), y)
        objective.backward()
        optimizer.step()

    model.eval()
    with torch.no_grad():
        prediction = model(x_test)
    rmse = (prediction.mean - y_test).square().mean().sqrt().item()
    print(f"root mean squared error {rmse:.2f} (predicting the mean: {y_test.std().item():.2f})")
    return rmse


if __name__ == "__main__":
    main()
