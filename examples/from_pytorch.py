"""A PyTorch model as an exact Gaussian process: import it, inspect the result, and classify digits with it."""

# region imports
from torch import nn
from torch.nn import functional as F

import cnngp
from cnngp import GPClassifier, datasets

# endregion


# region model
class Block(nn.Module):
    """A pre-activation residual block with a projection shortcut."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, padding=1)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1)
        self.shortcut = nn.Conv2d(inputs, outputs, 1, stride)

    def forward(self, x):
        h = F.relu(x)
        return self.shortcut(h) + self.conv2(F.relu(self.conv1(h)))


class MyNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(1, 16, 3, padding=1)
        self.block1, self.block2 = Block(16, 16, 1), Block(16, 32, 2)
        self.head = nn.Linear(32 * 4 * 4, 10)

    def forward(self, x):
        x = self.block2(self.block1(self.stem(x)))
        return self.head(F.relu(x).flatten(1))


# endregion


def main() -> float:
    # region explain
    cnngp.torch.explain(MyNet(), (1, 8, 8))  # every call, and the layer it becomes
    # endregion

    # region import
    # With PyTorch's default initial weights; He's variances give signals that neither grow nor fade.
    net = cnngp.from_torch(MyNet(), (1, 8, 8), weight_var=2.0, bias_var=0.01)
    data = datasets.digits().take(train=400, test=200)
    classifier = GPClassifier(net).fit(data.X, data.y)
    error = 1 - classifier.score(data.X_test, data.y_test)
    print(f"test error with {len(data.X)} training digits: {error:.1%}")
    # endregion
    return error


if __name__ == "__main__":
    main()
