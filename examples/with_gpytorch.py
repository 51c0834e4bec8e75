"""A convolutional network's kernel in a GPyTorch model: exact regression, with parameters learned by Adam."""

import gpytorch
import torch

import cnngp
from cnngp import datasets, zoo


class Model(gpytorch.models.ExactGP):
    def __init__(self, x, y, likelihood, network, learn) -> None:
        super().__init__(x, y, likelihood)
        self.mean = gpytorch.means.ZeroMean()
        self.kernel = gpytorch.kernels.ScaleKernel(cnngp.gpytorch_kernel(network, (1, 8, 8), learn=learn))

    def forward(self, x):
        return gpytorch.distributions.MultivariateNormal(self.mean(x), self.kernel(x))


def fitted(x, y, network, learn, steps):
    """Fit a model by Adam: its scale and noise, and with `learn` the network's variances too."""
    likelihood = gpytorch.likelihoods.GaussianLikelihood().double()
    model = Model(x, y, likelihood, network, learn).double()
    model.kernel.outputscale = 100.0  # the kernel's own scale is arbitrary: start near the targets' variance
    loss = gpytorch.mlls.ExactMarginalLogLikelihood(likelihood, model)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.3)
    for _ in range(steps):  # with learn=False the network's matrix is computed once
        optimizer.zero_grad()
        objective = -loss(model(x), y)
        objective.backward()
        optimizer.step()
    return model.eval(), objective.item()


def main(steps: int = 40) -> dict[str, float]:
    """Regress a digit's value on its image; returns root mean squared errors on unseen digits."""
    data = datasets.digits().take(train=200, test=200)
    x, x_test = (torch.as_tensor(images).double().flatten(1) for images in (data.X, data.X_test))
    y, y_test = (torch.as_tensor(labels).double() - 4.5 for labels in (data.y, data.y_test))
    errors = {}
    for learn in (False, True):
        model, loss = fitted(x, y, zoo.small_cnn(), learn, steps)
        with torch.no_grad():
            prediction = model(x_test)
        error = (prediction.mean - y_test).square().mean().sqrt().item()
        errors["variances too" if learn else "scale and noise"] = error
        print(
            f"{'variances too' if learn else 'scale and noise'}: loss {loss:.3f}, root mean squared error {error:.2f}"
        )
    print(f"predicting the mean: {y_test.std().item():.2f}")
    print("the network that was learned:", model.kernel.base_kernel.network)
    return errors


if __name__ == "__main__":
    main()
